"""What an engine does for a run: it lets a cohort work, and scores models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedshift.core.contract import Exchange, Replies, ServerState, Stage
from fedshift.core.messages import Down, Tensors, Up
from fedshift.core.state import ClientState
from fedshift.data.federation import Client, Environment
from fedshift.data.inputs import Inputs


@dataclass(frozen=True)
class Moment:
    """When something happens: a round (from 1) of a stage."""

    stage: Stage
    round: int

    @property
    def key(self) -> tuple[str, int]:
        """What random streams are keyed by."""
        return (self.stage.name, self.round)


@dataclass(frozen=True)
class Job:
    """One client's work in an exchange; ``inputs`` says how its samples become inputs of a network."""

    client: Client
    down: Down
    state: ClientState
    inputs: Inputs


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


@dataclass(frozen=True)
class Score:
    """Accuracy and loss (negative log-likelihood in nats), means over n samples."""

    accuracy: float
    loss: float
    n: int


class Engine(Protocol):
    """Runs jobs and scores models; every engine gives the same results."""

    def train(self, exchange: Exchange, moment: Moment, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Let every client of a cohort work; outcomes come in the order of the jobs."""

    def serve(
        self, exchange: Exchange, moment: Moment, state: ServerState, replies: Replies, tell: Callable[[int], None]
    ) -> tuple[ServerState, dict[str, float]]:
        """Run the server's phases of an exchange; returns its state and each term's mean. ``tell`` hears of steps."""

    def score(self, model: Tensors, environment: Environment, moment: Moment) -> Score:
        """Score the model whose tensors are given on one environment."""
