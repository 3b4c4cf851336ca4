"""What a federated method is: its parts, its objectives, and the few hooks its paper changes.

A run is stages of rounds. A round is one or more exchanges with a cohort of clients. An exchange sends
each client a Down, lets it work through phases, and merges what comes back in the Ups, after phases of
the server's own if there are any. A phase is steps, each of which draws one batch and minimises every
objective on it in turn; or it measures: sums over all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedshift.core.messages import Down, Tensors, Up
from fedshift.core.net import Net, batch_norm_tensors
from fedshift.core.state import Moments
from fedshift.settings.spec import Spec, setting
from fedshift.streams import Draws, Streams

if TYPE_CHECKING:
    from fedshift.core.model import ModelBuilder
    from fedshift.federation.federation import Federation
    from fedshift.federation.samples import Samples

Scope = Literal["shared", "client", "server", "down"]
Terms = dict[str, Tensor]
Replies = Sequence[tuple[int, Up]]  # client ids with their Ups, in id order


class Batch(NamedTuple):
    """One batch of a client: inputs (B, ...) and labels (B,), int64."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, slots=True)
class Context:
    """What an objective may know besides the net and the batch.

    Attributes:
        round: the round within its stage, from 1.
        rounds: how many rounds the stage has.
        received: the Down's tensors as they arrived, by full name; frozen. Empty on the server.
        noise: the draws the objective asked for.
        client: the client's number, int64 of shape (); -1 on the server.
        counts: how many training samples of each class the client has, (classes,), int64; zeros on the server.
        replies: on the server, what the clients of this exchange sent back.
    """

    round: int
    rounds: int
    received: Mapping[str, Tensor]
    noise: Mapping[str, Tensor]
    client: Tensor
    counts: Tensor
    replies: Replies = ()


@dataclass(frozen=True)
class Part:
    """A named module and who may see its tensors.

    ``shared`` tensors are sent, trained and merged; ``client`` ones never leave the client's store;
    ``server`` ones are never sent; ``down`` ones belong to the server, are sent, and frozen on the
    client. ``local`` names tensors of a shared part that stay on the client all the same; so do its batch
    norms where the method keeps those local, unless ``follows_bn`` is False.
    """

    module: nn.Module
    scope: Scope = "shared"
    local: frozenset[str] = frozenset()
    follows_bn: bool = True


def no_draws(spec: ModelBuilder, batch: int) -> Draws:
    """No noise at all."""
    return {}


@dataclass(frozen=True)
class Optimiser:
    """How an objective is minimised where that differs from the experiment's ``[train]``; None: as there.

    ``clip`` is the largest norm of the gradient, over all that the objective moves.
    """

    name: Literal["sgd", "adam"] | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip: float | None = None


@dataclass(frozen=True)
class Objective:
    """A pure loss and the parts it moves.

    ``loss(net, batch, context)`` returns named scalar terms; their sum is minimised, and each is
    recorded. Parts that do not move are fixed and in evaluation mode. It is minimised ``repeats`` times
    on each batch.
    """

    name: str
    loss: Callable[[Net, Batch, Context], Terms]
    moves: tuple[str, ...]
    draws: Callable[[ModelBuilder, int], Draws] = no_draws
    optimiser: Optimiser = Optimiser()
    repeats: int = 1


@dataclass(frozen=True)
class Phase:
    """Steps: each draws one batch and minimises every objective on it, in order.

    Without ``steps``, ``epochs`` or ``batch`` they are what the experiment's ``[train]`` says. On the
    server batches are drawn from the ``samples`` made of the replies; without them the batch is empty, and
    objectives work on the replies and the server's own tensors.
    """

    name: str
    objectives: tuple[Objective, ...]
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    samples: Callable[[Replies], Samples] | None = None


@dataclass(frozen=True)
class Measure:
    """A phase that trains nothing: named tensors, summed over batches that cover every training sample once.

    Parts are in evaluation mode and inputs are not augmented. On the server it is called once, with an
    empty batch.
    """

    name: str
    measure: Callable[[Net, Batch, Context], Tensors]
    draws: Callable[[ModelBuilder, int], Draws] = no_draws


@dataclass(frozen=True)
class LocalWork:
    """A client's net after its phases, from which it makes its reply.

    Attributes:
        after: the trained tensors of every shared part that leaves, by full name.
        own: the client's own tensors, which stay.
        received: the Down it started from.
        measured: the sums of every :class:`Measure`.
        train: the client's training samples, as the stage sees them.
        counts: how many there are of each class, (classes,), int64.
    """

    after: Tensors
    own: Tensors
    received: Down
    measured: Tensors
    train: Samples
    counts: Tensor

    @property
    def samples(self) -> int:
        """How many training samples the client has."""
        return len(self.train)


@dataclass(frozen=True)
class ServerState:
    """Everything the server holds: ``shared`` and ``down`` tensors are sent, ``server`` ones never.

    Attributes:
        shared: what clients train, by full name.
        down: what only the server changes.
        server: what never leaves it.
        moments: optimiser state of the server's own phases that is kept.
        clients: how many clients there are, sampled or not.
        measured: what the server's phases of this exchange measured; empty otherwise.
    """

    shared: dict[str, Tensor]
    down: dict[str, Tensor] = field(default_factory=dict)
    server: dict[str, Tensor] = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    clients: int = 0
    measured: Tensors = field(default_factory=dict)


def no_phases(round: int, rounds: int) -> Sequence[Phase | Measure]:
    """Nothing to do."""
    return ()


def keep_nothing(work: LocalWork) -> Tensors:
    """A client keeps its own tensors as training left them."""
    return {}


@dataclass(frozen=True)
class Exchange:
    """One trip to the clients and back.

    ``keep`` names client tensors that are replaced after the phases. ``server`` are phases of the server
    between the replies and the merge.
    """

    name: str
    phases: Callable[[int, int], Sequence[Phase | Measure]]
    send: Callable[[ServerState, int], Down]
    reply: Callable[[LocalWork], Up]
    merge: Callable[[ServerState, Replies], ServerState]
    keep: Callable[[LocalWork], Tensors] = keep_nothing
    server: Callable[[int, int], Sequence[Phase | Measure]] = no_phases


@dataclass(frozen=True)
class Stage:
    """Rounds that repeat the same exchanges with one cohort each.

    Attributes:
        name: what random streams and records call it.
        rounds: how many rounds.
        exchanges: what a round does, in order.
        participation: the part of the clients sampled in a round, in (0, 1]; None: the experiment's.
        view: the federation as this stage sees it, where clients work on something else than their samples.
        scored: whether models are evaluated.
        keeps: whether clients keep what the stage does to their own tensors and optimiser moments.
    """

    name: str
    rounds: int
    exchanges: tuple[Exchange, ...]
    participation: float | None = None
    view: Callable[[Federation, Streams], Federation] | None = None
    scored: bool = True
    keeps: bool = True


@dataclass(frozen=True, kw_only=True)
class Method(Spec):
    """A federated method. Its fields are its hyper-parameters; a page overrides what its paper changes.

    Attributes:
        presets: published settings, by the data set's name.
        paper: where the method comes from.
    """

    section: ClassVar[str] = "method"
    presets: ClassVar[dict[str, dict[str, object]]] = {}
    paper: ClassVar[str] = ""

    weighting: Literal["uniform", "samples"] = setting(
        "uniform", help="how clients weigh in the average", source="methods differ; all five papers: uniform"
    )
    optimiser_state: Literal["by_scope", "fresh", "kept"] = setting(
        "by_scope",
        help="momentum or Adam moments from round to round; by_scope: fresh for what is shared, kept for what "
        "stays on the client",
        source="methods differ; FedSR's public code keeps them",
    )
    bn: Literal["shared", "local", "reestimate"] = setting(
        "shared",
        help="batch norm: averaged, kept on each client, or averaged with its statistics measured again "
        "on the inputs of whoever is predicted for",
    )

    # What it is made of -------------------------------------------------------------------------

    def parts(self, spec: ModelBuilder) -> dict[str, Part]:
        """The named parts, fresh from their initial values."""
        raise NotImplementedError

    def phases(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """What a sampled client does in round ``round`` (from 1) of ``rounds``."""
        raise NotImplementedError

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities (B, classes) for inputs x (B, ...)."""
        raise NotImplementedError

    def reads(self) -> tuple[str, ...]:
        """The parts that :meth:`predict` reads; what a client keeps of them makes its model its own."""
        return ("encoder", "head")

    def prediction_draws(self, spec: ModelBuilder, batch: int) -> Draws:
        """The noise that :meth:`predict` uses for a batch."""
        return no_draws(spec, batch)

    # How it federates ---------------------------------------------------------------------------

    def federation(self, federation: Federation) -> Federation:
        """The federation it trains on; only references such as pooled training change it."""
        return federation

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The plan of a run of ``rounds`` rounds."""
        return (Stage("train", rounds, (self.exchange("train"),)),)

    def exchange(self, name: str) -> Exchange:
        """The exchange made of this method's own hooks."""
        return Exchange(name, self.phases, self.send, self.reply, self.merge, self.keep, self.server_phases)

    def select(
        self, state: ServerState, clients: Sequence[int], count: int, generator: torch.Generator
    ) -> Sequence[int]:
        """The cohort of a round: ``count`` of the client ids, uniformly, without replacement.

        An id may be given more than once by methods that sample with replacement: it works once, and its
        reply is merged as often.
        """
        order = torch.randperm(len(clients), generator=generator)[:count]
        return [clients[i] for i in order.tolist()]

    def send(self, state: ServerState, client: int) -> Down:
        """What one client receives: every shared and every down tensor."""
        return Down(state.shared | state.down)

    def reply(self, work: LocalWork) -> Up:
        """What a client sends back: its shared tensors, and its sample count where that weighs."""
        weighs = self.weighting == "samples" and work.after
        count = {"samples": torch.tensor(work.samples)} if weighs else {}
        return Up({**work.after, **count})

    def keep(self, work: LocalWork) -> Tensors:
        """The client tensors, by full name, that are replaced after the phases; the rest stays as trained."""
        return keep_nothing(work)

    def server_phases(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """What the server does between the replies and the merge; it may move ``down`` and ``server`` parts."""
        return no_phases(round, rounds)

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The server's next state: the weighted mean of every shared tensor, buffers included."""
        return replace(state, shared=weighted_mean([up for _, up in replies], tuple(state.shared)))

    def reestimates(self, unseen: bool) -> bool:
        """Whether batch-norm statistics are measured again on the inputs that are predicted for."""
        return self.bn == "reestimate"

    def keeps_moments(self, scope: Scope) -> bool:
        """Whether the optimiser moments of tensors of a scope outlive the round."""
        return self.optimiser_state == "kept" or (self.optimiser_state == "by_scope" and scope != "shared")

    def unseen(self, state: ServerState, clients: Sequence[Tensors]) -> Sequence[Tensors]:
        """The client tensors with which a client that never trained is predicted for.

        Several answers mean several models, whose accuracies are averaged. By default one: the mean
        over the clients that have trained.
        """
        return [weighted_mean(clients, tuple(clients[0]))]


def weighted_mean(messages: Sequence[Tensors], names: Sequence[str]) -> dict[str, Tensor]:
    """The mean of the named tensors, weighted by each message's ``samples`` where it carries them.

    Floating tensors are summed in the order given; whole-number buffers (batch counts) take the
    rounded mean.
    """
    weights = [float(message["samples"]) if "samples" in message else 1.0 for message in messages]
    total = sum(weights)
    sums: dict[str, Tensor] = {}
    for message, weight in zip(messages, weights, strict=True):  # one at a time: they may lie on the disk
        for name in names:
            tensor = message[name] if message[name].is_floating_point() else message[name].cpu().double()
            if name in sums:
                sums[name].add_(tensor, alpha=weight / total)
            else:
                sums[name] = tensor * (weight / total)
    first = messages[0]
    return {
        name: value if first[name].is_floating_point() else value.round().to(first[name])
        for name, value in sums.items()
    }


def tensor_scopes(method: Method, parts: Mapping[str, Part]) -> dict[str, Scope]:
    """Who may see each tensor, by full name: a part's scope, less what stays local."""
    scopes: dict[str, Scope] = {}
    for part_name, part in parts.items():
        local = part.local
        if method.bn == "local" and part.scope == "shared" and part.follows_bn:
            local = local | batch_norm_tensors(part.module)
        for name in part.module.state_dict():
            scopes[f"{part_name}.{name}"] = "client" if name in local else part.scope
    return scopes
