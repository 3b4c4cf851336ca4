"""FedPIN: personalised invariant learning, with the global invariant features as anchor.

Tang et al., Causally motivated personalized federated invariant learning with shortcut-averse
information-theoretic regularization, ICML 2024. Global objective: Eq. 4 and Proposition 4.2; local
objective: Eq. 7 and Proposition 4.6; schedule: Algorithm 1; settings: Appendix E.3.

With R the cross-entropy, Phi an encoder and omega a head, a round at client u is

1. ``shortcut``, K steps: Psi_u, omega_psi minimise R(omega_psi(Psi_u));
2. ``personal``, K steps: Phi_u, omega_u minimise R(omega_u(Phi_u)) + lam * L_con + gamma * Var(Phi_u(x)), where
   L_con = -log(e^{s(Phi_u(x), Phi_g(x))} / (e^{s(Phi_u(x), Phi_g(x))} + sum_{x' in B} e^{s(Phi_u(x), Psi_u(x'))})),
   s = cosine / temperature, Phi_g as received and Psi_u fixed;
3. ``global``, R steps of (1 + alpha) R(omega_g(Phi_g)) - alpha R(omega_a(Phi_g, u)).

Phi_g and omega_g are averaged, all that is u's own stays, and u predicts with omega_u(Phi_u).

Choices, where the paper leaves something open:

- ``auxiliary``: Proposition 4.2 needs the minimum over omega_a of R(omega_a), so in each step omega_a first
  descends on R(omega_a) ("minimise"), then Phi_g and omega_g move with omega_a fixed. Read to the letter,
  Algorithm 1 lets all three descend on the same loss, and omega_a ascend on R(omega_a) ("literal").
- ``auxiliary_head``: omega_a must let z and u interact; a linear layer on [z || one-hot u] adds a bias a client
  only. "per_client" is a linear head of each client, which only that client can move: averaging would shrink
  its progress, so it stays there. "mlp" reads [z || one-hot u] and is averaged, except for the one-hot's weights:
  those of client u are u's if it took part, else unchanged.
- The difference of the two losses is taken sample by sample before alpha multiplies it: between two means
  that alpha has multiplied, 32 bits leave little of it. With ``alpha_warmup`` alpha rises linearly from 0.
- Batch statistics: what a step moves is in training mode, the rest in evaluation mode, Phi_g as an anchor too.
- Var is the sum over dimensions of the biased batch variance; temperature 0.5.
- ``start``: Phi_u and Psi_u start from the values that Phi_g starts from, or from draws of their own. It is
  Phi_g of round 1 whenever the client first takes part.
- ``unit``: K and R are called steps in Algorithm 1, K epochs in E.3.
- A client that never trained is predicted for with the global model, and the mean is uniform.
- A term whose weight is 0 is left out with all that only it needs: with alpha = 0 there is no omega_a, with
  lam = 0 neither Psi_u nor the shortcut phase. With alpha = lam = gamma = 0 it is FedAvg beside local training.

The paper trains everything by Adam at one learning rate, 1e-4 (PACS: 1e-2): ``[train] optimiser = "adam"``. Plain SGD
at usual rates diverges under such an alpha. :class:`GlobalModel`, :class:`FineTuned` and :class:`Anchored` are the rows
GM, GM-FT and GM-L2 of Table 2; lam = 0 and gamma = 0 are its other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.catalogue import Count, NonNegative, Positive, Range, WholeNumber, setting
from fedshift.core.contract import (
    Batch,
    Context,
    LocalWork,
    Measure,
    Objective,
    Optimiser,
    Part,
    Phase,
    Replies,
    ServerState,
    Stage,
    Terms,
)
from fedshift.core.messages import Tensors, Up
from fedshift.core.net import Net
from fedshift.errors import FedshiftError
from fedshift.methods.fedavg import FedAvg
from fedshift.models.model import ModelSpec

BY_OWNER = "auxiliary.first.weight"  # its last columns are the clients' own
PERSONAL = {"personal_encoder": "encoder", "personal_head": "head"}  # and the part of the global model it stands for


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


def contrast(personal: Tensor, anchor: Tensor, shortcut: Tensor, temperature: float) -> Tensor:
    """L_con (Proposition 4.6), mean over the batch.

    Args:
        personal: Phi_u(x), (B, d).
        anchor: Phi_g(x), (B, d): row i is the positive of row i.
        shortcut: Psi_u(x'), (B', d): every row is a negative of every row.
        temperature: tau, above 0.
    """
    z = F.normalize(personal, dim=1)
    positive = (z * F.normalize(anchor, dim=1)).sum(dim=1, keepdim=True) / temperature
    negative = z @ F.normalize(shortcut, dim=1).T / temperature
    return (torch.cat([positive, negative], dim=1).logsumexp(dim=1, keepdim=True) - positive).mean()


def total_variance(z: Tensor) -> Tensor:
    """Var(z): the biased variance over the batch z (B, d), summed over dimensions."""
    return z.var(dim=0, correction=0).sum()


@dataclass(frozen=True, kw_only=True)
class GlobalModel(FedAvg):
    """FedPIN's global invariant model alone (GM): FedAvg whose features tell nothing of the client beyond y."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Eq. 4 and Table 2 (GM)"
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
        0, help="rounds until alpha, rising linearly from 0 in round 1, is reached; 0: at once"
    )
    global_steps: Count = setting(10, help="R: local steps of the global model a round", source="Alg. 1, E.3")
    unit: Literal["steps", "epochs"] = setting("steps", help="what a phase's steps count", source="Alg. 1; E.3")
    auxiliary: Literal["minimise", "literal"] = setting(
        "minimise",
        help="omega_a descends on its own risk, or on the loss of Phi_g, which makes it ascend",
        source="Prop. 4.2; Alg. 1",
    )
    auxiliary_head: Literal["per_client", "mlp"] = setting(
        "per_client", help="omega_a: a linear head of each client, which stays there, or an MLP on z and the client"
    )
    auxiliary_hidden: Count = setting(64, help="hidden units of omega_a as an MLP")
    auxiliary_steps: Count = setting(1, help="steps of omega_a on each batch before Phi_g moves")
    auxiliary_lr: Positive | None = setting(None, help="learning rate of omega_a; by default that of [train]")

    def __post_init__(self) -> None:
        """Refuse settings of omega_a's own descent where it has none.

        Raises:
            FedshiftError: ``auxiliary_steps`` or ``auxiliary_lr`` beside ``auxiliary = "literal"``.
        """
        super().__post_init__()
        if self.auxiliary == "literal" and (self.auxiliary_steps != 1 or self.auxiliary_lr is not None):
            raise FedshiftError(
                f"method.auxiliary_steps = {self.auxiliary_steps} and auxiliary_lr = {self.auxiliary_lr} need an "
                "omega_a that descends for itself: set auxiliary = 'minimise', or leave them out."
            )

    def parts(self, spec: ModelSpec) -> dict[str, Part]:
        """Phi_g and omega_g, and omega_a where alpha weighs; per client it starts as omega_g."""
        parts = super().parts(spec)
        if self.alpha == 0:
            return parts
        if self.auxiliary_head == "per_client":
            return {**parts, "auxiliary": Part(spec.head(), "client")}
        sizes = (spec.dim, spec.clients, self.auxiliary_hidden, spec.classes)
        return {**parts, "auxiliary": Part(spec.initialised("auxiliary", lambda: ClientMLP(*sizes)))}

    def phases(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """The global phase."""
        return (self.phase("global", self.global_steps, *self.game()),)

    def phase(self, name: str, count: int, *objectives: Objective) -> Phase:
        """``count`` steps or epochs, as ``unit`` says."""
        if self.unit == "epochs":
            return Phase(name, objectives, epochs=count)
        return Phase(name, objectives, steps=count)

    def game(self) -> tuple[Objective, ...]:
        """What a step of the global phase minimises, in order."""
        if self.alpha > 0 and self.auxiliary == "literal":
            return (Objective("global", self.loss, (*self.moves(), "auxiliary"), self.draws),)
        model = Objective("global", self.loss, self.moves(), self.draws)
        if self.alpha == 0:
            return (model,)
        own = Optimiser(lr=self.auxiliary_lr)
        omega_a = Objective(
            "auxiliary", self.auxiliary_loss, ("auxiliary",), optimiser=own, repeats=self.auxiliary_steps
        )
        return (omega_a, model)

    def auxiliary_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_a(sg(Phi_g), u))."""
        z = net.frozen("encoder", {}, batch.x)
        return {"auxiliary": F.cross_entropy(self.auxiliary_logits(net, z, context), batch.y)}

    def auxiliary_logits(self, net: Net, z: Tensor, context: Context) -> Tensor:
        """omega_a(z, u), (B, classes), of z (B, d) at the client at work."""
        arguments = (z,) if self.auxiliary_head == "per_client" else (z, context.client)
        logits: Tensor = net.auxiliary(*arguments)
        return logits

    def loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_g(Phi_g)) + alpha * (R(omega_g(Phi_g)) - R(omega_a(Phi_g, u))), the global objective of client u."""
        if self.alpha == 0:
            return super().loss(net, batch, context)
        z = self.features(net, batch.x)
        risk = F.cross_entropy(net.head(z), batch.y, reduction="none")
        informed = F.cross_entropy(self.auxiliary_logits(net, z, context), batch.y, reduction="none")
        return {"cross_entropy": risk.mean(), "invariance": self.alpha_at(context.round) * (risk - informed).mean()}

    def alpha_at(self, round: int) -> float:
        """Alpha in a round, from 1."""
        return self.alpha * min(1.0, (round - 1) / self.alpha_warmup) if self.alpha_warmup else self.alpha

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean; of omega_a's weights on the one-hot u, the column of each client is that client's own."""
        merged = super().merge(state, replies)
        if BY_OWNER not in state.shared:
            return merged
        weight = merged.shared[BY_OWNER]
        z_columns = weight.shape[1] - state.clients
        weight[:, z_columns:] = state.shared[BY_OWNER][:, z_columns:]
        for client, up in replies:
            weight[:, z_columns + client] = up[BY_OWNER][:, z_columns + client]
        return merged


@dataclass(frozen=True, kw_only=True)
class Personalised(GlobalModel):
    """The global model, and beside it a personal model of each client, which predicts for that client."""

    personal_steps: Count = setting(10, help="K: steps of each model of the client's own a round", source="Alg. 1, E.3")
    start: Literal["global", "own"] = setting(
        "global", help="a client's own encoders start from the global one's initial values, or draws of their own"
    )

    def parts(self, spec: ModelSpec) -> dict[str, Part]:
        """The global parts, and Phi_u and omega_u."""
        return {**super().parts(spec), **self.own_model(spec, "personal")}

    def own_model(self, spec: ModelSpec, role: str) -> dict[str, Part]:
        """An encoder and a head that stay on the client."""
        if self.start == "global":
            encoder, head = spec.encoder(), spec.head()
        else:
            encoder = spec.initialised(f"{role} encoder", lambda: spec.model.encoder(spec.shape, spec.dim))
            head = spec.initialised(f"{role} head", lambda: nn.Linear(spec.dim, spec.classes))
        return {f"{role}_encoder": Part(encoder, "client"), f"{role}_head": Part(head, "client")}

    def phases(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """The personal phase, with the global model as received, then the global one."""
        personal = Objective("personal", self.personal_loss, tuple(PERSONAL))
        return (self.phase("personal", self.personal_steps, personal), *super().phases(round, rounds))

    def personal_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """What Phi_u and omega_u minimise."""
        raise NotImplementedError

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of omega_u(Phi_u(x))."""
        logits: Tensor = net.personal_head(net.personal_encoder(x))
        return logits.log_softmax(dim=1)

    def unseen(self, state: ServerState, clients: Sequence[Tensors]) -> Sequence[Tensors]:
        """The global model in the personal one's place."""
        return [_standing_in(PERSONAL, state, own) for own in super().unseen(state, clients)]


def _standing_in(places: Mapping[str, str], state: ServerState, own: Tensors) -> dict[str, Tensor]:
    """``own`` with the tensors of some parts replaced by those of the shared parts that are named for them."""
    known = {**own, **state.shared}  # batch norms of a shared part may be the client's own
    stand_ins = {
        name: known[f"{places[part]}.{tensor}"]
        for name in own
        for part, _, tensor in [name.partition(".")]
        if part in places
    }
    return {**own, **stand_ins}


@dataclass(frozen=True, kw_only=True)
class FedPIN(Personalised):
    """A personal model near the global invariant features and far from what the client's shortcut model sees."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Algorithm 1"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "colored-mnist": {"alpha": 1e5, "lam": 10.0, "gamma": 6e-6},
        "colored-fashion-mnist": {"alpha": 1e5, "lam": 10.0, "gamma": 6e-6},
        "waterbird": {"alpha": 3e4, "lam": 9.0, "gamma": 4e-6},
        "pacs": {"alpha": 1e4, "lam": 3.0, "gamma": 1e-5},
    }

    lam: NonNegative = setting(
        10.0, help="weight of the contrast L_con", source="Eq. 7, E.3", search=Range(0.1, 30, log=True)
    )
    gamma: NonNegative = setting(
        6e-6, help="weight of Var(Phi_u(X))", source="Eq. 7, E.3", search=Range(1e-7, 1e-3, log=True)
    )
    temperature: Positive = setting(0.5, help="tau of the contrast; not in the paper", search=(0.1, 0.5, 1.0))

    def parts(self, spec: ModelSpec) -> dict[str, Part]:
        """The global and the personal parts, and Psi_u and omega_psi where the contrast weighs."""
        return {**super().parts(spec), **(self.own_model(spec, "shortcut") if self.lam > 0 else {})}

    def phases(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """Shortcut, personal, global."""
        later = super().phases(round, rounds)
        if self.lam == 0:
            return later
        objective = Objective("shortcut", self.shortcut_loss, ("shortcut_encoder", "shortcut_head"))
        return (self.phase("shortcut", self.personal_steps, objective), *later)

    def shortcut_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_psi(Psi_u)): plain training, which takes the shortcut."""
        return {"shortcut": F.cross_entropy(net.shortcut_head(net.shortcut_encoder(batch.x)), batch.y)}

    def personal_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_u(Phi_u)) + lam * L_con + gamma * Var (Eq. 7); a term whose weight is 0 is left out."""
        z = net.personal_encoder(batch.x)
        terms = {"personal": F.cross_entropy(net.personal_head(z), batch.y)}
        if self.lam > 0:
            anchor = net.frozen("encoder", context.received, batch.x)
            shortcut = net.frozen("shortcut_encoder", {}, batch.x)
            terms["contrast"] = self.lam * contrast(z, anchor, shortcut, self.temperature)
        if self.gamma > 0:
            terms["variance"] = self.gamma * total_variance(z)
        return terms


@dataclass(frozen=True, kw_only=True)
class Anchored(Personalised):
    """GM-L2: a personal model held near the global invariant model's parameters, without a shortcut model.

    Choices: mu is not in the paper; batch-norm parameters that stay on the client are not held.
    """

    paper: ClassVar[str] = "Tang et al., ICML 2024, Table 2 (GM-L2)"

    mu: NonNegative = setting(
        1.0, help="weight of mu/2 ||theta_u - theta_g||^2; not in the paper", search=Range(1e-3, 10, log=True)
    )

    def personal_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(theta_u) + mu/2 ||theta_u - theta_g||^2, with theta_g as received."""
        terms = {"personal": F.cross_entropy(net.personal_head(net.personal_encoder(batch.x)), batch.y)}
        if self.mu == 0:
            return terms
        stands_for = {
            f"{own}.{name.partition('.')[2]}": tensor
            for own, part in PERSONAL.items()
            for name, tensor in context.received.items()
            if name.startswith(f"{part}.")
        }
        drift = [(w - stands_for[name]).square().sum() for name, w in net.parameters(stands_for)]
        return {**terms, "anchor": self.mu / 2 * torch.stack(drift).sum()}


class Tuned(nn.Module):
    """A client's copy of the global model, kept and not trained in place; ``done`` is 0 until there is one."""

    done: Tensor

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.register_buffer("done", torch.zeros(()))
        self.requires_grad_(False)

    def forward(self, x: Tensor, otherwise: Tensor) -> Tensor:
        """The copy's logits (B, classes) of inputs x (B, ...), or the logits given where there is no copy yet."""
        return torch.where(self.done > 0, self.head(self.encoder(x)), otherwise)


@dataclass(frozen=True, kw_only=True)
class FineTuned(GlobalModel):
    """GM-FT: the global invariant model, then every client tunes a copy of its own once.

    The last stage, ``finetune``, is one round with everyone, of which nothing is sent back. A client predicts with its
    copy once it has one, and with the global model before. Choices: plain cross-entropy, 50 steps at the rate of
    training (the paper gives neither).
    """

    paper: ClassVar[str] = "Tang et al., ICML 2024, Table 2 (GM-FT)"

    finetune_steps: Count = setting(50, help="steps of fine-tuning, as 'unit' counts them; not in the paper")
    finetune_lr: Positive | None = setting(None, help="learning rate of fine-tuning; by default that of [train]")

    def parts(self, spec: ModelSpec) -> dict[str, Part]:
        """The global parts and the place of the client's copy."""
        return {**super().parts(spec), "tuned": Part(Tuned(spec.encoder(), spec.head()), "client")}

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """Training, then one round of fine-tuning with everyone."""
        finetune = replace(
            self.exchange("finetune"),
            phases=self.tuning,
            reply=self.reply_nothing,
            merge=self.leave,
            keep=self.keep_copy,
        )
        return (*super().stages(rounds), Stage("finetune", 1, (finetune,), participation=1.0))

    def tuning(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """Plain training of the global model as received."""
        own = Optimiser(lr=self.finetune_lr)
        return (
            self.phase(
                "finetune", self.finetune_steps, Objective("finetune", self.tuning_loss, self.moves(), optimiser=own)
            ),
        )

    def tuning_loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """R(omega_g(Phi_g))."""
        return FedAvg.loss(self, net, batch, context)

    def reply_nothing(self, work: LocalWork) -> Up:
        """The tuned copy stays."""
        return Up({})

    def leave(self, state: ServerState, replies: Replies) -> ServerState:
        """The server keeps what it has."""
        return state

    def keep_copy(self, work: LocalWork) -> Tensors:
        """The tuned model as the client's copy."""
        trained = {**work.own, **work.after}
        names = [name for name in work.own if name.startswith("tuned.") and name != "tuned.done"]
        copy = {name: trained[name.removeprefix("tuned.")] for name in names}
        return {**copy, "tuned.done": torch.ones_like(work.own["tuned.done"])}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the client's copy, or of the global model."""
        logits: Tensor = net.tuned(x, net.head(self.features(net, x)))
        return logits.log_softmax(dim=1)

    def unseen(self, state: ServerState, clients: Sequence[Tensors]) -> Sequence[Tensors]:
        """The global model: no copy."""
        return [{**own, "tuned.done": torch.zeros_like(own["tuned.done"])} for own in super().unseen(state, clients)]
