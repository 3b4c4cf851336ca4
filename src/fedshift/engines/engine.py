"""What an engine does for runs: it lets cohorts work, lets servers work, and scores models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from fedshift.core.contract import Exchange, Method, Part, Replies, Scope, ServerState, Stage, tensor_scopes
from fedshift.core.messages import Down, Tensors, Up
from fedshift.core.model import ModelBuilder
from fedshift.core.state import ClientState
from fedshift.core.training import Evaluate, Train
from fedshift.federation.clients import Client
from fedshift.federation.environments import Environment
from fedshift.federation.federation import Federation
from fedshift.streams import Streams

SERVER = -1  # the server's number where clients have theirs
DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Setup:
    """What an engine must know of a run; one engine may carry several runs.

    Attributes:
        method: the run's method.
        spec: what its modules are made from.
        parts: the method's parts, as they start.
        federation: who holds which samples; ``inputs`` say how environments' samples become inputs.
        train: local training.
        evaluate: scoring.
        streams: the run's random streams.
        device: where tensors live.
    """

    method: Method
    spec: ModelBuilder
    parts: Mapping[str, Part]
    federation: Federation
    train: Train
    evaluate: Evaluate
    streams: Streams
    device: torch.device

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        """Who may see each tensor, by full name."""
        return tensor_scopes(self.method, self.parts)

    @property
    def dtype(self) -> torch.dtype:
        """The type of floating tensors between steps; with bfloat16 they are float32."""
        return DTYPES[self.train.precision]


@dataclass(frozen=True)
class Moment:
    """When something happens: a round (from 1) of a stage."""

    stage: Stage
    round: int

    @property
    def key(self) -> tuple[str, int]:
        """What random streams are keyed by."""
        return (self.stage.name, self.round)


@dataclass(frozen=True, eq=False)
class Job:
    """One client's work in an exchange.

    Attributes:
        setup: the run it belongs to.
        federation: the federation as the stage sees it, of which ``client`` is one.
        exchange: what is done.
        moment: when.
        client: who works.
        down: what it received.
        state: what it kept from before.
    """

    setup: Setup
    federation: Federation
    exchange: Exchange
    moment: Moment
    client: Client
    down: Down
    state: ClientState


@dataclass(frozen=True, eq=False)
class ServerJob:
    """The server's work in an exchange, after the replies and before the merge; ``tell`` hears of steps."""

    setup: Setup
    exchange: Exchange
    moment: Moment
    state: ServerState
    replies: Replies
    tell: Callable[[int], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        client: the client's id.
        up: its reply.
        state: what it keeps.
        terms: the mean over steps of every loss term, by name.
        steps: how many local steps it took.
    """

    client: int
    up: Up
    state: ClientState
    terms: dict[str, float]
    steps: int


@dataclass(frozen=True, eq=False)
class Question:
    """A model to be scored on an environment; equal models are the same object."""

    setup: Setup
    model: Tensors
    environment: Environment
    moment: Moment


@dataclass(frozen=True)
class Score:
    """Accuracy and loss (negative log-likelihood in nats), means over n samples."""

    accuracy: float
    loss: float
    n: int


class Engine(Protocol):
    """Runs jobs and scores models; every engine gives the same results but for rounding."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let every client of a cohort work; answers come in the order of the jobs.

        What goes wrong with one job is its answer, and does not touch the others'.
        """

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        """Let the server work; returns its state and each term's mean."""

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score models, each answer in its turn; questions are taken a few at a time."""

    def close(self) -> None:
        """Give back what it holds: processes, memory, thread counts."""
