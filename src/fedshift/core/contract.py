"""The values that define a federated method: parts, objectives, phases, exchanges and stages.

A run has stages of rounds; a round has exchanges with a cohort: each client receives a Down, runs phases and replies
with an Up, and the server aggregates, after phases of the server, if any. A phase takes steps, each with one batch on
which every objective is minimised in turn; or it measures: it sums tensors over all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples
from fedshift.core.dropout import dropping
from fedshift.core.messages import Down
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net, holder
from fedshift.core.state import OptimiserState
from fedshift.core.tensors import VALUE, Replies, Tensors, full_name
from fedshift.errors import FedshiftError
from fedshift.streams import Draws, Streams

Scope = Literal["shared", "client", "server", "down"]
Category = Literal["model update", "statistic", "count", "embedding"]
"""What a tensor that leaves a client contains: trained parameters or a gradient; a number or vector
computed from its data, such as a mean; numbers of samples; or samples themselves, as vectors of a network."""
Bound = Literal["total", "each", "steps", "any"]
"""Bound on the counts in a tensor of a client with n training samples. "total": their sum is from 1 to n;
"each": every count is at most n; "steps": at most the client's steps of training; "any": at most n, or the number of
samples in the batches of all its steps."""
Result = TypeVar("Result")


class Batch(NamedTuple):
    """A batch of a client: inputs (B, ...), labels (B,) and, if an objective encodes, their representation.

    Attributes:
        x: inputs.
        y: labels, int64.
        z: the representation (B, d) that the head reads.
        mean: of a probabilistic encoder, the mean of z (B, d).
        sigma: of a probabilistic encoder, the standard deviation of z (B, d).
        environment: one-hot training environment of each sample, (B, environments), in phases that request it.
        weight: weight of each sample in the risk, (B,), with mean 1 over the client's samples; None: all 1.
        made: cache of :meth:`once` during a step; None outside of a step.
    """

    x: Tensor
    y: Tensor = torch.empty(0, dtype=torch.int64)
    z: Tensor = torch.empty(0)
    mean: Tensor | None = None
    sigma: Tensor | None = None
    environment: Tensor = torch.empty(0)
    weight: Tensor | None = None
    made: Any = None

    def once(self, function: Callable[..., Result], *inputs: Any) -> Result:
        """Evaluate a function such as ``batch.once(net.head, batch.z)`` once for all terms of a step."""
        if self.made is None:
            return function(*inputs)
        key = (function, *map(id, inputs))
        if key not in self.made:
            self.made[key] = function(*inputs), inputs  # kept, so that no other object gets their ids
        result: Result = self.made[key][0]
        return result

    def cross_entropy(self, logits: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
        """Cross-entropy of logits (B, classes) with sample weights; (B,) without reduction."""
        if self.weight is None:
            return F.cross_entropy(logits, self.y, reduction=reduction)
        return self.weighted(F.cross_entropy(logits, self.y, reduction="none"), reduction)

    def weighted(self, losses: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
        """Losses (B,) times the sample weights; the mean divides by the batch size, whatever the weights."""
        losses = losses if self.weight is None else self.weight * losses
        if reduction == "none":
            return losses
        return losses.mean() if reduction == "mean" else losses.sum()

    def part(self, rows: slice) -> Batch:
        tensors = {name: tensor for name, tensor in self._asdict().items() if isinstance(tensor, Tensor)}
        return self._replace(**{name: tensor[rows] for name, tensor in tensors.items() if len(tensor)})

    @property
    def features(self) -> Tensor:
        """The representation without noise: the mean of a probabilistic encoder, else z."""
        return self.z if self.mean is None else self.mean

    def __repr__(self) -> str:
        given = {name: tensor for name, tensor in self._asdict().items() if isinstance(tensor, Tensor)}
        return f"Batch({', '.join(f'{name} {tuple(tensor.shape)}' for name, tensor in given.items())})"


class Brief:
    """A value with a short text: its names and numbers, and the lengths of everything else."""

    def __repr__(self) -> str:
        texts = []
        for name, value in vars(self).items():
            if isinstance(value, str | int):
                texts.append(f"{name}={value!r}")
            elif isinstance(value, Sized) and not isinstance(value, Tensor):
                texts.append(f"{name}: {len(value)}")
        return f"{type(self).__name__}({', '.join(texts)})"


@dataclass(frozen=True, repr=False)
class Known(Brief):
    """What a client can read while it works, and afterwards.

    Attributes:
        received: the Down that it started from, by full name; frozen. Empty on the server.
        measured: the sums of each :class:`Measure` so far in this exchange; and ``snapshot.<name>`` of a
            :class:`Phase` with a snapshot.
        counts: the client's training samples of each class, (classes,), int64; zeros on the server.
    """

    received: Tensors
    measured: Tensors
    counts: Tensor


@dataclass(frozen=True, repr=False)
class Context(Known):
    """What an objective can read besides the net and the batch.

    Attributes:
        round: the round within its stage, from 1.
        rounds: number of rounds of the stage.
        noise: the draws that the objective requested.
        client: the client's number, int64 of shape (); -1 on the server.
        replies: on the server, the replies of this exchange's clients.
    """

    round: int
    rounds: int
    noise: Mapping[str, Tensor]
    client: Tensor
    replies: Replies = field(default_factory=Replies)


@dataclass(frozen=True, repr=False)
class Part(Brief):
    """A named module and the scope of its tensors.

    ``shared`` tensors are sent, trained and aggregated; ``client`` tensors never leave the client; ``server`` tensors
    are never sent; ``down`` tensors belong to the server, are sent, and are frozen on the client. Batch norms of a
    shared part stay on the client where the method keeps them local, unless ``follows_bn`` is False. A part that is
    ``on_request`` travels only in exchanges that name it. All clients start with the same ``module`` in a ``client``
    part; with ``each``, a function of a builder, each starts with a module drawn from the seed and its number.

    For a client that never trained, ``unseen`` replaces a ``client`` part: "mean": by the mean over the trained
    clients, as always for local batch norms; "initial": by its initial values; "every": by the part of every client,
    whose accuracies are averaged; or by the shared part of that name. Only a simulation can read what clients keep;
    records mention it.
    """

    module: nn.Module
    scope: Scope = "shared"
    follows_bn: bool = True
    on_request: bool = False
    each: Callable[[ModelBuilder], nn.Module] | None = None
    unseen: str = "mean"

    @classmethod
    def state(cls, tensors: Tensor | Mapping[str, Tensor], scope: Scope, **more: Any) -> Self:
        """Named tensors that are not a layer; a single tensor is called ``value`` and read by the part's name alone."""
        named = {VALUE: tensors} if isinstance(tensors, Tensor) else tensors
        return cls(holder(named), scope, **more)

    @classmethod
    def zeros_like(cls, parts: Mapping[str, Part], scope: Scope) -> Self:
        """A zero tensor for every trainable parameter of some parts, under the same full names."""
        trainable = Net({name: part.module for name, part in parts.items()}).parameters()
        return cls.state({name: torch.zeros_like(parameter) for name, parameter in trainable}, scope)


def no_draws(model: ModelBuilder, batch: int) -> Draws:
    return {}


@dataclass(frozen=True)
class Optimiser:
    """How an objective is minimised, where that differs from the experiment's ``[train]``; None: as there.

    Without a ``name``, momentum and weight decay are also as there; with a name, there is no momentum. ``factor``
    multiplies the rate of ``[train]``, whose schedule then applies. ``clip`` is the largest norm of the gradient over
    all that the objective moves, in addition to the limit of ``[train]``. ``decay`` multiplies the rate after every
    round.
    """

    name: Literal["sgd", "adam"] | None = None
    lr: float | None = None
    factor: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    decay: float = 1.0


@dataclass(frozen=True)
class Term:
    """A term of a loss: a weight times a pure function, ``value(net, batch, context)``, that returns a scalar tensor.

    It applies from round ``since`` of its stage, and once ``after`` percent of the stage's rounds are over. A term of
    weight 0 is excluded from the objective: it is neither computed nor recorded.
    """

    value: Callable[[Net, Batch, Context], Tensor]
    weight: float = 1.0
    since: int = 1
    after: int = 0

    def first(self, rounds: int) -> int:
        """The first round, of a stage of ``rounds``, in which the term applies."""
        return max(self.since, rounds * self.after // 100 + 1)

    def weighted(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The weight times the value; a weight of 1 costs no product."""
        value = self.value(net, batch, context)
        is_scalar = isinstance(value, Tensor) and not value.ndim
        return self.weight * value if is_scalar and not (isinstance(self.weight, float) and self.weight == 1) else value


@dataclass(frozen=True, repr=False)
class Objective(Brief):
    """A loss, which is the sum of named terms, and the parts that it moves.

    The mean of each term over the steps is reported as telemetry and recorded. With ``encode`` the batch is encoded
    first, and terms read ``batch.z``. Parts that do not move are fixed and in evaluation mode. The loss is minimised
    ``repeats`` times on each batch.
    """

    name: str
    terms: Mapping[str, Term] = field(hash=False)
    moves: tuple[str, ...]
    draws: Callable[[ModelBuilder, int], Draws] = no_draws
    optimiser: Optimiser = Optimiser()
    repeats: int = 1
    encode: Callable[[Net, Batch, Mapping[str, Tensor]], Batch] | None = None

    def __post_init__(self) -> None:
        """Exclude terms of weight 0; raise a FedshiftError unless the terms are a mapping from names to terms."""
        given = self.terms.items() if isinstance(self.terms, Mapping) else [("terms", self.terms)]
        for name, term in given:
            if not isinstance(term, Term):
                raise FedshiftError(
                    f"The objective '{self.name}' has {term!r} for '{name}', which is not a term: map names to terms, "
                    'such as {"cross_entropy": Term(self.risk), "proximal": Term(self.proximal, self.mu / 2)}.'
                )
        object.__setattr__(self, "terms", {name: term for name, term in given if term.weight != 0})

    def evaluate(self, net: Net, batch: Batch, context: Context) -> dict[str, Tensor]:
        """The weighted terms of a batch by name; the batch is encoded first."""
        batch = batch._replace(made={})
        with dropping(net.dropouts, context.noise):
            batch = batch if self.encode is None else self.encode(net, batch, context.noise)
            counting = (each for each in self.terms.items() if each[1].first(context.rounds) <= context.round)
            values = {name: term.weighted(net, batch, context) for name, term in counting}
        if batch.made:
            batch.made.clear()  # which may refer to the batch
        return values

    def loss(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return Tensors(self.evaluate(net, batch, context)).sum()


class Epochs(int):
    """A number of passes over a client's samples, in place of a number of steps."""

    def __repr__(self) -> str:
        return f"{int(self)} epochs"


def lasting(count: int, unit: Literal["steps", "epochs"]) -> int:
    """The value of :attr:`Phase.steps` for a number of steps or epochs."""
    return Epochs(count) if unit == "epochs" else count


@dataclass(frozen=True, repr=False)
class Batches(Brief):
    """A name, which keys streams and records, and the number and size of batches.

    None means as in the experiment's ``[train]``, but a :class:`Measure` without ``steps`` covers all samples.
    """

    name: str
    steps: int | None = field(default=None, kw_only=True)
    batch: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, repr=False)
class Phase(Batches):
    """Steps, or :class:`Epochs`: each step draws one batch and minimises every objective on it, in order.

    On the server, ``samples`` computes what batches are drawn from; without it the batch is empty, and objectives work
    on replies, the server's tensors and noise for ``batch`` samples. With ``snapshot``, the client's shared tensors
    after a step are measured; the step is drawn for the round, the same for clients with equally many. With
    ``environments``, batches contain each sample's environment.
    """

    objectives: tuple[Objective, ...]
    samples: Callable[[Replies], Samples] | None = None
    snapshot: bool = False
    environments: bool = False


@dataclass(frozen=True, repr=False)
class Measure(Batches):
    """A phase without training: named tensors, summed over batches that cover every training sample once.

    With ``steps`` it sums over that many batches, drawn as in training but in an order of the round, so that training's
    batches do not change. Parts are in evaluation mode, inputs are not augmented, and ``batch.z`` is empty: a measure
    of representations calls ``self.encode(net, batch, {}).z``. On the server it is called once,
    with an empty batch: tensors under the full name of a ``down`` or ``server`` tensor replace it, and scalars are
    recorded.
    """

    measure: Callable[[Net, Batch, Context], Mapping[str, Tensor]]
    draws: Callable[[ModelBuilder, int], Draws] = no_draws


Phases = tuple[Phase | Measure, ...]


def term_names(phases: Phases) -> dict[tuple[str, str, str], str]:
    """The recorded name of each loss term's mean: the term's, prefixed by objective or phase if it is taken."""
    names: dict[tuple[str, str, str], str] = {}
    for phase in phases:
        if isinstance(phase, Measure):
            continue
        earlier, own = set(names.values()), set[str]()
        for objective in phase.objectives:
            for term in objective.terms:
                name = term if term not in own else f"{objective.name}.{term}"
                own.add(name)
                names[phase.name, objective.name, term] = name if name not in earlier else f"{phase.name}.{name}"
    return names


@dataclass(frozen=True, repr=False)
class LocalWork(Known):
    """What a client has after its phases; its reply and its next state are computed from it.

    Attributes:
        trained: the current tensors of every shared part that was received, by full name.
        private: the client's private tensors, which stay.
        train: the client's training samples, as the stage sees them.
        steps: number of training steps taken.
        lr: the learning rate of ``[train]`` in this round.
        seen: number of samples behind each sum in ``measured``, by name.
    """

    trained: Tensors
    private: Tensors
    train: Samples
    steps: int
    lr: float
    seen: Mapping[str, int] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of the client's training samples."""
        return len(self.train)

    @property
    def means(self) -> Tensors:
        """The measured sums, divided by their numbers of samples."""
        return Tensors({name: self.measured[name] / seen for name, seen in self.seen.items()})


@dataclass(frozen=True, repr=False)
class ServerState(Brief):
    """Everything that the server stores: ``shared`` and ``down`` tensors are sent, ``server`` tensors never.

    Attributes:
        shared: what clients train, by full name.
        down: what only the server changes.
        server: what never leaves the server.
        optimisers: stored optimiser state of the server's phases.
        clients: number of clients, sampled or not.
        round: the current or last round within its stage, from 1; 0 before the first.
    """

    shared: Tensors = field(default_factory=Tensors)
    down: Tensors = field(default_factory=Tensors)
    server: Tensors = field(default_factory=Tensors)
    optimisers: OptimiserState = field(default_factory=dict)
    clients: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        for scope in ("shared", "down", "server"):
            object.__setattr__(self, scope, Tensors(getattr(self, scope)))

    @property
    def tensors(self) -> Tensors:
        return self.shared | self.down | self.server

    def updated(self, tensors: Mapping[str, Tensor]) -> Self:
        """The state with some tensors replaced, each in its scope; an unknown name is a KeyError."""
        known = frozenset(self.tensors)
        tensors = {full_name(name) if full_name(name) in known else name: tensor for name, tensor in tensors.items()}
        unknown = tensors.keys() - known
        if unknown:
            raise KeyError(f"The server has no tensor '{min(unknown)}'.")
        shared, down, server = (
            Tensors({name: tensors.get(name, tensor) for name, tensor in scope.items()})
            for scope in (self.shared, self.down, self.server)
        )
        return replace(self, shared=shared, down=down, server=server)


Declared = dict[str, tuple[torch.dtype, tuple[int | None, ...]]]
"""Type and shape of tensors by name; None: any length."""


@dataclass(frozen=True)
class Upload:
    """Tensors that a reply carries besides parts, declared so that an answer can be checked.

    ``Upload("pairs", (None, 2, 8))`` is a floating tensor whose first dimension has any length; :meth:`like` declares
    the tensors of a part under another name, :meth:`row` a row of a part's tensor ``value``. ``reveals`` names the
    private part that can be computed from the upload, if any. Whole numbers that are no model update are counts within
    ``bound``.
    """

    name: str
    shape: tuple[int | None, ...] | None = ()
    part: str = ""
    dtype: torch.dtype | None = None  # None: the run's floating type
    category: Category = "statistic"
    reveals: str = ""
    bound: Bound = "any"

    @classmethod
    def like(
        cls, name: str, part: str, category: Category = "model update", reveals: str = "", bound: Bound = "any"
    ) -> Self:
        """Every tensor of a part that leaves the client, named ``name.<its name in the part>``."""
        return cls(name, None, part, category=category, reveals=reveals, bound=bound)

    @classmethod
    def row(cls, name: str, part: str, category: Category = "statistic") -> Self:
        """A tensor with the shape of a row of a part that is a single tensor."""
        return cls(name, (), part, category=category)

    def signature(self, tensors: Tensors, floating: torch.dtype) -> Declared:
        """Type and shape of each tensor, from the initial tensors (without local batch norms) and the floating type."""
        if self.shape is None:
            like = tensors.of(self.part).under(self.name)
            return {name: (floating if t.is_floating_point() else t.dtype, tuple(t.shape)) for name, t in like.items()}
        shape = tuple(tensors[self.part].shape[1:]) if self.part else self.shape
        return {self.name: (self.dtype or floating, shape)}


def leave(state: ServerState, replies: Replies) -> ServerState:
    """Aggregate nothing: the server keeps its state."""
    return state


Select = Callable[[ServerState, Sequence[int], int, torch.Generator], Sequence[int]]


def uniform(state: ServerState, clients: Sequence[int], count: int, generator: torch.Generator) -> Sequence[int]:
    """Sample ``count`` of the client ids uniformly, without replacement."""
    order = torch.randperm(len(clients), generator=generator)[:count]
    return [clients[i] for i in order.tolist()]


@dataclass(frozen=True, repr=False)
class Exchange(Brief):
    """One broadcast to the clients and their replies.

    Attributes:
        name: its name in messages and records.
        phases: the work of a client.
        merge: the server's next state; by default the state that it has.
        sends: the parts whose shared and down tensors a client receives; None: all that are not ``on_request``.
        returns: the shared parts among them that a reply carries; None: all.
        uploads: what a reply carries besides, computed by ``upload``, which may also replace a returned tensor.
        counted: whether a reply contains the client's number of samples, by which means are then weighted.
        send: tensors that a client receives in place of the server's.
        begin: tensors with which a client starts instead, from what it keeps and what it received.
        upload: computes the ``uploads``.
        keep: client tensors, by full name, that are replaced after the phases; the rest stays as trained.
        server_phases: phases of the server between replies and aggregation; they may move ``down`` and ``server``
            parts.
        select: samples a cohort, from the server's state, the clients' ids, the cohort's size and a generator. The
            round's cohort is the first exchange's, by default :func:`uniform`; later exchanges may sample another.
            A client that is sampled twice trains once, and its reply counts twice.
    """

    name: str
    phases: Phases = ()
    merge: Callable[[ServerState, Replies], ServerState] = leave
    sends: tuple[str, ...] | None = None
    returns: tuple[str, ...] | None = None
    uploads: tuple[Upload, ...] = ()
    counted: bool = False
    send: Callable[[ServerState, int], Mapping[str, Tensor]] | None = None
    begin: Callable[[Tensors, Down], Mapping[str, Tensor]] | None = None
    upload: Callable[[LocalWork], Mapping[str, Tensor]] | None = None
    keep: Callable[[LocalWork], Mapping[str, Tensor]] | None = None
    server_phases: Phases = ()
    select: Select | None = None


@dataclass(frozen=True, repr=False)
class Stage(Brief):
    """Rounds that repeat the same exchanges, each round with one cohort.

    Attributes:
        name: its name in random streams and records.
        rounds: number of rounds.
        exchanges: the exchanges of a round, in order.
        participation: the part of the clients sampled in a round, in (0, 1]; None: the experiment's.
        view: maps the federation to what this stage's clients work on, if that is not their samples.
        scored: whether models are evaluated, and clients store this stage's changes of private tensors and
            optimisers.
    """

    name: str
    rounds: int
    exchanges: tuple[Exchange, ...]
    participation: float | None = None
    view: Callable[[FederatedData, Streams], FederatedData] | None = None
    scored: bool = True

    @property
    def training(self) -> Exchange:
        """The last exchange that trains, with whose Down models are built; if none trains, the last one."""
        trains = (each for each in reversed(self.exchanges) if any(isinstance(one, Phase) for one in each.phases))
        return next(trains, self.exchanges[-1])
