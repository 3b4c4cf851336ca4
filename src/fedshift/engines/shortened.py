"""How many steps jobs have, and jobs with fewer, for whoever wants to know what a round costs without taking it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedshift.core.contract import Exchange, Phase
from fedshift.engines.engine import Job, ServerJob
from fedshift.engines.lane import Lane


def steps_of(job: Job | ServerJob) -> int:
    """How many steps a job has."""
    return sum(_steps_by_phase(job))


def shorten(jobs: Sequence[Job], steps: int) -> list[Job]:
    """The jobs with so many steps of each phase at most; what is measured over all samples stays.

    Jobs of one exchange that end with equally many steps share the shortened exchange, as they shared the whole one.
    """
    made: dict[tuple[int, tuple[int, ...]], Exchange] = {}
    shortened = []
    for job in jobs:
        counts = _steps_by_phase(job)
        fewer = tuple(min(steps, count) for count in counts)
        if fewer == counts:
            shortened.append(job)
            continue
        key = id(job.exchange), fewer
        if key not in made:
            phases = zip(job.exchange.phases, fewer, strict=True)
            cut = (replace(p, steps=n, epochs=None) if isinstance(p, Phase) else p for p, n in phases)
            made[key] = replace(job.exchange, phases=tuple(cut))
        shortened.append(replace(job, exchange=made[key]))
    return shortened


def _steps_by_phase(job: Job | ServerJob) -> tuple[int, ...]:
    """How many steps each of the job's phases has; one that measures has none."""
    lane = Lane(job)
    counts = []
    for phase in lane.phases:
        samples = lane.samples
        if isinstance(phase, Phase) and phase.samples is not None:
            with job.setup.lend("counting steps", *job.round.key, job.exchange.name):
                samples = phase.samples(lane.replies)
        counts.append(lane.count(phase, lane.order(phase, samples)) if isinstance(phase, Phase) else 0)
    return tuple(counts)
