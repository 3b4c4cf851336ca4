"""Which engine is fastest for a run on this machine: measured briefly, remembered, and explained.

First one client takes a few steps with each way to prepare its modules (memory layout, library of the linear layers),
on one thread. Then a cohort takes them with each engine, prepared in the best of these ways. The fastest is chosen, and
kept in a file, by model, batch and machine. Results do not depend on it but for rounding; a run that is resumed goes on
with the engine it had.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn

from fedshift import files
from fedshift.core.contract import Phase
from fedshift.core.setup import Setup
from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.engine import Engine, Job
from fedshift.engines.kernels import Kernels, onednn_available
from fedshift.engines.machine import cores
from fedshift.engines.sequential import lane_of
from fedshift.engines.workers import can_fork
from fedshift.errors import DivergedError, FedshiftError
from fedshift.settings.experiment import RunOptions

STEPS = 2  # steps of each phase that a client takes while it is measured alone
LONG_ENOUGH = 30.0  # milliseconds of a client's work in a cohort, so that what a message costs is not all
SECONDS = 0.2  # how long each way is measured, at least, after it was tried once
COHORT_SECONDS = 1.0  # a cohort that takes longer is measured in part
SHORT_RUN = 10.0  # seconds; a run that is shorter is not worth measuring for
CLEARLY = 0.95  # a way is preferred to a simpler one if it takes no more than this part of its time
CACHE = "engines"
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """What one client's step takes.

    Attributes:
        choice: with what.
        milliseconds: a step of one client, the cohort's time divided by its steps.
        steps: how many steps were taken in a go.
        note: why it is out of the question, if it is.
    """

    choice: Choice
    milliseconds: float
    steps: int
    note: str = ""


@dataclass(frozen=True)
class Calibration:
    """Everything that was measured, and what was chosen.

    Attributes:
        kernels: one client on one thread, by the way its modules are prepared.
        engines: a cohort, by engine.
    """

    kernels: tuple[Timing, ...]
    engines: tuple[Timing, ...]

    @property
    def choice(self) -> Choice:
        """The fastest engine."""
        return fastest(self.engines).choice

    def __str__(self) -> str:
        """One line for people."""
        took = {timing.choice: f"{timing.milliseconds:.2f} ms" for timing in self.engines if not timing.note}
        rest = ", ".join(f"{choice.short} {time}" for choice, time in took.items() if choice != self.choice)
        return f"Engine: {self.choice}; {took[self.choice]} a client's step{f' ({rest})' if rest else ''}"

    def table(self) -> dict[str, Any]:
        """As JSON can hold it."""

        def rows(held: Sequence[Timing]) -> list[Any]:
            return [[timing.choice.table(), timing.milliseconds, timing.steps, timing.note] for timing in held]

        return {"kernels": rows(self.kernels), "engines": rows(self.engines)}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Self:
        """The inverse of :meth:`table`."""

        def held(rows: Sequence[Any]) -> tuple[Timing, ...]:
            return tuple(Timing(Choice.from_table(choice), *rest) for choice, *rest in rows)

        return cls(held(table["kernels"]), held(table["engines"]))


def fastest(measured: Sequence[Timing]) -> Timing:
    """The fastest way; of ways that are nearly equal, the first, as the simpler ones come first."""
    possible = [timing for timing in measured if not timing.note]
    best = possible[0]
    for timing in possible[1:]:
        if timing.milliseconds <= CLEARLY * best.milliseconds:
            best = timing
    return best


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
        plain = asked_for(jobs[0].setup, replace(options, engine="sequential"))
        try:
            if _estimate(plain, jobs) < SHORT_RUN:
                return plain
            calibration = calibrate(jobs, options)
        except DivergedError:
            return plain  # which will say so, where it belongs
        remember(jobs, options, calibration)
    tell(str(calibration))
    return calibration.choice


def _estimate(choice: Choice, jobs: Sequence[Job]) -> float:
    """How many seconds the training of a whole run takes, as a few steps of one client tell."""
    first = _measured(choice, [_shortened(jobs[0])], seconds=0.0)
    lanes = [lane_of(job) for job in jobs]
    steps = sum(lane.count(phase, lane.order(phase, lane.samples)) for lane in lanes for phase in lane.training)
    return first.milliseconds / 1000 * steps * jobs[0].setup.train.rounds


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


def calibrate(jobs: Sequence[Job], options: RunOptions, tell: Notify = lambda text: None) -> Calibration:
    """Measure what a step takes in every way that this machine offers; a few seconds, and nothing is kept of it.

    Args:
        jobs: what a cohort is asked to do.
        options: workers and threads.
        tell: hears what is measured.
    """
    short = [_shortened(job) for job in jobs]
    setup, threads = short[0].setup, options.threads or cores()
    on_cpu = setup.device.type == "cpu"

    def measured(choice: Choice, some: Sequence[Job]) -> Timing:
        tell(f"{len(some)} {'client' if len(some) == 1 else 'clients'}: {choice}")
        return _measured(choice, some, SECONDS)

    kernels = [
        measured(Choice("sequential", 1, 1 if on_cpu else threads, timing), short[:1]) for timing in _kernels(setup)
    ]
    best = fastest(kernels)
    ready = int(COHORT_SECONDS * 1000 / max(best.milliseconds * best.steps, 1e-3))
    steps = max(STEPS, int(LONG_ENOUGH / max(best.milliseconds, 1e-3)))
    cohort = [_shortened(job, steps) for job in jobs[: max(2 * cores(), ready)]]
    return Calibration(
        tuple(kernels), tuple(measured(way, cohort) for way in _ways(setup, options, best.choice.kernels, len(cohort)))
    )


def _ways(setup: Setup, options: RunOptions, kernels: Kernels, clients: int) -> list[Choice]:
    """The engines that can be had for so many clients."""
    on_cpu, threads, workers = setup.device.type == "cpu", options.threads or cores(), options.workers or cores()
    counts = sorted({1, threads} if on_cpu else {threads})
    ways = [Choice("sequential", 1, count, kernels) for count in counts]
    if clients > 1:
        ways.append(Choice("vectorised", 1, threads, kernels))
    if clients > 1 and on_cpu and workers > 1 and can_fork():
        ways.append(Choice("workers", workers, 1, kernels))
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


def _shortened(job: Job, steps: int = STEPS) -> Job:
    """The same job with so many steps of each phase at most, and without what is measured over all samples."""
    lane = lane_of(job)

    def cut(phase: Phase) -> Phase:
        return replace(phase, steps=min(steps, lane.count(phase, lane.order(phase, lane.samples))), epochs=None)

    return replace(job, exchange=replace(job.exchange, phases=tuple(cut(phase) for phase in lane.training)))


def _measured(choice: Choice, jobs: Sequence[Job], seconds: float) -> Timing:
    """What a client's step takes: the fastest of several goes in so many seconds, after one to warm up."""
    told: list[str] = []
    with open_engine(choice, told.append) as engine:
        steps, _ = _go(engine, jobs)
        goes: list[float] = []
        while len(goes) < 2 or sum(goes) < seconds:
            goes.append(_go(engine, jobs)[1])
    return Timing(choice, 1000 * min(goes) / max(1, steps), steps, told[0] if told else "")


def _go(engine: Engine, jobs: Sequence[Job]) -> tuple[int, float]:
    """How many steps the jobs take, and how long."""
    began, steps = time.perf_counter(), 0
    for answer in engine.train(jobs):
        if isinstance(answer, Exception):
            raise answer
        steps += answer.steps
    return steps, time.perf_counter() - began


# Remembering --------------------------------------------------------------------------------------


def remembered(jobs: Sequence[Job], options: RunOptions) -> Calibration | None:
    """What was measured before for such jobs on this machine; None if nothing was, or it cannot be read."""
    folder = files.cache_folder(CACHE)
    if folder is None:
        return None
    try:
        held = Calibration.from_table(json.loads((folder / _file(jobs, options)).read_text(encoding="utf-8")))
        str(held)  # which needs all that is read of it later
    except (OSError, ValueError, LookupError, TypeError):
        return None  # it is measured again, and written anew
    return held


def remember(jobs: Sequence[Job], options: RunOptions, calibration: Calibration) -> None:
    """Keep what was measured, if there is a place for it."""
    files.cache(CACHE, _file(jobs, options), json.dumps(calibration.table(), indent=2) + "\n")


def _file(jobs: Sequence[Job], options: RunOptions) -> str:
    """The name of the file for such jobs on this machine."""
    setup = jobs[0].setup
    # A weight changes nothing but whether its term is there.
    settings = {name: value > 0 if isinstance(value, float) else value for name, value in setup.method.table().items()}
    about = {
        "machine": [_processor(), cores(), str(setup.device), torch.__version__],
        "model": [type(setup.model.model).__name__, setup.model.model.table(), setup.model.shape, setup.model.classes],
        "method": [type(setup.method).__name__, settings],
        "batch": [setup.train.batch, setup.train.precision, setup.train.optimiser, len(jobs)],
        "options": [options.workers, options.threads],
    }
    key = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=12).hexdigest()
    return f"{key}.json"


def _processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
