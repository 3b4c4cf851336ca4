"""What coordinator and sites agree on before a run starts; no data and no state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from fedshift.clients.preparation import Preparation
from fedshift.core.contract import (
    Bound,
    Category,
    Declared,
    Exchange,
    Objective,
    Part,
    Phase,
    Scope,
    ServerState,
    Stage,
    Upload,
    term_names,
)
from fedshift.core.messages import TERM
from fedshift.core.method import Method, tensor_scopes
from fedshift.core.metrics import check_classes, names, scikit_learn
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net
from fedshift.core.preparation_part import COMMON, PREPARATION, prepared_first
from fedshift.core.tensors import SAMPLES, Tensors, full_name, part_of, weighted_mean
from fedshift.core.training import Evaluate, Train
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.streams import Key, Streams

STEPS = "steps"  # in telemetry: the number of steps
MOST_TERMS = 16  # per objective: telemetry is a few numbers, not data
DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Round:
    """A round of a stage, from 1."""

    stage: Stage
    number: int

    @property
    def key(self) -> tuple[str, int]:
        return (self.stage.name, self.number)


@dataclass(frozen=True, eq=False)
class Declaration:
    """What an exchange declares: the names sent and returned, and type, shape and category of what returns."""

    exchange: Exchange
    sent: tuple[str, ...]
    returned: tuple[str, ...]
    reply: Declared
    categories: dict[str, Category]
    bounds: dict[str, Bound]
    reveals: dict[str, str]
    telemetry: Declared


@dataclass(frozen=True, eq=False)
class Setup:
    """A run without its data."""

    run: str  # the run's name in orders
    method: Method
    model: ModelBuilder  # builds its modules
    parts: Mapping[str, Part]  # the method's parts, with their initial values
    train: Train
    evaluate: Evaluate
    streams: Streams
    device: torch.device  # where tensors live
    classes: tuple[str, ...]  # the classes' names
    # prepares rows of a table, with its part among ``parts``; None: samples are not rows
    preparation: Preparation | None = None
    columns: tuple[str, ...] = ()  # the names of rows' columns; empty if unknown

    def __post_init__(self) -> None:
        """Check what the method declares and which classes settings name; a FedshiftError if these are inconsistent."""
        check_classes(self.evaluate.select, self.classes)
        if self.metrics:
            scikit_learn()  # fail here, not after the first rounds
        self._check_class_weights()
        for name, part in self.parts.items():
            if part.unseen not in ("mean", "initial", "every", *self.parts):
                raise FedshiftError(
                    f"The part '{name}' has unseen = '{part.unseen}': choose 'mean', 'initial', 'every', or the name "
                    "of a shared part."
                )
            if part.each is not None and part.scope != "client":
                raise FedshiftError(
                    f"The part '{name}' is drawn for each client, but its scope is '{part.scope}': give it the scope "
                    "'client', or omit each=."
                )
        for stage in self.stages:
            for exchange in stage.exchanges:
                for upload in exchange.uploads:
                    self._check_reveals(upload)
                for phase in (*exchange.phases, *exchange.server_phases):
                    for objective in phase.objectives if isinstance(phase, Phase) else ():
                        check_terms(objective)

    def _check_class_weights(self) -> None:
        weights = self.train.class_weights
        if isinstance(weights, tuple) and len(weights) != len(self.classes):
            raise FedshiftError(
                f"train.class_weights = {list(weights)}: give {len(self.classes)} weights, one for each class: "
                f"{', '.join(self.classes)}."
            )
        for name in weights if isinstance(weights, dict) else ():
            if name not in self.classes:
                raise UnknownNameError("class in train.class_weights", name, self.classes)

    @property
    def class_weights(self) -> tuple[float, ...] | Literal["none", "balanced"]:
        weights = self.train.class_weights
        return tuple(weights.get(name, 1.0) for name in self.classes) if isinstance(weights, dict) else weights

    def _check_reveals(self, upload: Upload) -> None:
        private = [name for name, part in self.parts.items() if part.scope == "client"]
        if upload.reveals and upload.reveals not in private:
            raise FedshiftError(
                f"The upload '{upload.name}' has reveals = '{upload.reveals}', which is not a part that stays on "
                f"the client ({', '.join(private) or 'there are no such parts'}): name a private part, or nothing."
            )

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of a score's metrics besides accuracy and loss."""
        return names(self.evaluate.metrics, self.classes)

    @property
    def dtype(self) -> torch.dtype:
        """The type of floating tensors between steps; with bfloat16 they are float32."""
        return DTYPES[self.train.precision]

    def typed(self, x: Tensor) -> Tensor:
        """Floating inputs and noise in the run's type."""
        return x.to(self.dtype) if x.is_floating_point() else x

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return self.plan(self.method)

    @property
    def notes_on_rates(self) -> tuple[str, ...]:
        """Notes for readers about learning rates by round."""
        return self.train.notes(max(stage.rounds for stage in self.stages))

    def plan(self, method: Method) -> tuple[Stage, ...]:
        with self.global_draws("plan"):
            return prepared_first(self.preparation, method.stages(self.train.rounds))

    def global_draws(self, purpose: str, *key: Key) -> AbstractContextManager[None]:
        """Seed the global generators for a page's code; see :meth:`Streams.as_global`."""
        return self.streams.as_global(f"global draws in {purpose}", *key, device=self.device)

    def find(self, stage: str, exchange: str) -> tuple[Stage, Exchange]:
        (found,) = (
            (one, each) for one in self.stages for each in one.exchanges if (one.name, each.name) == (stage, exchange)
        )
        return found

    def scored(self, round: Round) -> bool:
        """Whether models are evaluated after a round: periodically within a stage, and after its last round."""
        every, last = self.evaluate.every_in(round.stage.rounds), round.stage.rounds
        due = round.number % every == 0 or round.number == last
        return round.stage.scored and due

    @cached_property
    def individual(self) -> bool:
        """Whether clients may be sent different tensors, so that their models differ."""
        return any(each.send is not None for stage in self.stages for each in stage.exchanges)

    # Tensors ------------------------------------------------------------------------------------

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        return tensor_scopes(self.method, self.parts)

    def initial(self, scope: Scope) -> Tensors:
        return self._starting({name: part.module for name, part in self.parts.items()}, scope)

    def initial_private(self, client: int) -> Tensors:
        """A client's initial private tensors of parts that are drawn per client; a FedshiftError if shapes differ."""
        own, builder = {}, replace(self.model, client=client)
        for name, part in self.parts.items():
            if part.each is not None:
                with self.streams.as_global("initialisation", name, client):
                    own[name] = part.each(builder)
                has, made = (_shapes(module) for module in (part.module, own[name]))
                if has != made:
                    raise FedshiftError(
                        f"The part '{name}' has the tensors {has}, but its each= returns a module with {made}: "
                        "return the same module, with other values."
                    )
        return self._starting(own, "client")

    def _starting(self, modules: Mapping[str, nn.Module], scope: Scope) -> Tensors:
        return Tensors(
            {
                name: tensor.detach().clone().to(self.device, self.kept_as(name, tensor))
                for name, tensor in Net(modules).tensors()
                if self.scopes[name] == scope
            }
        )

    def kept_as(self, name: str, tensor: Tensor) -> torch.dtype:
        """The type in which the run stores and sends the tensor of a full name."""
        return self.dtype if tensor.is_floating_point() and part_of(name) not in (PREPARATION, COMMON) else tensor.dtype

    def unseen(self, state: ServerState, clients: Sequence[Tensors], read: Collection[str]) -> list[Tensors]:
        """For each model, the client tensors that predict for a client that never trained; see :class:`Part`.

        ``clients`` are read one after the other when needed; ``read`` are the parts that a prediction reads.
        """
        sources = {name: self.parts[name].unseen for name in read}
        private = [name for name, scope in self.scopes.items() if scope == "client"]
        averaged = [n for n in private if part_of(n) in {*read, *sources.values()} and self._is_averaged(part_of(n))]
        mean = weighted_mean(clients, averaged) if averaged else Tensors()
        given, known = mean.of_parts(read), state.shared | mean
        for part, source in sources.items():
            if self.parts[part].scope != "client":
                continue
            if source == "initial":
                given |= self.initial("client").of_parts((part,))
            elif source in self.parts:
                given |= mean.of_parts((source,)) | known.of(source).under(part)
        every = {part for part, source in sources.items() if source == "every"}
        return [given | client.of_parts(every) for client in clients] if every else [given]

    def _is_averaged(self, part: str) -> bool:
        return self.parts[part].scope == "shared" or self.parts[part].unseen == "mean"

    # Declarations -------------------------------------------------------------------------------

    def named(self, exchange: Exchange, uploaded: Mapping[str, Tensor]) -> Tensors:
        """Uploads under the names that the exchange declares; see :meth:`Part.state`."""
        declared = self.declaration(exchange).reply
        return Tensors({full_name(name) if full_name(name) in declared else name: t for name, t in uploaded.items()})

    def declaration(self, exchange: Exchange) -> Declaration:
        known = self._declarations.get(id(exchange))
        if known is None or known.exchange is not exchange:
            known = self._declarations[id(exchange)] = self._declare(exchange)
        return known

    @cached_property
    def _declarations(self) -> dict[int, Declaration]:
        return {}

    def _declare(self, exchange: Exchange) -> Declaration:
        always = (name for name, part in self.parts.items() if not part.on_request)
        parts = frozenset(always if exchange.sends is None else exchange.sends)
        sent = [n for n, scope in self.scopes.items() if scope in ("shared", "down") and part_of(n) in parts]
        shared = [name for name in sent if self.scopes[name] == "shared"]
        returned = [name for name in shared if exchange.returns is None or part_of(name) in exchange.returns]
        reply: Declared = {}
        categories: dict[str, Category] = dict.fromkeys(returned, "model update")
        for name in returned:
            like = self.shapes[name]
            reply[name] = (self.kept_as(name, like), tuple(like.shape))
        bounds: dict[str, Bound] = {}
        reveals: dict[str, str] = {}
        for upload in exchange.uploads:
            uploaded = upload.signature(self._uploadable, self.dtype)
            reply |= uploaded
            categories |= dict.fromkeys(uploaded, upload.category)
            if upload.category != "model update":
                whole = (name for name, (dtype, _) in uploaded.items() if not dtype.is_floating_point)
                bounds |= dict.fromkeys(uploaded if upload.category == "count" else whole, upload.bound)
            reveals |= dict.fromkeys(uploaded, upload.reveals) if upload.reveals else {}
        if exchange.counted:
            reply[SAMPLES] = (torch.int64, ())
            categories[SAMPLES] = "count"
            bounds[SAMPLES] = "total"
        telemetry: Declared = {STEPS: (torch.int64, ())}
        telemetry |= {f"{TERM}{name}": (torch.float64, ()) for name in term_names(exchange.phases).values()}
        return Declaration(exchange, tuple(sent), tuple(returned), reply, categories, bounds, reveals, telemetry)

    @cached_property
    def shapes(self) -> Tensors:
        return Tensors(dict(Net({name: part.module for name, part in self.parts.items()}).tensors()))

    @cached_property
    def _uploadable(self) -> Tensors:
        local = [
            n for n, scope in self.scopes.items() if scope == "client" and self.parts[part_of(n)].scope == "shared"
        ]
        return self.shapes.only(self.shapes.keys() - set(local))


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def telemetry_category(name: str) -> Category:
    """Category of a telemetry tensor: step counts are 'count', means of loss terms 'statistic'."""
    return "count" if name == STEPS else "statistic"


def check_terms(objective: Objective) -> None:
    """Raise an error unless an objective has a term in every round, and not too many."""
    terms = objective.terms
    if not 0 < len(terms) <= MOST_TERMS or all(term.since > 1 or term.after > 0 for term in terms.values()):
        raise FedshiftError(
            f"The objective '{objective.name}' has the terms {', '.join(terms) or 'none'}: give it at least one that "
            f"applies from round 1 and has a weight other than 0, and at most {MOST_TERMS}, since their means leave "
            "the client."
        )
