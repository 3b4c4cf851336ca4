"""Runs that advance together, each with its folder, until all are at their ends.

A stack of runs decides the last bits of each, so a checkpoint lists the runs that advanced together, and none removes
its checkpoint before all have written the next: after a crash they resume as the same group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.engine import Engine
from fedshift.engines.workers import can_fork
from fedshift.errors import DamagedError, DiskError, FedshiftError, LockedError, StoppedError
from fedshift.runs.checkpoint import Checkpoint, common_position
from fedshift.runs.collapse import notes_on_collapse
from fedshift.runs.dry_run import planned_stages
from fedshift.runs.events import Progress, RunEvents
from fedshift.runs.locks import locked
from fedshift.runs.lockstep import advance
from fedshift.runs.recorder import Recorder
from fedshift.runs.run import EVENTS, Run
from fedshift.runs.simulation import Simulation

Failed = dict[Simulation, Exception]
Judge = Callable[[Run], str]  # why a run is to be given up, by what it has recorded; empty: it continues


def to_the_end(folder: Run) -> str:
    return ""


@dataclass(eq=False)
class _Run:
    """A run in progress."""

    simulation: Simulation
    recorder: Recorder
    events: RunEvents
    engine: str
    judge: Judge = to_the_end
    finished: bool = False

    @property
    def open(self) -> bool:
        return self.recorder.position < self.simulation.rounds

    @property
    def due(self) -> bool:
        every = self.simulation.experiment.run.checkpoint_every
        return self.recorder.position % every == 0 or self.simulation.coordinator.stage_over

    def note(self, text: str) -> None:
        self.recorder.notes.append(text)
        self.events.note(text)

    def after_round(self, seconds: float, together: int, engine: Engine) -> None:
        """Show, score and record what is due after a round."""
        coordinator, recorder = self.simulation.coordinator, self.recorder
        recorder.count(seconds, self.engine, together)
        self.events.round(recorder.position, *coordinator.sent)
        if self.simulation.scored(recorder.position):
            started = time.perf_counter()
            record = self.simulation.record(coordinator.schedule[recorder.position - 1], engine)
            recorder.record(record)
            self.events.evaluated(record)
            recorder.write_times(self.engine, time.perf_counter() - started)
            if self.open and (reason := self.judge(Run(recorder.folder.path))):
                raise StoppedError(reason)

    def finish(self) -> None:
        state, method = self.simulation.coordinator.state, self.simulation.setup.method
        collapsed = notes_on_collapse(self.simulation.setup, self.simulation.blueprint, self.recorder.records)
        for text in collapsed:
            self.events.note(text)
        self.recorder.finish([*self.simulation.notes, *method.notes(state), *collapsed])
        self.events.end()
        self.finished = True


def run_together(
    runs: Sequence[tuple[Simulation, Run]], choice: Choice, progress: Progress, judge: Judge = to_the_end
) -> Failed:
    """Run runs together to their ends, from the newest position of which all have a checkpoint.

    Missing folders are created. A run that ends before the others, diverges, or is stopped by ``judge`` leaves the
    others to continue, from a checkpoint that all of them have. ``judge`` is called after every record but the last,
    and must be deterministic: a resumed group repeats the run up to that point. A full disk ends all runs, so that they
    can be resumed as the same group. Returns the errors by run; such a run can be resumed from its last checkpoint.
    """
    failed: Failed = {}
    group: list[_Run] = []

    def note(text: str) -> None:
        progress.note(text)
        for run in group:
            run.note(text)

    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(choice, note))
        try:
            for simulation, folder in runs:
                stack.enter_context(_locked_unfinished(folder))
                if not folder.has_started:
                    Run.create(simulation.experiment, folder.path)
                folder.check_is(simulation.experiment.fingerprint)
            position = common_position([folder.path for _, folder in runs])
        except (DiskError, LockedError) as error:  # all or none, so that two processes do not share a group
            return dict.fromkeys((simulation for simulation, _ in runs), error)
        except FedshiftError as error:
            return dict.fromkeys((simulation for simulation, _ in runs), FedshiftError(str(error)))
        for simulation, folder in runs:
            with _noting(failed, simulation):
                group.append(_begin(simulation, folder, position, str(choice), progress, judge))
        _run_rounds(group, engine, choice, failed)
    return failed


@contextmanager
def _locked_unfinished(folder: Run) -> Iterator[None]:
    with locked(folder.path):
        if folder.finished:
            raise LockedError(f"Another process has just finished '{folder.path}'; run the command again to read it.")
        yield


def _begin(simulation: Simulation, folder: Run, position: int, engine: str, progress: Progress, judge: Judge) -> _Run:
    recorder = Recorder(folder, simulation.coordinator, simulation.evaluation.read, simulation.site)
    recorder.begin(simulation.blueprint, position)
    events = RunEvents(folder.path.name, progress, folder.path / EVENTS, position)
    events.begin(planned_stages(simulation))
    return _Run(simulation, recorder, events, engine, judge)


def _run_rounds(group: Sequence[_Run], engine: Engine, choice: Choice, failed: Failed) -> None:
    """Run rounds until every run is at its end or has failed."""
    while active := [run for run in group if not run.finished and run.simulation not in failed]:
        if disk := next((error for error in failed.values() if isinstance(error, DiskError)), None):
            for run in active:
                failed[run.simulation] = disk
                run.events.failed(str(disk))
            return
        if at_their_ends := [run for run in active if not run.open]:
            _apply(at_their_ends, failed, _Run.finish)
            continue
        started = time.perf_counter()
        errors = advance([run.simulation for run in active], engine, {run.simulation: run.events for run in active})
        seconds = time.perf_counter() - started
        for run in active:
            with _noting(failed, run.simulation, run.events):
                if error := errors.get(run.simulation):
                    raise error
                run.after_round(seconds, len(active), engine)
        if any(run.due for run in active):
            _save(active, choice, failed)


def _save(active: Sequence[_Run], choice: Choice, failed: Failed) -> None:
    names = [run.recorder.folder.path.name for run in active]
    _apply(active, failed, lambda run: run.recorder.save(choice.table(), names))
    if failed.keys().isdisjoint(run.simulation for run in active):  # or no position would be common to all
        _apply(active, failed, lambda run: run.recorder.keep_only(run.recorder.position))


def _apply(runs: Sequence[_Run], failed: Failed, act: Callable[[_Run], None]) -> None:
    for run in runs:
        if run.simulation not in failed:
            with _noting(failed, run.simulation, run.events):
                act(run)


@contextmanager
def _noting(failed: Failed, simulation: Simulation, events: RunEvents | None = None) -> Iterator[None]:
    """Record an error of a run; the others continue."""
    try:
        yield
    except Exception as error:
        failed[simulation] = error
        if events is not None:
            events.failed(str(error))


_CHOICES = TypeAdapter(Choice)


def choice_of(checkpoint: Checkpoint, simulation: Simulation, progress: Progress) -> Choice:
    """The engine of a resumed run: the previous one, unless another is requested or it is unavailable."""
    try:
        before = _CHOICES.validate_python(checkpoint.engine)
    except ValidationError as error:
        raise DamagedError(
            f"The checkpoint of '{simulation.experiment.run_name}' names no engine ({error})."
        ) from error
    options = simulation.experiment.run
    if options.engine == "auto" and _still_right(before, simulation):
        return before
    return simulation.choice(progress.note)


def _still_right(before: Choice, simulation: Simulation) -> bool:
    """Whether the run's previous engine is available, and fits its options."""
    options = simulation.experiment.run
    if before.engine == "ray":
        return False
    if before.engine == "workers":
        here = can_fork() and simulation.setup.device.type == "cpu"
        return here and options.workers in (0, before.workers)
    return options.threads in (0, before.threads)
