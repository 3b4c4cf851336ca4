"""How long a stage takes, estimated from a part of it and announced before it begins."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from math import ceil

from fedshift.core.contract import Round, ServerState
from fedshift.engines.engine import Engine, Job, Outcome, Question, Score, ServerJob
from fedshift.engines.shortened import Shortener, steps_of

FEW = 2  # steps of each phase from which a first guess is made
PATIENCE = 2.0  # seconds; work that takes longer is done in part
MANY = 5_000  # steps in a stage, from which it is worth finding out how long they take
LONG = 600.0  # seconds; a stage that takes longer is announced


def forecast(do: Callable[[int], int], whole: int) -> float:
    """How many seconds work of so many steps takes.

    Args:
        do: does the work with so many steps of each phase at most, and says how many it took in all.
        whole: how many steps the whole work has.
    """

    def timed(limit: int) -> tuple[float, int]:
        do(limit)  # to warm up, as an engine prepares what it has not met
        began = time.perf_counter()
        steps = do(limit)
        return time.perf_counter() - began, steps

    few_seconds, few = timed(FEW)
    if few >= whole:
        return few_seconds
    if few_seconds * whole / few <= PATIENCE:
        return timed(sys.maxsize)[0]
    more_seconds, more = timed(FEW * max(4, int(PATIENCE / few_seconds)))
    a_step = max(0.0, more_seconds - few_seconds) / (more - few)
    return more_seconds + a_step * (whole - more)


def _quietly(steps: int) -> None:
    """Steps that are taken to measure are nobody's progress."""


def seconds_to_train(engine: Engine, jobs: Sequence[Job]) -> float:
    """How many seconds jobs take, from a part of them."""

    def do(limit: int) -> int:
        part = [replace(job, tell=_quietly) for job in map(Shortener(limit), jobs)]
        list(engine.train(part))
        return sum(map(steps_of, part))

    return forecast(do, sum(map(steps_of, jobs)))


def seconds_to_serve(engine: Engine, job: ServerJob) -> float:
    """How many seconds the server's training takes, from a part of it."""

    def do(limit: int) -> int:
        part = replace(Shortener(limit)(job), tell=_quietly)
        engine.serve(part)
        return steps_of(part)

    return forecast(do, steps_of(job))


class Announcing:
    """An engine that says before a stage that takes long about how long, and what makes it shorter."""

    def __init__(self, engine: Engine, tell: Callable[[str], None]) -> None:
        self._engine, self._tell = engine, tell
        self._seen: set[tuple[str, str, str, bool]] = set()

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """As the engine, after what there is to say."""
        first = jobs[0]
        if self._asks(first, jobs):
            self._announce(first.round, seconds_to_train(self._engine, jobs))
        return self._engine.train(jobs)

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        """As the engine, after what there is to say."""
        if self._asks(job, [job]):
            self._announce(job.round, seconds_to_serve(self._engine, job))
        return self._engine.serve(job)

    def _asks(self, first: Job | ServerJob, jobs: Sequence[Job | ServerJob]) -> bool:
        """Whether a stage has so many steps that it may take long; counted once for each exchange and side."""
        key = first.setup.run, first.round.stage.name, first.exchange.name, isinstance(first, ServerJob)
        if key in self._seen:
            return False
        self._seen.add(key)
        return sum(map(steps_of, jobs)) * _rounds_left(first.round) >= MANY

    def _announce(self, round: Round, seconds: float) -> None:
        """Say how long a stage takes, if it is long."""
        left = seconds * _rounds_left(round)
        if left >= LONG:
            self._tell(
                f"The stage '{round.stage.name}' takes about {timedelta(minutes=ceil(left / 60))} (h:mm:ss) on "
                f"this machine. Smaller values of {round.stage.length} make it shorter."
            )

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """As the engine."""
        return self._engine.score(questions)

    def close(self) -> None:
        """As the engine."""
        self._engine.close()


def _rounds_left(round: Round) -> int:
    return round.stage.rounds - round.number + 1
