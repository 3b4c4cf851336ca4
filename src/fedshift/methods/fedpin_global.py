"""FedPIN's global invariant model: features that say of the client nothing that the label does not.

Tang et al., Causally motivated personalized federated invariant learning with shortcut-averse
information-theoretic regularization, ICML 2024. Objective: Eq. 4 and Proposition 4.2; schedule: Algorithm 1.

With R the cross-entropy, Phi_g an encoder, omega_g a head and omega_a a head that knows the client u, clients take
R steps a round of (1 + alpha) R(omega_g(Phi_g)) - alpha R(omega_a(Phi_g, u)); Phi_g and omega_g are averaged.

Choices, where the paper leaves something open:

- ``auxiliary``: Proposition 4.2 needs the minimum over omega_a of R(omega_a), what a head that knows u could reach.
  "gradient" (ours) takes it to first order, one step of gradient descent from omega_g, which gains in proportion to
  the squared gradient of u's risk at omega_g; there is no omega_a. It is estimated without bias, as the product of
  the gradients on two halves of the batch (every other sample; a batch of one has no second half and no penalty).
  ``scalar_weight`` adds so many times the same for one direction alone, the scale of omega_g, which is IRMv1's
  (Arjovsky et al., 2019): in 780 directions two halves are mostly noise, in one they are not.
  "minimise" keeps an omega_a that in each step first descends on R(omega_a), before Phi_g and omega_g move with it
  fixed. Read to the letter, Algorithm 1 lets all three descend on the same loss, and omega_a ascend on R(omega_a)
  ("literal"). It is "gradient" by default because the others keep the shortcut in every setting tried
  (docs/results/fedpin.md).
- ``auxiliary_head``: omega_a must let z and u interact; a linear layer on [z || one-hot u] adds a bias a client
  only. "mlp" reads [z || one-hot u]; it is broadcast and averaged, as in Algorithm 1, except for the one-hot's
  weights: those of client u are u's if it took part, else unchanged. "per_client" is a linear head of each client,
  which only that client can move: averaging would shrink its progress, so it stays there.
- The difference of the two losses is taken sample by sample before alpha multiplies it: between two means
  that alpha has multiplied, 32 bits leave little of it. ``alpha_warmup`` rounds come before alpha weighs, in which
  Phi_g learns what to see at all; a slow rise instead leaves it nearly nothing (docs/results/fedpin.md).
- omega_a learns from Phi_g in evaluation mode, and is read from Phi_g as it trains.
- ``global_unit``: R counts steps in Algorithm 1 and iterations in E.3.
- With alpha = 0 there is no omega_a, and it is FedAvg.
- A client that misses the fine-tuning has no copy and predicts with the global model; an absent client's own omega_a
  stands still.

The paper trains by Adam at 1e-4 (PACS: 1e-2); plain SGD at usual rates diverges under such an alpha.
:class:`GlobalModel` and :class:`FineTuned` are the rows GM and GM-FT of Table 2.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fediir import head_gradients
from fedshift.methods.personal import FineTuning
from fedshift.page import *

BY_OWNER = "auxiliary.first.weight"  # its last columns are the clients' own


class ClientMLP(nn.Module):
    """omega_a(z, u): a classifier with one hidden layer that reads [z || one-hot u] (Proposition 4.2)."""

    def __init__(self, dim: int, clients: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.clients = clients
        self.first = nn.Linear(dim + clients, hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, z: Tensor, client: Tensor) -> Tensor:
        """Logits (B, classes) of z (B, d) at a client, int64 of shape ()."""
        code = F.one_hot(client, self.clients).to(z).expand(len(z), -1)
        logits: Tensor = self.last(self.first(torch.cat([z, code], dim=1)).relu())
        return logits


@dataclass(frozen=True, kw_only=True)
class GlobalModel(FedAvg):
    """FedPIN's global invariant model alone (GM): FedAvg whose features tell nothing of the client beyond y."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Eq. 4 and Table 2 (GM)"
    terms: ClassVar[tuple[str, ...]] = (*FedAvg.terms, "invariance")
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "colored-mnist": {"alpha": 1e5},
        "colored-fashion-mnist": {"alpha": 1e5},
        "waterbird": {"alpha": 3e4},
        "pacs": {"alpha": 1e4},
    }

    alpha: NonNegative = setting(
        1e5, help="weight of I(E, U; Y | Phi_g(X))", source="Eq. 4, E.3", search=Range(1, 1e6, log=True)
    )
    alpha_warmup: WholeNumber = setting(
        0, help="first rounds without the penalty; ours, after IRM's code", search=(0, 20, 50)
    )
    global_steps: Steps = setting(10, help="R: local steps of the global model a round", source="Alg. 1, E.3")
    global_unit: Literal["steps", "epochs"] = setting("steps", help="what R counts", source="Alg. 1; E.3")
    auxiliary: Literal["gradient", "minimise", "literal"] = setting(
        "gradient",
        help="what omega_a could gain to first order, or an omega_a that descends on its own risk, or on the loss of "
        "Phi_g, which makes it ascend",
        source="ours; Prop. 4.2; Alg. 1",
    )
    scalar_weight: NonNegative = setting(
        300.0,
        help="with 'gradient', how much more the scale of omega_g counts than its other directions; ours",
        search=(0.0, 30.0, 300.0),
    )
    auxiliary_head: Literal["mlp", "per_client"] = setting(
        "mlp",
        help="omega_a: an MLP on z and the client, averaged, or a linear head of each client, which stays there",
        source="Alg. 1",
    )
    auxiliary_hidden: Width = setting(64, help="hidden units of omega_a as an MLP")
    auxiliary_steps: Steps = setting(1, help="steps of omega_a on each batch before Phi_g moves")
    auxiliary_lr: LearningRate | None = setting(None, help="learning rate of omega_a; by default that of [train]")

    def __post_init__(self) -> None:
        """Refuse settings of omega_a's own descent where it has none.

        Raises:
            FedshiftError: ``auxiliary_steps`` or ``auxiliary_lr`` beside another ``auxiliary`` than "minimise".
        """
        super().__post_init__()
        if self.auxiliary != "minimise" and (self.auxiliary_steps != 1 or self.auxiliary_lr is not None):
            raise FedshiftError(
                f"method.auxiliary_steps = {self.auxiliary_steps} and auxiliary_lr = {self.auxiliary_lr} need an "
                "omega_a that descends for itself: set auxiliary = 'minimise', or leave them out."
            )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Phi_g and omega_g, and omega_a where there is one; per client it starts as omega_g."""
        parts = super().parts(model)
        if self.alpha == 0 or self.auxiliary == "gradient":
            return parts
        if self.auxiliary_head == "per_client":
            return {**parts, "auxiliary": Part(model.head(), "client")}
        sizes = (model.dim, model.clients, self.auxiliary_hidden, model.classes)
        return {**parts, "auxiliary": Part(model.initialised("auxiliary", lambda: ClientMLP(*sizes)))}

    def phases(self) -> Phases:
        """The global phase."""
        return (Phase.lasting("global", self.game(), self.global_steps, self.global_unit),)

    def game(self) -> tuple[Objective, ...]:
        """What a step of the global phase minimises, in order."""
        if self.alpha > 0 and self.auxiliary == "literal":
            return (self.objective("global", moves=(*self.moves(), "auxiliary")),)
        model = self.objective("global")
        if self.alpha == 0 or self.auxiliary == "gradient":
            return (model,)
        own, name = Optimiser(lr=self.auxiliary_lr), ("auxiliary",)  # of the part, and of its term
        omega_a = Objective("auxiliary", self.auxiliary_loss, name, name, optimiser=own, repeats=self.auxiliary_steps)
        return (omega_a, model)

    def auxiliary_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_a(sg(Phi_g), u))."""
        z = net.frozen("encoder", Tensors(), batch.x)
        return {"auxiliary": batch.cross_entropy(self.auxiliary_logits(net, z, context))}

    def auxiliary_logits(self, net: Net, z: Tensor, context: Context) -> Tensor:
        """omega_a(z, u), (B, classes), of z (B, d) at the client at work."""
        arguments = (z,) if self.auxiliary_head == "per_client" else (z, context.client)
        return net.auxiliary(*arguments)

    def loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_g(Phi_g)) + alpha * (what a head that knows u could gain), the global objective of client u."""
        if self.alpha == 0:
            return super().loss(net, batch, context)
        alpha = self.alpha_at(context.round)
        if self.auxiliary == "gradient":
            return {**super().loss(net, batch, context), "invariance": alpha * self.first_order_gain(net, batch)}
        risk = batch.cross_entropy(net.head(batch.z), "none")
        informed = batch.cross_entropy(self.auxiliary_logits(net, batch.z, context), "none")
        return {"cross_entropy": risk.mean(), "invariance": alpha * (risk - informed).mean()}

    def first_order_gain(self, net: Net, batch: Batch) -> Tensor:
        """<g, g'> + scalar_weight * <omega_g, g> <omega_g, g'>, with omega_g's gradients g, g' of R on two halves.

        <omega_g, g> is the derivative of R at s = 1 when omega_g becomes s omega_g.
        """
        halves = [batch.part(slice(start, None, 2)) for start in (0, 1)]
        one, other = (head_gradients(net, half, "sum")[0] for half in halves)
        omega = net.of("head")
        products = (one * other).sum() + self.scalar_weight * (one * omega).sum() * (other * omega).sum()
        return products / max(1, len(halves[0].y) * len(halves[1].y))

    def alpha_at(self, round: int) -> float:
        """Alpha in a round, from 1."""
        return self.alpha if round > self.alpha_warmup else 0.0

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean; of omega_a's weights on the one-hot u, the column of each client is that client's own."""
        merged = super().merge(state, replies)
        if BY_OWNER not in state.shared:
            return merged
        weight = merged.shared[BY_OWNER]  # the mean's own memory
        z_columns = weight.shape[1] - state.clients
        weight[:, z_columns:] = state.shared[BY_OWNER][:, z_columns:]
        for client, up in replies:
            weight[:, z_columns + client] = up[BY_OWNER][:, z_columns + client]
        return merged


@dataclass(frozen=True, kw_only=True)
class FineTuned(FineTuning, GlobalModel):
    """GM-FT: the global invariant model, then every client tunes a copy of its own once.

    Choices: plain cross-entropy, 50 steps at the rate of training (the paper gives neither).
    """

    paper: ClassVar[str] = "Tang et al., ICML 2024, Table 2 (GM-FT)"
