"""FedPIN with an omega_a that plays against Phi_g, as Algorithm 1 is printed; see docs/results/fedpin.md.

Tang et al., Causally motivated personalized federated invariant learning with shortcut-averse information-theoretic
regularization, ICML 2024: clients take steps of (1 + alpha) R(omega_g(Phi_g)) - alpha R(omega_a(Phi_g, u)), where
omega_a is a head that knows the client u. Here both forms keep the shortcut, so the library has neither:

- "minimise": in each step omega_a descends on R(omega_a) first, then Phi_g and omega_g move with it fixed.
- "literal": all three descend on the same loss, so that omega_a ascends on R(omega_a).

``auxiliary_head``: "mlp" reads [z || one-hot u], so that z and u interact; it is averaged, except for the one-hot's
weights: those of client u are u's if it took part, else unchanged. "per_client" is a linear head that stays there. The
difference of the losses is taken sample by sample before alpha multiplies it: 32 bits leave little of it between means.
omega_a learns from Phi_g in evaluation mode, and is read from Phi_g as it trains. Absent: its omega_a stands still.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods import METHODS
from fedshift.methods.fedpin import FedPIN
from fedshift.methods.fedpin_global import GlobalModel, Percent
from fedshift.page import *


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


PUBLISHED = {"colored-mnist": 1e5, "colored-fashion-mnist": 1e5, "waterbird": 3e4, "pacs": 1e4}  # alpha, App. E.3


@METHODS.register("fedpin-gm-game")
class GlobalGame(GlobalModel):
    """FedPIN's global model, whose penalty is what an omega_a gains that learns beside it."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Algorithm 1"
    presets: ClassVar[dict[str, dict[str, object]]] = {data: {"alpha": alpha} for data, alpha in PUBLISHED.items()}

    alpha: NonNegative = setting(1e5, help="weight of what omega_a gains, in nats", source="Eq. 4, E.3")
    alpha_warmup: Percent = setting(0, help="percent of the rounds, the first ones, without the penalty; ours")

    auxiliary: Literal["minimise", "literal"] = setting(
        "minimise", help="omega_a descends on its own risk, or on the loss of Phi_g, which makes it ascend"
    )
    auxiliary_head: Literal["mlp", "per_client"] = setting(
        "mlp", help="omega_a: an MLP on z and the client, averaged, or a linear head that stays on each client"
    )
    auxiliary_hidden: Width = setting(64, help="hidden units of omega_a as an MLP")
    auxiliary_steps: Steps = setting(1, help="with 'minimise', steps of omega_a on each batch before Phi_g moves")
    auxiliary_lr: LearningRate | None = setting(None, help="with 'minimise', omega_a's rate; by default [train]'s")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Phi_g, omega_g and omega_a; per client it starts as omega_g."""
        if self.auxiliary_head == "per_client":
            return {**super().parts(model), "auxiliary": Part(model.head(), "client")}
        sizes = (model.dim, model.clients, self.auxiliary_hidden, model.classes)
        return {**super().parts(model), "auxiliary": Part(model.initialised("auxiliary", lambda: ClientMLP(*sizes)))}

    def game(self) -> tuple[Objective, ...]:
        """What a step of the global phase minimises, in order."""
        if self.auxiliary == "literal":
            return (self.objective("global", moves=(*self.moves(), "auxiliary")),)
        own, terms = Optimiser(lr=self.auxiliary_lr), {"auxiliary": Term(self.auxiliary_risk)}
        omega_a = Objective("auxiliary", terms, ("auxiliary",), optimiser=own, repeats=self.auxiliary_steps)
        return (omega_a, self.objective("global"))

    def auxiliary_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """R(omega_a(sg(Phi_g), u))."""
        z = net.frozen("encoder", Tensors(), batch.x)
        return batch.cross_entropy(self.auxiliary_logits(net, z, context))

    def auxiliary_logits(self, net: Net, z: Tensor, context: Context) -> Tensor:
        """omega_a(z, u), (B, classes), of z (B, d) at the client at work."""
        arguments = (z,) if self.auxiliary_head == "per_client" else (z, context.client)
        return net.auxiliary(*arguments)

    def gain(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """R(omega_g(Phi_g)) - R(omega_a(Phi_g, u)), which alpha weighs."""
        risk = batch.cross_entropy(batch.once(net.head, batch.z), "none")
        informed = batch.cross_entropy(self.auxiliary_logits(net, batch.z, context), "none")
        return (risk - informed).mean()

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean; of omega_a's weights on the one-hot u, the column of each client is that client's own."""
        merged, first = super().merge(state, replies), state.shared.of("auxiliary").of("first")
        if not first:
            return merged
        weight = merged.shared.of("auxiliary").of("first")["weight"]  # the mean's own memory
        z_columns = weight.shape[1] - state.clients
        weight[:, z_columns:] = first["weight"][:, z_columns:]
        for client, up in replies:
            column = z_columns + client
            weight[:, column] = up.of("auxiliary").of("first")["weight"][:, column]
        return merged


@METHODS.register("fedpin-game")
class Game(FedPIN, GlobalGame):
    """FedPIN whose anchor is trained in the game."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Algorithm 1"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        data: {**FedPIN.presets[data], "alpha": alpha} for data, alpha in PUBLISHED.items()
    }

    alpha: NonNegative = setting(1e5, help="weight of what omega_a gains, in nats", source="Eq. 4, E.3")
    alpha_warmup: Percent = setting(0, help="percent of the rounds, the first ones, without the penalty; ours")
