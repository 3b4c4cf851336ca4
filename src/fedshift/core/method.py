"""The base of every method: what a page may override, with FedAvg's answers."""

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
"""Fields of :class:`Exchange` that a page gives by a method, or an attribute, of the same name."""


class Prepared(Protocol):
    """What a method's stages before its training made, as a separate result."""

    @property
    def summary(self) -> tuple[str, ...]:
        """In a few lines."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of it must know."""

    @property
    def cosines(self) -> Mapping[str, Tensor]:
        """How similar clients are: matrices (K, K) of cosines, by the name of what is compared."""

    def write(self, folder: Path) -> list[Path]:
        """Write it into a folder, and return the files."""


class Preparing(Protocol):
    """The settings of what a method's stages before its training make."""

    def check(self, federated: FederatedData) -> None:
        """Raise an error if it cannot be made of these clients."""

    def prepared(self, federated: FederatedData, state: ServerState, messages: dict[str, Any]) -> Prepared:
        """What those stages left on the server, and what crossed the wire for it."""

    def notes(self, state: ServerState) -> tuple[str, ...]:
        """What a reader of the results must know of it."""


class Method(Spec):
    """What a run requests of a method: parts, stages and clients; all else it requests of the :attr:`core` that trains.

    Attributes:
        presets: published settings, by the data set's name.
        paper: where the method comes from.
        common: settings that stay as they are when another method is named.
    """

    section: ClassVar[str] = "method"
    common: ClassVar[tuple[str, ...]] = ("weighting", "optimiser_state", "bn")
    presets: ClassVar[dict[str, dict[str, object]]] = {}
    paper: ClassVar[str] = ""

    @property
    def core(self) -> Averaging:
        """The method that trains: this one, or the ``base`` of one that wraps it."""
        core = getattr(self, "base", self)
        assert isinstance(core, Averaging)
        return core

    @property
    def label(self) -> str:
        """What notes call it."""
        return type(self).__name__

    @classmethod
    def published(cls) -> dict[str, dict[str, object]]:
        """The presets, without what is fixed in this class."""
        known = cls.settings()
        return {data: {key: preset[key] for key in preset if key in known} for data, preset in cls.presets.items()}

    @classmethod
    def cited(cls) -> str:
        """Where the method comes from; the paper of a class that a user's is derived from is not the user's."""
        return cls.paper if built_in(cls) else str(vars(cls).get("paper", ""))

    @property
    def prepares(self) -> Preparing | None:
        """The settings of what is made before training and is a separate result; None if nothing is."""
        return None

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The named parts, fresh from their initial values."""
        raise NotImplementedError

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The plan of a run of ``rounds`` rounds."""
        raise NotImplementedError

    def regroup(self, federated: FederatedData) -> FederatedData:
        """The clients and environments of its runs; only references such as pooled training change it."""
        if self.prepares is not None:
            self.prepares.check(federated)
        return federated

    def notes(self, state: ServerState) -> tuple[str, ...]:
        """What a reader of the results must know of the server's final state, such as an uninformative index."""
        return () if self.prepares is None else self.prepares.notes(state)


class Averaging(Method):
    """A method whose server averages what clients trained. Its fields are its hyper-parameters.

    A page overrides what its paper changes.

    Attributes:
        uploads: what a reply carries besides, made by a method ``upload``.
    """

    uploads: ClassVar[tuple[Upload, ...]] = ()

    weighting: Literal["uniform", "samples"] = setting(
        "uniform", help="how clients weigh in the average", source="methods differ; all five papers: uniform"
    )
    optimiser_state: Literal["fresh", "kept"] = setting(
        "fresh",
        help="momentum or Adam moments of a client's training: afresh in every round, or kept from round to round",
        source="methods differ; FedSR's public code keeps them",
    )
    bn: Literal["shared", "local", "statistics", "reestimate"] = setting(
        "shared",
        help="batch norm: averaged; kept on each client, whole or its statistics alone; or averaged with its "
        "statistics measured again on the inputs of anyone who is predicted for",
    )
    server: Annotated[ServerOptimiser, From(SERVERS)] = setting(
        "mean",
        help="what the server makes of the clients' mean: the next model, or a direction for the server's optimiser",
        source="Reddi et al., ICLR 2021, Algorithm 1",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self).merge is not Averaging.merge and not isinstance(self.server, Mean):
            raise FedshiftError(
                f"method.server = '{SERVERS.name_of(self.server)}' is not for {self.label}, whose merge is no mean: "
                "leave it at 'mean'. A page that only adds to the mean overrides after_mean."
            )

    # What it is made of -------------------------------------------------------------------------

    def moves(self) -> tuple[str, ...]:
        """The parts that local training moves."""
        raise NotImplementedError

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with its representation ``z``, which terms and predictions read.

        Without noise the z of a probabilistic encoder is its mean.
        """
        raise NotImplementedError

    def terms(self) -> dict[str, Term]:
        """What a client minimises: the sum of these terms, which see the batch with its representation ``z``."""
        raise NotImplementedError

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities (B, classes) for inputs x (B, ...)."""
        raise NotImplementedError

    def prediction_draws(self, model: ModelBuilder, batch: int) -> Draws:
        """The noise that :meth:`predict` uses for a batch."""
        return no_draws(model, batch)

    # Local training -----------------------------------------------------------------------------

    def phases(self) -> Phases:
        """What a sampled client does in a round: steps on its own loss."""
        return (Phase("train", (self.objective("train"),)),)

    def objective(self, name: str, **changes: Any) -> Objective:
        """The method's own loss over what it moves, with changes to it."""
        own: dict[str, Any] = {"terms": self.terms(), "moves": self.moves()}
        own |= {"draws": self.draws, "encode": self.encode}
        return Objective(name, **{**own, **changes})

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """The noise that :meth:`encode` and the terms use for a batch."""
        return no_draws(model, batch)

    def check(self, train: Train) -> None:
        """Raise an error if local training is not what the method can work with."""

    # How it federates ---------------------------------------------------------------------------

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The plan of a run of ``rounds`` rounds."""
        return (Stage("train", rounds, (self.exchange("train"),)),)

    def exchange(self, name: str, **changes: Any) -> Exchange:
        """An exchange of what a page defines by the names in :data:`HOOKS`, with changes to it.

        Nothing is counted where nothing is merged.
        """
        own: dict[str, Any] = {hook: getattr(self, hook) for hook in HOOKS if hasattr(self, hook)}
        own |= {"phases": self.phases(), "server_phases": self.server_phases()} | changes
        return Exchange(name, **{"counted": self.weighting == "samples" and own["merge"] is not leave, **own})

    def server_phases(self) -> Phases:
        """What the server does between the replies and the merge; it may move ``down`` and ``server`` parts."""
        return ()

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The server's next state: the weighted mean of every shared tensor, buffers included, or a step towards it.

        What :meth:`after_mean` gives is added. A method that overrides this one takes no server optimiser.
        """
        mean = replies.mean(state.shared)
        return state.updated(mean | self.server.step(state, mean) | self.after_mean(state, replies))

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The server's other tensors that change, by full name, from the state before the mean."""
        return {}

    def reestimates(self, unseen: bool) -> bool:
        """Whether batch-norm statistics are measured again on the inputs that are predicted for."""
        return self.bn == "reestimate"


def all_parts(method: Method, model: ModelBuilder) -> dict[str, Part]:
    """A method's parts, fresh from their initial values, and what the server's optimiser keeps for them."""
    parts = method.parts(model)
    return parts | method.server.parts(parts) if isinstance(method, Averaging) else parts


def make_parts(method: Method, model: ModelBuilder) -> dict[str, Part]:
    """The parts of a method, also of one that makes modules plainly, with initial values from the run's streams.

    Raises:
        FedshiftError: a module has alpha dropout, or another kind of dropout layer.
    """
    with model.streams.as_global("initialisation", "parts"):
        parts = all_parts(method, model)
    # Weights that were read come in evaluation mode, and a step sees the mode of the top only.
    return {name: replace(part, module=from_streams(part.module, name).train()) for name, part in parts.items()}


def tensor_scopes(method: Method, parts: Mapping[str, Part]) -> dict[str, Scope]:
    """Who may see each tensor, by full name: a part's scope, less the batch norms that stay local."""
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
