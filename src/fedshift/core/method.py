"""The base of every method: the hooks that a page may override, with FedAvg's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from torch import Tensor

from fedshift.catalogue import From, built_in
from fedshift.clients.federated import FederatedData
from fedshift.core.contract import (
    Batch,
    Exchange,
    Objective,
    Part,
    Phase,
    Phases,
    Scope,
    ServerState,
    Stage,
    Term,
    Upload,
    leave,
    no_draws,
)
from fedshift.core.dropout import from_streams
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net, batch_norm_tensors
from fedshift.core.servers import SERVERS
from fedshift.core.servers.server import Mean, ServerOptimiser
from fedshift.core.tensors import Replies
from fedshift.core.training import Train
from fedshift.errors import FedshiftError
from fedshift.spec import Spec, setting
from fedshift.streams import Draws

HOOKS = ("merge", "uploads", "upload", "send", "begin", "keep", "select")
"""Fields of :class:`Exchange` that a page defines by a method, or an attribute, of the same name."""


class Prepared(Protocol):
    """The separate result of a method's stages before training."""

    @property
    def summary(self) -> tuple[str, ...]:
        """A few lines of text."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers."""

    @property
    def cosines(self) -> Mapping[str, Tensor]:
        """Similarity of clients: matrices (K, K) of cosines, by the name of what is compared."""

    def write(self, folder: Path) -> list[Path]:
        """Write it into a folder, and return the files."""


class Preparing(Protocol):
    """The settings of a method's stages before training."""

    def check(self, federated: FederatedData) -> None:
        """Raise an error if these clients do not permit it."""

    def prepared(self, federated: FederatedData, state: ServerState, messages: dict[str, Any]) -> Prepared:
        """The result of those stages, from the server's state and their messages."""

    def notes(self, state: ServerState) -> tuple[str, ...]:
        """Notes for readers of the results."""


class Method(Spec):
    """The base class of all methods. Derive from ``FedAvg`` or :class:`fedshift.page.Averaging` to write a method.

    Attributes:
        common: settings that keep their values when another method is chosen.
        presets: published settings, by the data set's name.
        paper: the method's source.
    """

    section: ClassVar[str] = "method"
    common: ClassVar[tuple[str, ...]] = ("weighting", "optimiser_state", "bn")
    presets: ClassVar[dict[str, dict[str, object]]] = {}
    paper: ClassVar[str] = ""
    our_form: ClassVar[bool] = False  # what the paper leaves open decides the results: tables mark it

    @property
    def core(self) -> Averaging:
        """The method that trains: this one, or the ``base`` that it wraps."""
        core = getattr(self, "base", self)
        assert isinstance(core, Averaging)
        return core

    @property
    def label(self) -> str:
        """Its name in notes."""
        return type(self).__name__

    @classmethod
    def published(cls) -> dict[str, dict[str, object]]:
        """The presets, without settings that this class fixes."""
        known = cls.settings()
        return {data: {key: preset[key] for key in preset if key in known} for data, preset in cls.presets.items()}

    @classmethod
    def cited(cls) -> str:
        """The method's source; a user's subclass does not inherit it."""
        return cls.paper if built_in(cls) else str(vars(cls).get("paper", ""))

    @property
    def prepares(self) -> Preparing | None:
        """The settings of a separate result that is computed before training, if any."""
        return None

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The named parts with their initial values."""
        raise NotImplementedError

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The stages of a run of ``rounds`` rounds."""
        raise NotImplementedError

    def regroup(self, federated: FederatedData) -> FederatedData:
        """The clients and environments of its runs; only references such as pooled training change them."""
        if self.prepares is not None:
            self.prepares.check(federated)
        return federated

    def notes(self, state: ServerState) -> tuple[str, ...]:
        """Notes for readers about the server's final state, such as an uninformative index."""
        return () if self.prepares is None else self.prepares.notes(state)


class Averaging(Method):
    """A method whose server averages what clients trained; its fields are its hyper-parameters.

    A page overrides what its paper changes.

    Attributes:
        uploads: what a reply carries besides parts, computed by a method ``upload``.
    """

    uploads: ClassVar[tuple[Upload, ...]] = ()

    weighting: Literal["uniform", "samples"] = setting(
        "uniform", help="weights of clients in the average", source="methods differ; all five papers: uniform"
    )
    optimiser_state: Literal["fresh", "kept"] = setting(
        "fresh",
        help="momentum or Adam moments of a client's training: reset in every round, or kept from round to round",
        source="methods differ; FedSR's public code keeps them",
    )
    bn: Literal["shared", "local", "statistics", "reestimate"] = setting(
        "shared",
        help="batch norm: averaged; kept on each client, whole or only its statistics; or averaged with its "
        "statistics measured again on the inputs to predict",
    )
    server: Annotated[ServerOptimiser, From(SERVERS)] = setting(
        "mean",
        help="the clients' mean is the next model, or a direction for the server's optimiser",
        source="Reddi et al., ICLR 2021, Algorithm 1",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self).merge is not Averaging.merge and not isinstance(self.server, Mean):
            raise FedshiftError(
                f"method.server = '{SERVERS.name_of(self.server)}' is not for {self.label}, which computes no mean: "
                "leave it at 'mean'. A page that only adds to the mean overrides after_mean."
            )

    # Model and loss -----------------------------------------------------------------------------

    def moves(self) -> tuple[str, ...]:
        """The parts that local training moves."""
        raise NotImplementedError

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with its representation ``z``; without noise, z is the mean of a probabilistic encoder."""
        raise NotImplementedError

    def terms(self) -> dict[str, Term]:
        """What a client minimises: the sum of these terms, which read the batch with its representation ``z``."""
        raise NotImplementedError

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities (B, classes) for inputs x (B, ...)."""
        raise NotImplementedError

    def prediction_draws(self, model: ModelBuilder, batch: int) -> Draws:
        """The noise that :meth:`predict` uses for a batch."""
        return no_draws(model, batch)

    # Local training -----------------------------------------------------------------------------

    def phases(self) -> Phases:
        """A sampled client's work in a round: steps on its local loss."""
        return (Phase("train", (self.objective("train"),)),)

    def objective(self, name: str, **changes: Any) -> Objective:
        """The method's loss over the parts that it moves, with changes."""
        own: dict[str, Any] = {"terms": self.terms(), "moves": self.moves()}
        own |= {"draws": self.draws, "encode": self.encode}
        return Objective(name, **{**own, **changes})

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """The noise that :meth:`encode` and the terms use for a batch."""
        return no_draws(model, batch)

    def check(self, train: Train) -> None:
        """Raise an error if the method does not support these settings of local training."""

    # Communication ------------------------------------------------------------------------------

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", rounds, (self.exchange("train"),)),)

    def exchange(self, name: str, **changes: Any) -> Exchange:
        """An exchange of what a page defines under the names in :data:`HOOKS`, with changes."""
        own: dict[str, Any] = {hook: getattr(self, hook) for hook in HOOKS if hasattr(self, hook)}
        own |= {"phases": self.phases(), "server_phases": self.server_phases()} | changes
        return Exchange(name, **{"counted": self.weighting == "samples" and own["merge"] is not leave, **own})

    def server_phases(self) -> Phases:
        """The server's phases between replies and aggregation; they may move ``down`` and ``server`` parts."""
        return ()

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The server's next state: the weighted mean of every shared tensor, buffers included, or a step towards it.

        What :meth:`after_mean` returns is added. A method that overrides this one takes no server optimiser.
        """
        mean = replies.mean(state.shared)
        return state.updated(mean | self.server.step(state, mean) | self.after_mean(state, replies))

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The server's other tensors that change, by full name, from the state before the mean."""
        return {}

    def reestimates(self, unseen: bool) -> bool:
        """Whether batch-norm statistics are measured again on the inputs to predict."""
        return self.bn == "reestimate"


def all_parts(method: Method, model: ModelBuilder) -> dict[str, Part]:
    """A method's parts with their initial values, and the state of its server optimiser."""
    parts = method.parts(model)
    return parts | method.server.parts(parts) if isinstance(method, Averaging) else parts


def make_parts(method: Method, model: ModelBuilder) -> dict[str, Part]:
    """A method's parts with initial values from the run's streams, also of modules that the method builds itself."""
    with model.streams.as_global("initialisation", "parts"):
        parts = all_parts(method, model)
    # Weights that were read come in evaluation mode, and a step sees the mode of the top only.
    return {name: replace(part, module=from_streams(part.module, name).train()) for name, part in parts.items()}


def tensor_scopes(method: Method, parts: Mapping[str, Part]) -> dict[str, Scope]:
    """The scope of each tensor by full name: its part's scope, without batch norms that stay local."""
    scopes: dict[str, Scope] = {}
    for part_name, part in parts.items():
        local: frozenset[str] = frozenset()
        if method.core.bn in ("local", "statistics") and part.scope == "shared" and part.follows_bn:
            local = batch_norm_tensors(part.module)
            if method.core.bn == "statistics":
                local -= dict(part.module.named_parameters()).keys()
        for name in part.module.state_dict():
            scopes[f"{part_name}.{name}"] = "client" if name in local else part.scope
    return scopes
