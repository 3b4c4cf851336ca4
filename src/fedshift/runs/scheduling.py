"""The order of runs: in groups that advance together, or one by one, shared by several processes.

Runs that advanced together resume together. A damaged run is set aside and repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedshift import files
from fedshift.engines.choice import Choice
from fedshift.engines.merging import kind
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, LockedError, StoppedError
from fedshift.experiments import Experiment
from fedshift.runs.checkpoint import Checkpoint, common_position, saved_positions
from fedshift.runs.events import Progress
from fedshift.runs.locks import locked
from fedshift.runs.run import DIVERGED, Run
from fedshift.runs.shard import Shard
from fedshift.runs.simulation import Simulation, refused_by_method
from fedshift.runs.together import Judge, choice_of, run_together, to_the_end

Failures = dict[Path, FedshiftError]  # what went wrong with runs, by their folders
TOLD_APART = (DiskError, LockedError)  # kinds of failure that callers may distinguish
CHECK_SECONDS = 1.0  # seconds, while other processes work on all remaining runs


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A requested run."""

    folder: Run  # where it runs; it need not exist
    experiment: Callable[[], Experiment]  # returns the experiment, which a finished run does not need
    fingerprint: str | None = None  # the experiment's; None: the folder's

    @classmethod
    def of(cls, experiment: Experiment, path: Path | None = None) -> PlannedRun:
        return cls(Run(path or run_path(experiment)), lambda: experiment, experiment.fingerprint)


def run_path(experiment: Experiment) -> Path:
    return Path(experiment.run.out) / experiment.name / experiment.run_name


class Schedule:
    """Runs many runs, equal ones in groups."""

    def __init__(
        self,
        progress: Progress,
        judge: Judge = to_the_end,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        """``before_first`` is called before a run without a folder starts."""
        self._progress, self._judge, self._before_first = progress, judge, before_first
        self._waiting: list[tuple[PlannedRun, Simulation]] = []  # for others that are equal
        self.choice_of: Choice | None = None  # of those that wait
        self._folders: dict[Path, Run] = {}
        self._damaged: list[PlannedRun] = []
        self._refusal: FedshiftError | None = None  # what the method of the first run refuses that was not even started
        self._odd = False  # whether the oddities of the data were noted
        self.failed: Failures = {}

    def run_all(self, requested: Sequence[PlannedRun]) -> tuple[list[Run], Failures]:
        """Run all; returns and raises as :func:`fedshift.runs.runner.run_all`."""
        self._run_all(requested)
        folders = [self._folders[each.folder.path] for each in requested if each.folder.path in self._folders]
        if self._refusal and len(self.failed) == len(requested):
            raise self._refusal
        return folders, self.failed

    def _run_all(self, requested: Sequence[PlannedRun]) -> None:
        unfinished = [each for each in requested if not self._is_finished(each)]
        fresh = self._resume_groups(unfinished)
        self._run_fresh(fresh)
        damaged, self._damaged = self._damaged, []
        self._run_fresh(damaged)
        for again in self._damaged:
            self._note_failure(again, FedshiftError("its files are damaged repeatedly; inspect the disk."))

    # Runs that have started -----------------------------------------------------------------------

    def _is_finished(self, requested: PlannedRun) -> bool:
        """Whether a run is finished, or to be skipped for now: a damaged run is repeated after the others."""
        folder = requested.folder
        try:
            if requested.fingerprint is not None and folder.has_started:
                folder.check_is(requested.fingerprint)
                _ = folder.table  # or an error: what was requested must be as it was
            if not folder.finished:
                return False
            if damage := folder.damage():
                self._set_aside(requested, damage)
                return True
        except FedshiftError as error:
            self._note_failure(requested, error)
            return True
        self._folders[folder.path] = folder
        self._progress.reused(folder.path.name)
        return True

    def _resume_groups(self, unfinished: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Resume the runs that have a checkpoint, with the runs of their group; returns the other runs."""
        fresh: list[PlannedRun] = []
        groups: dict[tuple[Path, tuple[str, ...]], tuple[Checkpoint, list[PlannedRun]]] = {}
        for requested in unfinished:
            folder = requested.folder.path
            try:
                checkpoint = requested.folder.checkpoint
            except FedshiftError as error:
                self._set_aside(requested, error)
                continue
            if checkpoint is None:
                fresh.append(requested)
                continue
            mates = [Run(folder.parent / name) for name in checkpoint.together]
            if all(saved_positions(mate.path) for mate in mates if mate.has_started and not mate.finished):
                names = tuple(checkpoint.together)
                groups.setdefault((folder.parent, names), (checkpoint, []))[1].append(requested)
            else:  # it begins again with its group, of which not all have written their first checkpoint
                fresh.append(requested)
        for checkpoint, members in groups.values():
            self._resume_group(checkpoint, members)
        return fresh

    def _resume_group(self, checkpoint: Checkpoint, members: Sequence[PlannedRun]) -> None:
        ready = [
            (requested, simulation) for requested in members if (simulation := self._simulation(requested)) is not None
        ]
        if not ready:
            return
        first, simulation = ready[0]
        position = common_position([requested.folder.path for requested, _ in ready])
        choice = choice_of(checkpoint, simulation, self._progress)
        gone = {*checkpoint.together} - {requested.folder.path.name for requested, _ in ready}
        missing = sum(not _had_ended(Run(first.folder.path.parent / name), position) for name in gone)
        if missing and position < simulation.rounds and choice.engine == "vectorised":
            self._progress.note(
                f"{first.folder.path.name} was stacked with {missing} runs that do not continue with it: its last "
                "digits may differ from an uninterrupted run's."
            )
        self._run(ready, choice)

    # Runs that begin ----------------------------------------------------------------------------

    def _run_fresh(self, requested: Iterable[PlannedRun]) -> None:
        for each in requested:
            simulation = self._simulation(each)
            if simulation is not None:
                self._add(each, simulation, simulation.choice(self._progress.note))
        self._run_waiting()

    def _add(self, requested: PlannedRun, simulation: Simulation, choice: Choice) -> None:
        """Queue a run; the queue is run first if it is of another kind or full."""
        if self._waiting and not (choice == self.choice_of and _can_stack(self._waiting[0][1], simulation)):
            self._run_waiting()
        self.choice_of = choice
        self._waiting.append((requested, simulation))
        if len(self._waiting) >= (simulation.experiment.run.together or choice.together):
            self._run_waiting()

    def _run_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self.choice_of:
            self._run(waiting, self.choice_of)

    # All ----------------------------------------------------------------------------------------

    def _simulation(self, requested: PlannedRun) -> Simulation | None:
        """Load a run's data and build its model; None if that fails, which is recorded."""
        experiment = None
        try:
            experiment = requested.experiment()
            simulation = Simulation(experiment, self._progress.embedded)
        except FedshiftError as error:
            first = not (self._folders or self.failed)
            if experiment and first and refused_by_method(experiment, self._progress.embedded):
                self._refusal = error
            self._note_failure(requested, error)
            return None
        if (oddity := simulation.blueprint.oddity) and not self._odd:
            self._odd = True  # the data of other runs are as a rule the same
            self._progress.note(oddity)
        return simulation

    def _run(self, runs: Sequence[tuple[PlannedRun, Simulation]], choice: Choice) -> None:
        self._before_first()
        by_simulation = {simulation: requested for requested, simulation in runs}
        self._folders |= {requested.folder.path: requested.folder for requested, _ in runs}
        group = [(simulation, requested.folder) for requested, simulation in runs]
        failed = run_together(group, choice, self._progress, self._judge)
        for simulation, error in failed.items():
            requested = by_simulation[simulation]
            if isinstance(error, DamagedError):
                self._set_aside(requested, error)
            elif isinstance(error, FedshiftError):
                if not isinstance(error, StoppedError):
                    self._note_failure(requested, error)
            else:
                raise error

    def _set_aside(self, requested: PlannedRun, reason: object) -> None:
        try:
            with locked(requested.folder.path):
                aside = requested.folder.set_aside()
        except FedshiftError as error:
            self._note_failure(requested, error)
            return
        self._damaged.append(requested)
        self._progress.note(
            f"{requested.folder.path.name} is repeated from its first round, alone: {reason} The old files are kept "
            f"in '{aside.name}'. If it was stacked with others, its last digits may differ from before."
        )

    def _note_failure(self, requested: PlannedRun, error: FedshiftError) -> None:
        """Record a run's error; an error of the first run is raised, unless it diverged or its method refuses it."""
        if not isinstance(error, DivergedError):
            self._folders.pop(requested.folder.path, None)
            if not (self._folders or self.failed or self._refusal):
                raise error
        name = requested.folder.path.name
        if isinstance(error, DivergedError):
            self.failed[requested.folder.path] = DivergedError(f"{name}: {error.what}", error.fix)
        else:
            kind = next((kind for kind in TOLD_APART if isinstance(error, kind)), FedshiftError)
            self.failed[requested.folder.path] = kind(f"{name}: {error}")


class SharedSchedule(Schedule):
    """Runs many runs with other processes: each alone, and none that another process is running.

    Args:
        shard: this process among them.
        before_first: called before a run without a folder starts.
    """

    def __init__(
        self,
        shard: Shard,
        progress: Progress,
        judge: Judge = to_the_end,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(progress, judge, before_first)
        self._shard = shard
        self._busy: set[Path] = set()  # runs that other processes are busy with

    def _run_all(self, requested: Sequence[PlannedRun]) -> None:
        self._share(self._shard.order(requested))

    def _share(self, requested: Sequence[PlannedRun]) -> None:
        """Run, each alone, the runs that no other process is running, until all are over."""
        waits = False
        while requested:
            left = [each for each in requested if not self._is_over(replace(each, folder=replace(each.folder)))]
            if len(left) == len(requested):
                if not waits:
                    self._progress.note(f"Waiting for {len(left)} runs that other processes run.")
                waits = True
                time.sleep(CHECK_SECONDS)
            requested = left

    def _is_over(self, requested: PlannedRun) -> bool:
        """Run a run unless it is over; returns whether it is over, which it is not while another process runs it."""
        path = requested.folder.path
        if (path / DIVERGED).is_file() and not requested.folder.finished:
            self._folders[path] = requested.folder
            self.failed[path] = DivergedError(f"{path.name}: {(path / DIVERGED).read_text(encoding='utf-8')}")
            return True
        if requested.folder.has_started and not requested.folder.finished and self._judge(requested.folder):
            return True
        try:
            if not requested.folder.finished:
                with locked(path):  # before its data are loaded; what a process left that is gone is free in the end
                    pass
        except LockedError:
            return False
        self._busy.discard(path)
        super()._run_all([requested])
        if isinstance(error := self.failed.get(path), DivergedError):
            files.write(path / DIVERGED, error.what.removeprefix(f"{path.name}: "))
        return path not in self._busy

    def _note_failure(self, requested: PlannedRun, error: FedshiftError) -> None:
        if isinstance(error, LockedError):
            self._busy.add(requested.folder.path)
            self._folders.pop(requested.folder.path, None)
        else:
            super()._note_failure(requested, error)


def _can_stack(current: Simulation, other: Simulation) -> bool:
    return kind(current.setup) == kind(other.setup) and current.experiment.run == other.experiment.run


def _had_ended(folder: Run, position: int) -> bool:
    try:
        return folder.finished and folder.records[-1]["position"] <= position
    except (FedshiftError, IndexError):
        return False
