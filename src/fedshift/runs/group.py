"""Runs that advance together, each in its own folder: rounds, records and checkpoints, until all are at their ends.

A stack of runs decides the last bits of each, so a checkpoint says which runs advanced together, and they are saved
together: after a crash they go on as the group that they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from fedshift import files
from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.engine import Engine
from fedshift.errors import DiskError, FedshiftError, LockedError, StoppedError
from fedshift.runs.events import EventLog
from fedshift.runs.folder import EVENTS, FEDERATION, MESSAGES, RunFolder
from fedshift.runs.patience import end_early
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.records import Records
from fedshift.runs.schema import Timed
from fedshift.runs.trained import Blueprint
from fedshift.runs.weights import Selection, final_weights, read_weights
from fedshift.simulation.checkpoint import NEXT, Execution, saved
from fedshift.simulation.plan import planned_stages
from fedshift.simulation.rounds import advance
from fedshift.simulation.simulation import Simulation

Failed = dict[Simulation, Exception]
Judge = Callable[[RunFolder], str]  # why a run is to be given up, by what it has recorded; empty: it goes on


def to_the_end(folder: RunFolder) -> str:
    """Gives no run up."""
    return ""


@dataclass(eq=False)
class _Run:
    """A run under way: its simulation, folder and display; the time, and what the engine said, since its last line."""

    simulation: Simulation
    folder: RunFolder
    display: EventLog
    records: Records
    selection: Selection
    engine: str
    since: int
    judge: Judge = to_the_end
    seconds: float = 0.0
    together: int = 1
    notes: list[str] = field(default_factory=list)
    listed: int = 0  # how many kinds of messages are in messages.json
    finished: bool = False

    @property
    def position(self) -> int:
        """How many rounds are done."""
        return self.simulation.coordinator.position

    @property
    def open(self) -> bool:
        """Whether there are rounds left."""
        return self.position < self.simulation.rounds

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        every = self.simulation.experiment.run.checkpoint_every
        return self.position % every == 0 or self.simulation.coordinator.stage_over

    def note(self, text: str) -> None:
        """Keep what the engine said."""
        self.notes.append(text)
        self.display.note(text)

    def after_round(self, seconds: float, together: int, engine: Engine) -> None:
        """Show, score and record what is due after a round."""
        coordinator = self.simulation.coordinator
        if together != self.together:
            self._write_times(self.position - 1, 0.0)
            self.together = together
        self.seconds += seconds
        self.display.round(self.position, coordinator.bytes_down, coordinator.bytes_up)
        if self.due or len(coordinator.ledger) > self.listed:
            self._declare()
        # Records first, so that no checkpoint is ahead of them.
        if self.simulation.scored(self.position):
            started = time.perf_counter()
            record = self.simulation.record(coordinator.schedule[self.position - 1], engine)
            if self.simulation.setup.train.patience != "off" and (
                ended := end_early(coordinator, [*self.folder.records(), record])
            ):
                record["ended"] = ended
            self.records.append(record)
            read = self.simulation.evaluation.read
            self.selection.consider(record, read_weights(coordinator, read, self.simulation.site))
            self.display.evaluated(record)
            self._write_times(self.position, time.perf_counter() - started)
            if self.open and (reason := self.judge(self.folder)):
                raise StoppedError(reason)

    def save(self, execution: Execution) -> None:
        """Write the next checkpoint."""
        self.simulation.save(self.records.chain, execution)

    def commit(self) -> None:
        """Put it in the place of the one before."""
        self.simulation.commit()
        self.selection.commit()

    def stop(self, error: Exception) -> None:
        """End where it is, since another of its group cannot go on."""
        raise error

    def finish(self) -> None:
        """Write the final tensors and the summary."""
        self._declare()
        simulation = self.simulation
        self.folder.write_weights(*final_weights(simulation.coordinator, simulation.evaluation.read, simulation.site))
        state, method = self.simulation.coordinator.state, self.simulation.setup.method
        self.folder.write_summary([*self.simulation.notes, *method.notes(state)])
        self.display.end()
        self.finished = True

    def _declare(self) -> None:
        """Write down what crossed the wire."""
        ledger = self.simulation.coordinator.ledger
        self.listed = len(ledger)
        self.folder.write_json(MESSAGES, ledger.declaration())

    def _write_times(self, position: int, evaluation: float) -> None:
        """Write down what the rounds since the last line took."""
        if position > self.since:
            self.folder.timing(
                Timed(
                    start=self.since,
                    stop=position,
                    seconds=max(0.0, round(self.seconds, 3)),  # a clock may jump back
                    evaluation=max(0.0, round(evaluation * self.together, 3)),  # which nobody shares
                    together=self.together,
                    engine=self.engine,
                    notes=self.notes,
                )
            )
            self.notes = []
        self.since, self.seconds = position, 0.0


def carry_out(
    runs: Sequence[tuple[Simulation, RunFolder]], choice: Choice, progress: Progress, judge: Judge = to_the_end
) -> Failed:
    """Carry runs to their ends together, from the newest position that all of them have a checkpoint of.

    Folders that are not there yet are made. A run that ends before the others leaves them to go on, from a checkpoint
    that all of them have. A run that diverges does so as well, as it would each time, and so does one that ``judge``
    gives up. It is asked after every record but the last, and must say the same of the same records: a group that is
    resumed carries the run out once more as far as that. A disk that is full ends all runs, so that they can be resumed
    as the group that they were.

    Returns:
        What went wrong, by run; such a run can be resumed from its last checkpoint.
    """
    failed: Failed = {}
    group: list[_Run] = []

    def tell(text: str) -> None:
        progress.note(text)
        for run in group:
            run.note(text)

    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(choice, tell))
        try:
            for simulation, folder in runs:
                stack.enter_context(folder.locked())
                _make(simulation, folder)
            position = common_position([folder for _, folder in runs])
        except (DiskError, LockedError) as error:  # all or none, so that two processes do not share a group
            return dict.fromkeys((simulation for simulation, _ in runs), error)
        except FedshiftError as error:
            return dict.fromkeys((simulation for simulation, _ in runs), FedshiftError(str(error)))
        for simulation, folder in runs:
            with _noting(failed, simulation):
                group.append(_begin(simulation, folder, position, str(choice), progress, judge))
        _go_on(group, engine, choice, failed)
    return failed


def common_position(folders: Sequence[RunFolder]) -> int:
    """The newest position that every run has a checkpoint of; 0, where all can begin, if there is none.

    Raises:
        DamagedError: a checkpoint cannot be read.
    """
    return max(set[int].intersection(*({0, *saved(folder.path)} for folder in folders)), default=0) if folders else 0


def _go_on(group: Sequence[_Run], engine: Engine, choice: Choice, failed: Failed) -> None:
    """Round after round, until every run is at its end or has failed."""
    while going := [run for run in group if not run.finished and run.simulation not in failed]:
        if disk := next((error for error in failed.values() if isinstance(error, DiskError)), None):
            _each(going, failed, partial(_Run.stop, error=disk))
            return
        execution = Execution(choice.table(), tuple(run.folder.path.name for run in going))
        if at_their_ends := [run for run in going if not run.open]:
            _each(at_their_ends, failed, _Run.finish)
            continue
        started = time.perf_counter()
        displays = {run.simulation: run.display for run in going}
        errors = advance([run.simulation for run in going], engine, displays)
        seconds = time.perf_counter() - started
        for run in going:
            with _noting(failed, run.simulation, run.display):
                if error := errors.get(run.simulation):
                    raise error
                run.after_round(seconds, len(going), engine)
        if any(run.due for run in going):
            _each(going, failed, partial(_Run.save, execution=execution))
            if failed.keys().isdisjoint(run.simulation for run in going):  # or no position would be common to all
                _each(going, failed, _Run.commit)


def _each(runs: Sequence[_Run], failed: Failed, act: Callable[[_Run], None]) -> None:
    """Do something with every run that has not failed."""
    for run in runs:
        if run.simulation not in failed:
            with _noting(failed, run.simulation, run.display):
                act(run)


@contextmanager
def _noting(failed: Failed, simulation: Simulation, display: RunProgress | None = None) -> Iterator[None]:
    """What goes wrong with one run is written down, and does not touch the others."""
    try:
        yield
    except Exception as error:
        failed[simulation] = error
        if display is not None:
            display.failed(str(error))


def _make(simulation: Simulation, folder: RunFolder) -> None:
    """Make a run's folder, or check that it is this run's."""
    if not folder.begun:
        RunFolder.create(simulation.experiment, folder.path)
        return
    folder.check_is(simulation.experiment.fingerprint)
    folder.write_environment()


def _begin(
    simulation: Simulation, folder: RunFolder, position: int, engine: str, progress: Progress, judge: Judge
) -> _Run:
    """Go back to a checkpoint of a run and begin to show it."""
    folder.clear()
    records = folder.recording()
    there = saved(folder.path)
    if any(ahead > position for ahead in there):  # which the others of the group do not have
        files.remove(folder.path / NEXT)
    records.go_back(position, there[position][1].records if position else "")
    simulation.attach(folder.path, position)
    selection = Selection(folder.path, folder.identity.fingerprint)
    read, coordinator = simulation.evaluation.read, simulation.coordinator
    likes = read_weights(coordinator, read, simulation.site).likes if position else {}
    selection.go_back(folder.records(), likes)
    folder.write_json(FEDERATION, Blueprint.of(simulation.federation).table() | simulation.federation.sizes())
    outlook = Outlook(folder.path.name, simulation.rounds, position, planned_stages(simulation))
    display = EventLog(folder.path / EVENTS, outlook, progress.begin(outlook))
    return _Run(simulation, folder, display, records, selection, engine, position, judge)
