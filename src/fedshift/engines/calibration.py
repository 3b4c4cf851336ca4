"""Which engine is fastest for a run on this machine: measured briefly, remembered, and explained.

First one client works with each way to prepare its modules (memory layout, library of the linear layers), on one
thread. Then a cohort does whole rounds with each engine, prepared in the best of these ways, and engines of several
threads or lanes in each layout that is not far behind. All ways are open at once and take turns
(:mod:`fedshift.engines.race`); the fastest is chosen, and of ways that noise hides from each other the simplest. What
was measured is kept in a file, by model, batch and machine. Results do not depend on it but for rounding; a run that is
resumed goes on with the engine it had.

A round is what an engine does for it: loading what clients receive and kept, their steps, their replies. Evaluation,
and several runs that advance together, are not measured.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import product
from statistics import median
from typing import Any, Literal, Self

import torch
from torch import nn

from fedshift import files
from fedshift.core.setup import Setup
from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.engine import Engine, Job
from fedshift.engines.kernels import Kernels, onednn_available
from fedshift.engines.machine import cores, processor
from fedshift.engines.race import Ratio, chosen, race, ratio
from fedshift.engines.shortened import Shortener, steps_of
from fedshift.engines.workers import can_fork
from fedshift.errors import DivergedError, FedshiftError
from fedshift.settings.experiment import RunOptions

SECONDS = 12.0  # that a calibration measures, about; a fifth of them one client, the rest a cohort
TURN = 0.02  # part of this time that a turn takes at least, and a round on one thread at most: longer ones are cut
FIRST = 2  # steps of each phase that a client takes to see how long a step is
SHORT_RUN = 30.0  # seconds; a run that is shorter is not worth measuring for
WORTH = 0.2  # of a run's time that is spent on measuring for it, at most
OPEN = 1.25  # a layout is tried with all engines unless another is surely so many times as fast on one thread
UNDISTURBED = 0.8  # of a core that a thread has at least while no other process wants it
DAY = 86_400.0  # seconds after which an unsure result, or that of a busy machine, is measured again
CACHE = "engines"
VERSION = 3  # of what a file holds
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """What a way takes.

    Attributes:
        choice: with what.
        turns: seconds a round, turn by turn; those of all ways with one number were taken side by side.
        steps: steps of all clients in a round.
        note: why it is out of the question, if it is.
    """

    choice: Choice
    turns: tuple[float, ...]
    steps: int
    note: str = ""

    @property
    def milliseconds(self) -> float:
        """A step of one client: the median round, divided by its steps."""
        return 1000 * median(self.turns) / max(1, self.steps)

    def __str__(self) -> str:
        return f"{self.choice}, {self.milliseconds:.2f} ms a client's step"


@dataclass(frozen=True)
class Measured:
    """Ways that took turns, in order of simplicity."""

    timings: tuple[Timing, ...]

    @property
    def possible(self) -> list[Timing]:
        """Those that are not out of the question."""
        return [timing for timing in self.timings if not timing.note]

    @property
    def best(self) -> Timing:
        """The fastest; a simpler one if it is not surely faster."""
        return self.possible[chosen([timing.turns for timing in self.possible])]

    def compared(self, timing: Timing) -> Ratio:
        """How many times as fast a way is as the best."""
        return ratio(timing.turns, self.best.turns)

    @property
    def sure(self) -> bool:
        """Whether no way may be faster than the best, by more than simplicity is worth."""
        return all(self.compared(timing).negligible for timing in self.possible if timing is not self.best)


@dataclass(frozen=True)
class Calibration:
    """Everything that was measured, and what was chosen.

    Attributes:
        kernels: one client on one thread, by the way its modules are prepared.
        engines: a cohort, by engine.
        busy: whether other processes took the cores meanwhile.
    """

    kernels: Measured
    engines: Measured
    busy: bool = False

    @property
    def choice(self) -> Choice:
        """The fastest engine."""
        return self.engines.best.choice

    def __str__(self) -> str:
        """One line for people."""
        best = self.engines.best
        others = "; ".join(
            f"{timing.choice} {self.engines.compared(timing)}" for timing in self.engines.possible if timing is not best
        )
        if not others:
            why = "there is no other"
        elif self.engines.sure:
            why = f"surely the fastest, or as fast and simpler (speed of the others: {others})"
        else:
            why = f"the simplest of those that noise hides from each other (speed of the others: {others})"
        return f"Engine: {best}; {why}{', measured on a busy machine' if self.busy else ''}"

    def table(self) -> dict[str, Any]:
        """As JSON can hold it."""

        def rows(held: Measured) -> list[Any]:
            return [[timing.choice.table(), timing.turns, timing.steps, timing.note] for timing in held.timings]

        return {"kernels": rows(self.kernels), "engines": rows(self.engines), "busy": self.busy}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Self:
        """The inverse of :meth:`table`."""

        def held(rows: Sequence[Any]) -> Measured:
            return Measured(
                tuple(Timing(Choice.from_table(choice), tuple(turns), *rest) for choice, turns, *rest in rows)
            )

        return cls(held(table["kernels"]), held(table["engines"]), table["busy"])


def choose(jobs: Sequence[Job], options: RunOptions, tell: Notify) -> Choice:
    """The engine that a run asks for, or the fastest.

    Args:
        jobs: what a cohort of the run is asked to do.
        options: engine, workers and threads; 0 stands for as many as there are cores.
        tell: hears which engine was chosen and why, where it was chosen.

    Raises:
        FedshiftError: the engine asked for cannot be had here.
    """
    if options.engine != "auto":
        return asked_for(jobs[0].setup, options)
    calibration = remembered(jobs, options)
    if calibration is None:
        # On one thread: a short run gains little from more, and beside a busy process each wait for another thread is
        # a wait for that process.
        plain = asked_for(jobs[0].setup, replace(options, engine="sequential", threads=options.threads or 1))
        try:
            run = _estimate(plain, jobs)
            if run < SHORT_RUN:
                return plain
            calibration = calibrate(jobs, options, seconds=min(SECONDS, WORTH * run))
        except DivergedError:
            return plain  # which will say so, where it belongs
        remember(jobs, options, calibration)
    tell(str(calibration))
    return calibration.choice


def _estimate(choice: Choice, jobs: Sequence[Job]) -> float:
    """How many seconds the training of a whole run takes, as a few steps of one client tell.

    They are the fastest of three times, or the first by which a run is short: measuring should be shorter still.
    """
    first = Shortener(FIRST)(jobs[0])
    often = sum(map(steps_of, jobs)) * jobs[0].setup.train.rounds / max(1, steps_of(first))
    run = math.inf
    with open_engine(choice) as engine:
        for _ in range(3):
            run = min(run, often * _go(engine, [first]))
            if run < SHORT_RUN:
                break
    return run


def asked_for(setup: Setup, options: RunOptions) -> Choice:
    """An engine without measuring: channels last for convolutions, everything else as PyTorch does it."""
    kernels = Kernels(channels_last=_has(setup, nn.Conv2d))
    if options.engine == "workers":
        if not can_fork():
            raise FedshiftError("run.engine = 'workers' needs a system that forks processes, such as Linux; try auto.")
        if setup.device.type != "cpu":
            raise FedshiftError(
                f"run.engine = 'workers' is for the CPU, not for '{setup.device}': --set run.device=cpu, or try auto."
            )
        return Choice("workers", options.workers or cores(), 1, kernels)
    engine: Any = options.engine
    return Choice(engine, 1, options.threads or cores(), kernels)


# Measuring ----------------------------------------------------------------------------------------


def calibrate(
    jobs: Sequence[Job], options: RunOptions, tell: Notify = lambda text: None, seconds: float | None = None
) -> Calibration:
    """Measure what a round takes in every way that this machine offers; nothing is kept of it.

    Args:
        jobs: what a cohort is asked to do.
        options: workers and threads.
        tell: hears what is measured.
        seconds: about how long it measures; by default SECONDS.
    """
    seconds, setup = SECONDS if seconds is None else seconds, jobs[0].setup
    threads = 1 if setup.device.type == "cpu" else options.threads or cores()
    alone = [Choice("sequential", 1, threads, way) for way in _kernels(setup)]
    began, worked = time.perf_counter(), time.process_time()
    kernels = _raced(alone, [Shortener(FIRST)(jobs[0])], 0.2 * seconds, 0.2 * TURN * seconds, tell)
    had = (time.process_time() - worked) / (time.perf_counter() - began)  # of a core, as these ways have one thread
    busy = setup.device.type == "cpu" and had < UNDISTURBED
    best = kernels.best
    left = [timing.choice.kernels for timing in kernels.timings if kernels.compared(timing).high * OPEN > 1]
    # Of each layout one way, the best's library where it is the best's.
    layouts = {way.channels_last: way for way in (*reversed(left), best.choice.kernels)}
    some = _in_part(jobs, best.milliseconds / 1000, options.workers or cores(), TURN * seconds)
    ways = _ways(setup, options, best.choice.kernels, list(layouts.values()), len(some))
    return Calibration(kernels, _raced(ways, some, 0.8 * seconds, TURN * seconds, tell), busy)


def _raced(ways: Sequence[Choice], jobs: Sequence[Job], seconds: float, turn: float, tell: Notify) -> Measured:
    """Let ways take turns at the same jobs, each after a round to warm up.

    Args:
        ways: the simplest first.
        jobs: a round.
        seconds: how long the race is, about.
        turn: how long a turn is, at least.
        tell: hears what is measured.
    """
    clients = f"{len(jobs)} {'client' if len(jobs) == 1 else 'clients'}"
    notes: list[list[str]] = [[] for _ in ways]
    with ExitStack() as stack:
        # Before the race; threads are set for each turn, and given back by the first to be opened.
        engines = [stack.enter_context(open_engine(way, note.append)) for way, note in zip(ways, notes, strict=True)]

        def take(number: int, least: float) -> float:
            tell(f"{clients}: {ways[number]}")
            torch.set_num_threads(ways[number].threads)
            rounds, taken = 0, 0.0
            while not rounds or taken < least:
                taken += _go(engines[number], jobs)
                rounds += 1
            return taken / rounds

        for number in range(len(ways)):
            take(number, turn)
        able = [number for number, note in enumerate(notes) if not note]
        turns = dict(zip(able, race([partial(take, number, turn) for number in able], seconds), strict=True))
    steps = sum(map(steps_of, jobs))
    return Measured(
        tuple(
            Timing(way, tuple(turns.get(number, ())), steps, next(iter(notes[number]), ""))
            for number, way in enumerate(ways)
        )
    )


def _go(engine: Engine, jobs: Sequence[Job]) -> float:
    """How many seconds the jobs take."""
    began = time.perf_counter()
    for answer in engine.train(jobs):
        if isinstance(answer, Exception):
            raise answer
    return time.perf_counter() - began


def _in_part(jobs: Sequence[Job], step: float, workers: int, seconds: float) -> list[Job]:
    """A whole round, or what of it one thread does in about so many seconds: fewer steps, and then fewer clients.

    Args:
        jobs: a whole round.
        step: how many seconds a step takes on one thread.
        seconds: how long the round may be.
        workers: processes among which clients are divided. A cohort that is not much larger keeps the rest that is left
            over when they are, during which some processes have nothing to do.
    """
    steps = int(seconds / max(step, 1e-9))
    if sum(map(steps_of, jobs)) <= steps:
        return list(jobs)
    rest = len(jobs) % workers if len(jobs) <= 4 * workers else 0
    some = jobs[: max(2 * workers + rest, steps // FIRST)]
    return list(map(Shortener(max(1, steps // len(some))), some))


def _ways(setup: Setup, options: RunOptions, best: Kernels, left: Sequence[Kernels], clients: int) -> list[Choice]:
    """The engines that can be had for so many clients, the simplest first.

    Args:
        setup: the run.
        options: workers and threads.
        best: the kernels that are best on one thread.
        left: the kernels that may be best on several, or where clients are stacked.
        clients: how many there are.
    """
    on_cpu, threads, workers = setup.device.type == "cpu", options.threads or cores(), options.workers or cores()
    ways = [Choice("sequential", 1, 1, best)] if on_cpu else []
    if threads > 1 or not on_cpu:
        ways += [Choice("sequential", 1, threads, way) for way in (left if on_cpu else [best])]
    if clients > 1:
        ways += [Choice("vectorised", 1, threads, way) for way in (left if on_cpu else [best])]
    if clients > 1 and on_cpu and workers > 1 and can_fork():
        ways.append(Choice("workers", workers, 1, best))
    return ways


def _kernels(setup: Setup) -> list[Kernels]:
    """The ways to prepare a run's modules that may differ."""
    layouts = (False, True) if _has(setup, nn.Conv2d) else (False,)
    with_onednn = (
        _has(setup, nn.Linear)
        and setup.device.type == "cpu"
        and setup.train.precision == "float32"
        and onednn_available()
    )
    libraries: tuple[Literal["native", "onednn"], ...] = ("native", "onednn") if with_onednn else ("native",)
    return [Kernels(layout, library) for layout, library in product(layouts, libraries)]


def _has(setup: Setup, kind: type[nn.Module]) -> bool:
    return any(isinstance(layer, kind) for part in setup.parts.values() for layer in part.module.modules())


# Remembering --------------------------------------------------------------------------------------


def remembered(jobs: Sequence[Job], options: RunOptions) -> Calibration | None:
    """What was measured before for such jobs on this machine.

    None if nothing was, if it cannot be read, or if it is a day old and was not sure, or of a busy machine.
    """
    folder = files.cache_folder(CACHE)
    if folder is None or not folder.is_dir():
        return None
    file = folder / _file(jobs, options)
    try:
        held = Calibration.from_table(json.loads(file.read_text(encoding="utf-8")))
        str(held)  # which needs all that is read of it later
        stale = (held.busy or not held.engines.sure) and time.time() - file.stat().st_mtime > DAY
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError):
        return None  # it is measured again, and written anew
    return None if stale else held


def recalled(jobs: Sequence[Job], options: RunOptions) -> Timing | None:
    """What was measured before of the engine that a run asks for, or of the fastest; None if nothing was."""
    held = remembered(jobs, options)
    if held is None or options.engine == "auto":
        return held.engines.best if held else None
    choice = asked_for(jobs[0].setup, options)
    return next((timing for timing in held.engines.possible if timing.choice == choice), None)


def remember(jobs: Sequence[Job], options: RunOptions, calibration: Calibration) -> None:
    """Keep what was measured, if there is a place for it."""
    files.cache(CACHE, _file(jobs, options), json.dumps(calibration.table(), indent=2) + "\n")


def _file(jobs: Sequence[Job], options: RunOptions) -> str:
    """The name of the file for such jobs on this machine."""
    setup = jobs[0].setup
    # A weight changes nothing but whether its term is there.
    settings = {name: value > 0 if isinstance(value, float) else value for name, value in setup.method.table().items()}
    about = {
        "measured": VERSION,
        "machine": [processor(), cores(), str(setup.device), torch.__version__],
        "model": [type(setup.model.model).__name__, setup.model.model.table(), setup.model.shape, setup.model.classes],
        "method": [type(setup.method).__name__, settings],
        "batch": [setup.train.batch, setup.train.precision, setup.train.optimiser, len(jobs)],
        "options": [options.workers, options.threads],
    }
    key = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=12).hexdigest()
    return f"{key}.json"
