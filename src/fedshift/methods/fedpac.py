"""FedPAC: features aligned by class, and for each client the combination of heads that fits its data best.

Xu, Tong and Huang, Personalized federated learning with feature alignment and classifier collaboration, ICLR 2023. In
a round client i receives the shared encoder, the global class means c_y and a head of its own. It trains the head,
then the encoder on CE + lam MSE(z, c_y), from the second round on. The server averages the encoders by samples and the
class means by class counts, and gives client i the head sum_j a_j h_j of the round's heads, where a on the simplex
minimises the estimated test error a' (diag(v) + D) a with, from the features of the encoder received,

- H_jc = p_j(c) mu_jc, client j's share of class c times its mean feature there;
- D_jl = sum_c (H_i - H_j)_c . (H_i - H_l)_c, the bias;
- v_j = (1/n_j) (sum_c p_j(c) E||z||^2_c - sum_c p_j(c)^2 ||mu_jc||^2), the variance.

Choices:

- H_j is the sum of the features of each class over n_j, and the first sum of v_j the sum of all squared norms over
  n_j: classes that a client lacks have zeros there and need no mean. So class sums and squared norms are what it
  sends.
- The MSE is the mean over batch and dimensions. A class that has no global mean yet is pulled to the client's own, as
  measured at the start of the round. A class that none of the round's clients has keeps the mean it had.
- Features are measured over all training samples without augmentation, in evaluation mode: before training for the
  heads, after it for the class means.
- The head is trained with the encoder fixed and in evaluation mode, and conversely. A round is one epoch of the head
  and five of the encoder (public code), whatever ``[train]`` says of steps; ``unit`` may count them in steps.
- The head's rate is five times the encoder's (``head_factor``), which is that of ``[train]``: the public code has 0.1
  for the head beside 0.01 to 0.02.
- Weights below 1e-3 become 0, and the others sum to 1 (public code). Where all are below, they stay as they are.
- A client is scored with the head that it is sent, and not after the training that would follow. One that never took
  part is sent, and an unseen one predicted for with, the mean of the last round's heads.
- Absent clients are in no mean and no combination, and keep the head they had. Nothing stays on a client, so one whose
  answer came too late is like one that was absent.
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

SMALLEST = 1e-3  # weight of a head in a combination


def simplex_minimum(root: Tensor) -> Tensor:
    """The weights a that minimise ||Ra||^2 with a >= 0 and sum a = 1; one of them where several do.

    The least squares problem min ||Ru||^2 + (1 - sum u)^2 over u >= 0 has its minimum where u = s a: its value for
    the best s is q / (1 + q), with q = ||Ra||^2, which grows with q. So a = u / sum u, and Lawson's and Hanson's active
    sets (Solving least squares problems, 1974, Ch. 23) find u in a finite number of steps.

    Args:
        root: R, (rows, n), n >= 1.

    Returns:
        The weights (n,), float64, on the CPU.
    """
    from scipy.optimize import nnls  # late: a list of methods need not load it

    root = root.double().cpu()
    scale = root.norm(dim=0).max().clamp(min=torch.finfo(root.dtype).tiny)  # beside the row of ones no unit may matter
    system = torch.cat([root / scale, torch.ones(1, root.shape[1], dtype=root.dtype)])
    target = torch.zeros(len(system), dtype=root.dtype)
    target[-1] = 1
    u = torch.from_numpy(nnls(system.numpy(), target.numpy())[0])
    return u / u.sum()


def combination(own: int, shares: Tensor, variances: Tensor) -> Tensor:
    """The weights (m,) of m clients' heads for one of them, with those below 1e-3 left out, unless all are.

    Args:
        own: the place of that client.
        shares: H of every client, or other points as far from each other, (m, k).
        variances: v of every client, (m,).
    """
    # With P = diag(v) + D = R'R, and no product of R with itself, which would lose half of the digits.
    a = simplex_minimum(torch.cat([variances.sqrt().diag(), (shares[own] - shares).T]))
    kept = a.where(a >= SMALLEST, 0)
    return kept / kept.sum() if kept.any() else a


class FedPAC(FedAvg):
    """FedAvg of encoders that align class means, with a combination of the clients' heads for each client."""

    paper: ClassVar[str] = "Xu, Tong and Huang, ICLR 2023"
    uploads: ClassVar[tuple[Upload, ...]] = (
        Upload.like("before", "class_means", "statistic"),
        Upload("squares"),
        Upload.like("after", "class_means", "statistic"),
        CLASS_COUNTS,
    )

    weighting: Literal["uniform", "samples"] = setting(
        "samples", help="how clients weigh in the average of encoders", source="paper: by samples"
    )
    lam: NonNegative = setting(
        1.0, help="weight of the distance to the class means", source="public code", search=Range(0.01, 10, log=True)
    )
    head_steps: Steps = setting(
        1, help="of the head alone, first in a round, as 'unit' counts them", source="public code"
    )
    encoder_steps: Steps = setting(5, help="of the encoder, as 'unit' counts them", source="public code")
    unit: Literal["steps", "epochs"] = setting("epochs", help="what a phase's steps count", source="public code")
    head_factor: Positive = setting(
        5.0, help="the head's learning rate is so many times that of [train]", source="public code: 5 to 10"
    )

    # What it is made of -------------------------------------------------------------------------

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the class means and counts that clients are sent, and every client's head on the server."""
        parts = super().parts(model)
        heads = {name: torch.zeros(model.clients, *one.shape) for name, one in parts["head"].module.named_parameters()}
        combined = torch.zeros(model.clients)  # whether there is a head of a client: 0 until then
        return {
            **parts,
            "class_means": Part.state(torch.zeros(model.classes, model.dim), "down"),
            COUNTS: empty_counts(model),
            "heads": Part.state({"combined": combined, **heads}, "server"),
        }

    # On a client --------------------------------------------------------------------------------

    def phases(self) -> Phases:
        """Class sums, the head, the encoder, and class sums again."""
        own = Optimiser(factor=self.head_factor)
        head = self.objective("head", terms=super().terms(), moves=("head",), optimiser=own)
        encoder = self.objective("encoder", moves=("encoder",))
        return (
            Measure("before", self.measured_before),
            Phase("head", (head,), steps=lasting(self.head_steps, self.unit)),
            Phase("encoder", (encoder,), steps=lasting(self.encoder_steps, self.unit)),
            Measure("after", self.measured_after),
        )

    def terms(self) -> dict[str, Term]:
        """The cross-entropy + lam MSE(z, c_y); the first alone in the first round."""
        return super().terms() | {"alignment": Term(self.alignment, self.lam, since=2)}

    def alignment(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """MSE(z, c_y); of a class without a mean, that of the client's own."""
        own = context.measured["before"] / context.counts.clamp(min=1).unsqueeze(1)
        means = torch.where(context.received[COUNTS].unsqueeze(1) > 0, context.received["class_means"], own)
        return F.mse_loss(batch.z, means[batch.y])

    @torch.no_grad()
    def measured_before(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The sums of features by class, and of their squared norms."""
        z = self.encode(net, batch, {}).z
        return {"before": sum_by_class(z, batch.y, len(context.counts)), "squares": z.square().sum()}

    @torch.no_grad()
    def measured_after(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The sums of features by class."""
        return {"after": sum_by_class(self.encode(net, batch, {}).z, batch.y, len(context.counts))}

    def upload(self, work: LocalWork) -> Tensors:
        """What was measured, and the class counts."""
        return work.measured | {COUNTS: work.counts}

    # On the server ------------------------------------------------------------------------------

    def send(self, state: ServerState, client: int) -> Tensors:
        """A client's combination of heads, once there is one; until then it is sent the mean."""
        own = state.server.of("heads").map(lambda rows: rows[client])
        return own.only(state.shared.of("head")).under("head") if own["combined"] > 0 else Tensors()

    def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
        """The class means by class count, and a combination of heads for each client."""
        return self.class_means(state, replies) | self.combined(state, replies).under("heads")

    def class_means(self, state: ServerState, replies: Replies) -> Tensors:
        """The mean feature of each class over the round's clients, and how many samples it is of."""
        means, counts = (
            update_means(replies, "after", state.down["class_means"]),
            update_counts(replies, state.down[COUNTS]),
        )
        return Tensors({"class_means": means, COUNTS: counts})

    def combined(self, state: ServerState, replies: Replies) -> Tensors:
        """The heads of all clients, with new ones for those of the round."""
        sums, squares, counts = (stack_replies(replies, name).cpu().double() for name in ("before", "squares", COUNTS))
        samples = counts.sum(dim=1)
        shares = (sums / samples.view(-1, 1, 1)).flatten(1)
        variances = (squares / samples - shares.square().sum(dim=1)).clamp(min=0) / samples
        shares = torch.linalg.qr(shares.T, mode="r").R.T  # turned into no more dimensions than there are clients
        rows = state.server.of("heads").map(torch.clone)
        for place, client in enumerate(replies.clients):
            a = combination(place, shares, variances)
            rows["combined"][client] = 1
            for name in state.shared.of("head"):
                heads = stack_replies(replies, f"head.{name}")
                rows[name][client] = torch.tensordot(a.to(heads), heads, dims=1)
        return rows
