"""Jobs with fewer steps, for whoever wants to know what a round costs without taking all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fedshift.core.contract import Exchange, Phase, Phases
from fedshift.engines.engine import Job, ServerJob
from fedshift.engines.sequential import lane_of, server_lane
from fedshift.federation.samples import Samples

AnyJob = TypeVar("AnyJob", Job, ServerJob)


def steps_of(job: Job | ServerJob) -> int:
    """How many steps a job has."""
    count = _counter(job)
    return sum(count(phase) for phase in _phases(job) if isinstance(phase, Phase))


class Shortener:
    """Gives jobs so many steps of each phase at most; what is measured over all samples stays.

    Jobs of one exchange that end with equally many steps share the shortened exchange, as they shared the whole one.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._made: dict[tuple[int, tuple[int, ...]], tuple[Exchange, Exchange]] = {}

    def __call__(self, job: AnyJob) -> AnyJob:
        """The job with fewer steps; itself if it has no more."""
        count, phases = _counter(job), _phases(job)
        counts = tuple(count(phase) if isinstance(phase, Phase) else 0 for phase in phases)
        if all(steps <= self.steps for steps in counts):
            return job
        fewer = tuple(min(self.steps, steps) for steps in counts)
        key = id(job.exchange), fewer
        if key not in self._made:  # with the whole one, whose id nobody else may get
            cut = tuple(
                replace(phase, steps=steps, epochs=None) if isinstance(phase, Phase) else phase
                for phase, steps in zip(phases, fewer, strict=True)
            )
            side = {"server": cut} if isinstance(job, ServerJob) else {"phases": cut}
            self._made[key] = job.exchange, replace(job.exchange, **side)  # type: ignore[arg-type]  # one of its fields
        return replace(job, exchange=self._made[key][1])


def _phases(job: Job | ServerJob) -> Phases:
    return job.exchange.server if isinstance(job, ServerJob) else job.exchange.phases


def _counter(job: Job | ServerJob) -> Callable[[Phase], int]:
    """How many steps each of the job's phases has."""
    lane = server_lane(job) if isinstance(job, ServerJob) else lane_of(job)

    def samples(phase: Phase) -> Samples | None:
        if phase.samples is None:
            return lane.samples
        with job.setup.lend("counting steps", *job.round.key, job.exchange.name):
            return lane.drawn_from(phase)

    return lambda phase: lane.count(phase, lane.order(phase, samples(phase)))
