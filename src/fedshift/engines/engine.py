"""What an engine does for runs: it lets clients work, lets servers work, and scores models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Client, Environment
from fedshift.core.contract import Exchange, ServerState
from fedshift.core.messages import Down, Up
from fedshift.core.metrics import Values
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Round, Setup
from fedshift.core.state import ClientState
from fedshift.core.tensors import Replies, Tensors
from fedshift.core.uncertainty import Bounds

SERVER = -1  # the server's number where clients have theirs


@dataclass(frozen=True, eq=False)
class Job:
    """A client's work in an exchange: an order, joined with what only the site has.

    Attributes:
        setup: the run it belongs to.
        federated: the data as the stage sees them, of which ``client`` is one.
        exchange: what is done.
        round: when.
        client: who works.
        down: what it received.
        state: what it kept from before.
        tell: called with steps, if the engine can report them while the client works.
    """

    setup: Setup
    federated: FederatedData
    exchange: Exchange
    round: Round
    client: Client
    down: Down
    state: ClientState
    tell: Callable[[int], None] = lambda steps: None

    @property
    def inputs(self) -> Inputs:
        """How the client's samples become inputs, with what it knows of training rows."""
        return self.federated.inputs.fitted((self.down | self.state.tensors).of(PREPARATION))

    def lend(self, purpose: str) -> AbstractContextManager[None]:
        """A stream of this job's own for code of a page that draws from global generators."""
        return self.setup.lend(purpose, *self.round.key, self.exchange.name, self.client.id)


@dataclass(frozen=True, eq=False)
class ServerJob:
    """The server's work in an exchange, after the replies and before the merge; ``tell`` takes steps that are done."""

    setup: Setup
    exchange: Exchange
    round: Round
    state: ServerState
    replies: Replies
    tell: Callable[[int], None] = lambda steps: None


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

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
    inputs: Inputs
    round: Round


@dataclass(frozen=True)
class Score:
    """How good a model is on an environment.

    Attributes:
        accuracy: the share of samples that are right.
        loss: the mean negative log-likelihood in nats.
        n: how many samples there are.
        metrics: what is measured besides; see :class:`Metric`.
        intervals: of accuracy and of metrics, by name; see :mod:`fedshift.core.uncertainty`.
    """

    accuracy: float
    loss: float
    n: int
    metrics: Values = field(default_factory=dict)
    intervals: Mapping[str, Bounds] = field(default_factory=dict)


class Engine(Protocol):
    """Runs jobs and scores models; every engine gives the same results but for rounding."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let every client of a cohort work; answers come in the order of the jobs.

        What goes wrong with one job is its answer, and does not touch the others'.
        """

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        """Let the server work; returns its state, and by name each term's mean and the scalars that it measured."""

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score models, each answer in its turn; questions are taken a few at a time."""

    def close(self) -> None:
        """Release processes, memory and thread counts."""
