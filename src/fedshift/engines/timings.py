"""The choice of an engine: ``auto`` times short rounds of each candidate in turns and takes the fastest.

First ways to prepare modules are compared on one thread, then engines with the fastest of these. All candidates are
open at once and take turns, so that other load slows all equally. Nothing is stored, since the fastest engine depends
on the load; a resumed run keeps its engine. Results depend on the engine by rounding only. Evaluation, and several runs
that advance together, are not timed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, product
from statistics import median
from typing import Literal

import torch
from torch import nn

from fedshift.core.setup import Setup
from fedshift.core.training import RunOptions
from fedshift.engines.choice import Choice, cores, has_layer, open_engine, requested_engine
from fedshift.engines.engine import Engine, Job
from fedshift.engines.kernels import Kernels
from fedshift.engines.lane import shorten, steps_of_job
from fedshift.engines.onednn import onednn_available
from fedshift.engines.workers import can_fork
from fedshift.errors import DivergedError

SECONDS = 10.0  # approximate duration of the measurement
SHARE = 0.1  # maximum part of a run's time for measuring
SHORT_RUN = 30.0  # seconds; shorter runs are not measured
FEW = 2  # steps of each phase to time a step
TURN = 0.25  # seconds of a turn on one thread, at most
LAPS = 3  # minimum turns of the comparison
BEHIND = 1.5  # a candidate leaves if it takes this many times as long as the fastest; before, twice as many times
Notify = Callable[[str], None]


@dataclass
class Timing:
    """The timing of one candidate."""

    choice: Choice
    # milliseconds per client and step of each turn, which is a round of some of the cohort's steps
    turns: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # why it is excluded, if it is

    @property
    def milliseconds(self) -> float:
        """A step of one client in the median turn."""
        return median(self.turns)


@dataclass(frozen=True)
class EngineTimings:
    """Timings of each way to prepare modules on one thread, and of each engine with the fastest of these."""

    kernels: tuple[Timing, ...]
    engines: tuple[Timing, ...]

    @property
    def best(self) -> Timing:
        return fastest(self.engines)

    def __str__(self) -> str:
        best = self.best
        others = [f"{t.choice} {t.milliseconds:.2f}" for t in self.engines if t is not best and not t.notes]
        beside = f"; others: {', '.join(others)}" if others else ""
        return f"Engine: {best.choice}, {best.milliseconds:.2f} ms per client and step{beside}"


def fastest(timings: Sequence[Timing]) -> Timing:
    """The candidate with the shortest median turn, of those that were in the race to its end."""
    possible = [timing for timing in timings if not timing.notes]
    laps = max(len(timing.turns) for timing in possible)
    return min((timing for timing in possible if len(timing.turns) == laps), key=lambda timing: timing.milliseconds)


def choose(jobs: Sequence[Job], options: RunOptions, notify: Notify) -> Choice:
    """The fastest engine for a run's jobs, for a short run the sequential one; ``notify`` is called with the result."""
    setup = jobs[0].setup
    plain = requested_engine(setup, options)
    try:
        run = seconds_a_step(jobs, plain) * sum(map(steps_of_job, jobs)) * setup.train.rounds
        if run < SHORT_RUN:
            return plain
        calibration = calibrate(jobs, options, seconds=min(SECONDS, SHARE * run))
    except DivergedError:
        return plain  # it raises the error in the right place
    notify(str(calibration))
    return calibration.best.choice


def seconds_a_step(jobs: Sequence[Job], choice: Choice) -> float:
    """The time of a step, by the fastest of three turns of a few steps of one client."""
    few = shorten(jobs[:1], FEW)
    with open_engine(choice) as engine:
        return min(_seconds(engine, few) for _ in range(3)) / max(1, steps_of_job(few[0]))


def calibrate(
    jobs: Sequence[Job], options: RunOptions, notify: Notify = lambda text: None, seconds: float = SECONDS
) -> EngineTimings:
    """Time a round of a cohort's jobs in every way that this machine offers, for about ``seconds``."""
    setup, workers = jobs[0].setup, options.workers or cores()
    threads = 1 if setup.device.type == "cpu" else options.threads or cores()
    alone = [Choice("sequential", 1, threads, kernels) for kernels in _kernels(setup)]
    turn = min(TURN, seconds / 40)
    step = seconds_a_step(jobs, alone[0])
    by_kernels = _race(alone, _in_part(jobs, step, 1, turn), 0.3 * seconds, notify) if len(alone) > 1 else ()
    some = _in_part(jobs, step, workers, turn)
    kernels = fastest(by_kernels).choice.kernels if by_kernels else alone[0].kernels
    return EngineTimings(by_kernels, _race(_engines(setup, options, kernels, len(some)), some, 0.6 * seconds, notify))


def _race(choices: Sequence[Choice], jobs: Sequence[Job], seconds: float, notify: Notify) -> tuple[Timing, ...]:
    """Let candidates take turns at the same jobs until the time is up; the first turn of each warms up."""
    timings = tuple(map(Timing, choices))
    steps = max(1, sum(map(steps_of_job, jobs)))
    with ExitStack() as stack:
        racing = [(each, stack.enter_context(open_engine(each.choice, each.notes.append))) for each in timings]

        def take_turn(timing: Timing, engine: Engine) -> None:
            notify(str(timing.choice))
            torch.set_num_threads(timing.choice.threads)  # opening the next engine changed it
            timing.turns.append(1000 * _seconds(engine, jobs) / steps)

        for timing, engine in racing:
            take_turn(timing, engine)
        racing = [entrant for entrant in racing if not entrant[0].notes]
        for timing, _ in racing:
            timing.turns.clear()
        end = time.perf_counter() + seconds
        for lap in count():
            if lap >= LAPS and (len(racing) == 1 or time.perf_counter() > end):
                break
            first = lap % len(racing)
            for timing, engine in (*racing[first:], *racing[:first]):
                take_turn(timing, engine)
            behind = BEHIND if lap + 1 >= LAPS else 2 * BEHIND
            limit = behind * min(timing.milliseconds for timing, _ in racing)
            racing = [entrant for entrant in racing if entrant[0].milliseconds <= limit]
    return timings


def _seconds(engine: Engine, jobs: Sequence[Job]) -> float:
    started = time.perf_counter()
    for answer in engine.train(jobs):
        if isinstance(answer, Exception):
            raise answer
    return time.perf_counter() - started


def _in_part(jobs: Sequence[Job], step: float, workers: int, seconds: float) -> list[Job]:
    """Some of a cohort, each with some of its steps, so that one thread takes about ``seconds``.

    A small cohort keeps its remainder when divided among processes, while which some of them are idle.
    """
    steps = int(seconds / max(step, 1e-9))
    if sum(map(steps_of_job, jobs)) <= steps:
        return list(jobs)
    rest = len(jobs) % workers if len(jobs) <= 4 * workers else 0
    some = jobs[: max(2 * workers + rest, steps // FEW)]
    return shorten(some, max(1, math.ceil(steps / len(some))))


def _engines(setup: Setup, options: RunOptions, kernels: Kernels, clients: int) -> list[Choice]:
    """The available engines for a number of clients."""
    on_cpu, threads, workers = setup.device.type == "cpu", options.threads or cores(), options.workers or cores()
    choices = [Choice("sequential", 1, threads, kernels)]
    if on_cpu and threads > 1:
        choices.insert(0, Choice("sequential", 1, 1, kernels))
    if clients > 1:
        choices.append(Choice("vectorised", 1, threads, kernels))
    if clients > 1 and on_cpu and workers > 1 and can_fork():
        choices.append(Choice("workers", workers, 1, kernels))
    return choices


def _kernels(setup: Setup) -> list[Kernels]:
    layouts = (True, False) if has_layer(setup, nn.Conv2d) else (False,)
    in_float32_on_cpu = setup.device.type == "cpu" and setup.train.precision == "float32"
    with_onednn = in_float32_on_cpu and has_layer(setup, nn.Linear) and onednn_available()
    libraries: tuple[Literal["native", "onednn"], ...] = ("native", "onednn") if with_onednn else ("native",)
    return [Kernels(layout, library) for layout, library in product(layouts, libraries)]
