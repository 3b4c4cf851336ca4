r"""FedPAC: align features by class, and give each client the combination of heads that fits its data best.

Xu, Tong and Huang, Personalized federated learning with feature alignment and classifier collaboration, ICLR 2023.

Client i receives the shared encoder, the global class means :math:`c_y` and a personal head. It trains the head, then
the encoder on :math:`\mathrm{CE} + \lambda\, \mathrm{MSE}(z, c_y)`. The server averages encoders by samples and class
means by class counts, and gives client i the head :math:`\sum_j a_j h_j`, where a on the simplex minimises the
estimated test error

.. math::

    &\min_a \; a^\top (\mathrm{diag}(v) + D)\, a \\
    D_{jl} &= \sum_c (H_i - H_j)_c \cdot (H_i - H_l)_c \\
    v_j &= \frac{1}{n_j} \Big( \sum_c p_j(c) E[\|z\|^2 | c] - \sum_c p_j(c)^2 \|\mu_{jc}\|^2 \Big)

with :math:`H_{jc} = p_j(c) \mu_{jc}`, client j's share of class c times its mean feature there, measured with the
received encoder.

**When to choose it.** For label skew with clients that are scored on local data: +3.1 points over FedAvg on Heart,
-0.7 (not clear) on OPT. It keeps no state on clients.

**Unavailable clients.** An absent client is in no mean and no combination, and keeps its last head on the server. A
late client is like an absent one, since clients keep no state.

**Choices.**

- A client uploads class sums, class counts and the sum of squared norms; classes that it lacks have zeros there.
- The MSE is the mean over batch and dimensions, from round 2 on. A class without a global mean is pulled to the
  client's own mean of the start of the round; a class that no client of the round has keeps its mean.
- Features are measured over all training samples without augmentation, in evaluation mode: before training for the
  heads, after it for the class means.
- While the head is trained the encoder is fixed and in evaluation mode, and conversely. A round has one epoch of the
  head and five of the encoder (public code), whatever ``train.steps`` is; ``unit = "steps"`` counts steps.
- The head's rate is ``head_factor`` times ``train.lr``, 5 by default (public code: 0.1 beside 0.01 to 0.02).
- Weights below 1e-3 become 0 and the rest is normalised (public code), unless all are below.
- A client is scored with the head that it would be sent, before further training. A client that never took part gets
  the mean of the last round's heads.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import (
    CLASS_COUNTS,
    COUNTS,
    empty_counts,
    stack_replies,
    sum_by_class,
    update_counts,
    update_means,
)
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

SMALLEST = 1e-3  # smallest weight of a head in a combination


def simplex_minimum(root: Tensor) -> Tensor:
    """A minimiser a of ||Ra||^2 with a >= 0 and sum a = 1.

    The non-negative least squares problem min ||Ru||^2 + (1 - sum u)^2 has its minimum where u = s a, since its value
    for the best s, q / (1 + q) with q = ||Ra||^2, grows with q. Lawson's and Hanson's active sets (Solving least
    squares problems, 1974, Ch. 23) solve it in finitely many steps.

    Args:
        root: R, (rows, n), n >= 1.

    Returns:
        The weights (n,), float64, on the CPU.
    """
    from scipy.optimize import nnls  # lazy: listing the methods does not need it

    root = root.double().cpu()
    scale = root.norm(dim=0).max().clamp(min=torch.finfo(root.dtype).tiny)  # makes the row of ones independent of units
    system = torch.cat([root / scale, torch.ones(1, root.shape[1], dtype=root.dtype)])
    target = torch.zeros(len(system), dtype=root.dtype)
    target[-1] = 1
    u = torch.from_numpy(nnls(system.numpy(), target.numpy())[0])
    return u / u.sum()


def combination(client: int, shares: Tensor, variances: Tensor) -> Tensor:
    """The weights (m,) of m clients' heads for one client; weights below 1e-3 become 0, unless all are.

    Args:
        client: the index of that client.
        shares: H of every client, or points with the same distances, (m, k).
        variances: v of every client, (m,).
    """
    # R with R'R = diag(v) + D; forming the product would lose half of the digits
    a = simplex_minimum(torch.cat([variances.sqrt().diag(), (shares[client] - shares).T]))
    large = a.where(a >= SMALLEST, 0)
    return large / large.sum() if large.any() else a


class FedPAC(FedAvg):
    """FedAvg of encoders with aligned class means, and a combination of the clients' heads for each client."""

    paper: ClassVar[str] = "Xu, Tong and Huang, ICLR 2023"
    uploads: ClassVar[tuple[Upload, ...]] = (
        Upload.like("before", "class_means", "statistic"),
        Upload("squares"),
        Upload.like("after", "class_means", "statistic"),
        CLASS_COUNTS,
    )

    weighting: Literal["uniform", "samples"] = setting(
        "samples", help="client weights in the average of encoders", source="paper: by samples"
    )
    lam: NonNegative = setting(
        1.0, help="weight of the distance to the class means", source="public code", search=Range(0.01, 10, log=True)
    )
    head_steps: Steps = setting(1, help="steps or epochs of the head at the start of a round", source="public code")
    encoder_steps: Steps = setting(5, help="steps or epochs of the encoder", source="public code")
    unit: Literal["steps", "epochs"] = setting(
        "epochs", help="unit of head_steps and encoder_steps", source="public code"
    )
    head_factor: Positive = setting(
        5.0, help="the head's learning rate as a multiple of train.lr", source="public code: 5 to 10"
    )

    # Parts --------------------------------------------------------------------------------------

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the broadcast class means and counts, and every client's head on the server."""
        parts = super().parts(model)
        parameters = parts["head"].module.named_parameters()
        heads = {name: torch.zeros(model.clients, *tensor.shape) for name, tensor in parameters}
        combined = torch.zeros(model.clients)  # 1 for clients with a combined head
        return {
            **parts,
            "class_means": Part.state(torch.zeros(model.classes, model.dim), "down"),
            COUNTS: empty_counts(model),
            "heads": Part.state({"combined": combined, **heads}, "server"),
        }

    # On a client --------------------------------------------------------------------------------

    def phases(self) -> Phases:
        """Class sums, training of the head, training of the encoder, class sums."""
        faster = Optimiser(factor=self.head_factor)
        head = self.objective("head", terms=super().terms(), moves=("head",), optimiser=faster)
        encoder = self.objective("encoder", moves=("encoder",))
        return (
            Measure("before", self.sums_before),
            Phase("head", (head,), steps=lasting(self.head_steps, self.unit)),
            Phase("encoder", (encoder,), steps=lasting(self.encoder_steps, self.unit)),
            Measure("after", self.sums_after),
        )

    def terms(self) -> dict[str, Term]:
        """The cross-entropy and, from round 2 on, lam MSE(z, c_y)."""
        return super().terms() | {"alignment": Term(self.alignment, self.lam, since=2)}

    def alignment(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """MSE(z, c_y) with the client's mean for classes without a global one; a scalar."""
        local = context.measured["before"] / context.counts.clamp(min=1).unsqueeze(1)
        means = torch.where(context.received[COUNTS].unsqueeze(1) > 0, context.received["class_means"], local)
        return F.mse_loss(batch.z, means[batch.y])

    @torch.no_grad()
    def sums_before(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Class sums of the features (classes, d) and the sum of their squared norms."""
        z = self.encode(net, batch, {}).z
        return {"before": sum_by_class(z, batch.y, len(context.counts)), "squares": z.square().sum()}

    @torch.no_grad()
    def sums_after(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Class sums of the features, (classes, d)."""
        return {"after": sum_by_class(self.encode(net, batch, {}).z, batch.y, len(context.counts))}

    def upload(self, work: LocalWork) -> Tensors:
        """The class sums, squared norms and class counts."""
        return work.measured | {COUNTS: work.counts}

    # On the server ------------------------------------------------------------------------------

    def send(self, state: ServerState, client: int) -> Tensors:
        """The client's combined head; nothing, so the mean head, before it has one."""
        row = state.server.of("heads").map(lambda rows: rows[client])
        return row.only(state.shared.of("head")).under("head") if row["combined"] > 0 else Tensors()

    def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
        """The class means, and the combined heads."""
        return self.class_means(state, replies) | self.combined(state, replies).under("heads")

    def class_means(self, state: ServerState, replies: Replies) -> Tensors:
        """Class means (classes, d) over the round's clients, and class counts."""
        means = update_means(replies, "after", state.down["class_means"])
        return Tensors({"class_means": means, COUNTS: update_counts(replies, state.down[COUNTS])})

    def combined(self, state: ServerState, replies: Replies) -> Tensors:
        """The heads of all clients (N, ...), updated for the clients of the round."""
        sums, squares, counts = (stack_replies(replies, name).cpu().double() for name in ("before", "squares", COUNTS))
        samples = counts.sum(dim=1)
        shares = (sums / samples.view(-1, 1, 1)).flatten(1)
        variances = (squares / samples - shares.square().sum(dim=1)).clamp(min=0) / samples
        shares = torch.linalg.qr(shares.T, mode="r").R.T  # rotated into at most as many dimensions as clients
        rows = state.server.of("heads").map(torch.clone)
        for place, client in enumerate(replies.clients):
            a = combination(place, shares, variances)
            rows["combined"][client] = 1
            for name in state.shared.of("head"):
                heads = stack_replies(replies, f"head.{name}")
                rows[name][client] = torch.tensordot(a.to(heads), heads, dims=1)
        return rows
