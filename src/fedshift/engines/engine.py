"""The interface of engines: they train clients, run the server's phases, and score models."""

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

SERVER = -1  # the server's number, in place of a client's


@dataclass(frozen=True, eq=False)
class Job:
    """A client's work in an exchange: an order, joined with what only the site has."""

    setup: Setup
    federated: FederatedData  # the data as the stage sees them, with ``client`` among the clients
    exchange: Exchange
    round: Round
    client: Client
    down: Down
    state: ClientState  # what the client kept from before
    # called with finished steps, if the engine can report them during the work
    notify: Callable[[int], None] = lambda steps: None

    @property
    def inputs(self) -> Inputs:
        """How the client's samples become inputs, with its statistics of training rows."""
        return self.federated.inputs.fitted((self.down | self.state.tensors).of(PREPARATION))

    def global_draws(self, purpose: str) -> AbstractContextManager[None]:
        """Seed the global generators for a page's code in this job."""
        return self.setup.global_draws(purpose, *self.round.key, self.exchange.name, self.client.id)


@dataclass(frozen=True, eq=False)
class ServerJob:
    """The server's work in an exchange, between replies and aggregation; ``notify`` is called with finished steps."""

    setup: Setup
    exchange: Exchange
    round: Round
    state: ServerState
    replies: Replies
    notify: Callable[[int], None] = lambda steps: None


@dataclass(frozen=True)
class Outcome:
    """The result of a job."""

    client: int  # the client's id
    up: Up  # its reply
    state: ClientState  # what it keeps
    terms: dict[str, float]  # the mean over steps of every loss term, by name
    steps: int  # number of local steps


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
    """A model's performance on an environment."""

    accuracy: float  # in 0..1
    loss: float  # the mean negative log-likelihood in nats
    n: int  # number of samples
    metrics: Values = field(default_factory=dict)  # see :class:`Metric`
    # of accuracy and of metrics, by name; see :mod:`fedshift.core.uncertainty`
    intervals: Mapping[str, Bounds] = field(default_factory=dict)


class Engine(Protocol):
    """Runs jobs and scores models; every engine returns the same results but for rounding."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Train every client of a cohort; outcomes are in the order of the jobs, an exception for a job that failed."""

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        """Run the server's phases; returns its state, and by name each term's mean and the scalars that it measured."""

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score models in order; questions are taken a few at a time."""

    def close(self) -> None:
        """Release processes, memory and thread counts."""
