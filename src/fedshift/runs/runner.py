"""Carrying out runs in their folders: finished ones are not repeated, interrupted ones go on as they were.

Runs that are alike advance together where that is faster, each with its own folder, records and checkpoints. Runs that
advanced together go on together. What of a run is damaged is set aside, and the run is made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedshift import files
from fedshift.engines.choice import Choice
from fedshift.engines.merging import kind
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, LockedError, StoppedError
from fedshift.experiments import Experiment
from fedshift.runs.checkpoint import Checkpoint, common_position, saved_positions
from fedshift.runs.events import Progress
from fedshift.runs.find import experiment_of, find, grid_files, read_grid, write_grid
from fedshift.runs.locks import locked
from fedshift.runs.origin import check_no_study, check_plugins
from fedshift.runs.run import DIVERGED, Run
from fedshift.runs.shard import Shard
from fedshift.runs.simulation import Simulation, refused_by_method
from fedshift.runs.together import Judge, carry_out, choice_of, to_the_end

Failures = dict[Path, FedshiftError]  # what went wrong with runs, by their folders
TOLD_APART = (DiskError, LockedError)  # kinds of failure that who asked for runs may tell apart
LOOK_AGAIN = 1.0  # seconds, while other processes are at work on all runs that are left


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run that is asked for.

    Attributes:
        folder: where it is carried out; it may not be there yet.
        experiment: gives the experiment, which is not needed where the run is finished.
        fingerprint: the experiment's; None: whatever the folder says.
    """

    folder: Run
    experiment: Callable[[], Experiment]
    fingerprint: str | None = None

    @classmethod
    def of(cls, experiment: Experiment, path: Path | None = None) -> PlannedRun:
        """An experiment, in a folder of its name or at another path."""
        return cls(Run(path or run_path(experiment)), lambda: experiment, experiment.fingerprint)


def run_path(experiment: Experiment) -> Path:
    """Where a run's folder lies."""
    return Path(experiment.run.out) / experiment.name / experiment.run_name


def start(experiment: Experiment, progress: Progress) -> Run:
    """Carry out a new run.

    Raises:
        FedshiftError: its folder exists, or the experiment cannot be run.
    """
    folder = Run(run_path(experiment))
    folder.check_new()
    files.check_folder(folder.path.parent)
    simulation = Simulation(experiment, progress.embedded)
    choice = simulation.choice(progress.note)
    for error in carry_out([(simulation, folder)], choice, progress).values():
        raise error
    return folder


def run_all(
    experiments: Sequence[Experiment], progress: Progress, shard: Shard | None = None
) -> tuple[list[Run], Failures]:
    """Carry out every run of a comparison, which is written down so that it can be resumed as a whole.

    Args:
        experiments: the runs.
        progress: hears of the progress.
        shard: carries them out with other processes, of whose runs it waits for the end.

    Returns:
        The folders of the runs that were carried out, and what went wrong with the others: one that fails does not
        keep the others from theirs.

    Raises:
        FedshiftError: the first run cannot be carried out, and neither diverged nor is refused by its method alone; or
            the method of every run refuses it.
    """
    asked = [PlannedRun.of(each) for each in experiments]
    for folder in {each.folder.path.parent for each in asked if not each.folder.finished}:
        files.check_folder(folder)
    write = partial(write_grid, experiments, run_path(experiments[0]).parent)
    return _Grid(progress, before_first=write, shard=shard).carry_out(asked)


def resume(asked: Sequence[PlannedRun], progress: Progress) -> tuple[list[Run], Failures]:
    """Carry on every run that :func:`below` found and that is not finished.

    Returns:
        As :func:`run_all`.

    Raises:
        FedshiftError: as :func:`run_all`.
    """
    return _Grid(progress).carry_out(asked)


def attempt(asked: Sequence[PlannedRun], progress: Progress, judge: Judge, shard: Shard | None = None) -> Failures:
    """Carry out runs, of which ``judge`` may give some up; see :func:`fedshift.runs.together.carry_out`.

    Returns:
        What went wrong. A run that was given up is not among it: it is left unfinished.

    Raises:
        FedshiftError: as :func:`run_all`.
    """
    grid = _Grid(progress, judge, shard=shard)
    grid.carry_out(asked)
    return grid.failed


def below(path: Path, trust: bool = False) -> list[PlannedRun]:
    """The runs of comparisons at or below a path, those that have not begun included, and then all other runs there.

    Args:
        path: a run folder, or a folder of them.
        trust: whether plugins may be imported that never ran on this machine.

    Raises:
        UntrustedError: a run needs such a plugin.
        FedshiftError: there is no run, or the path is a study's or a trial's.
    """
    check_no_study(path)
    asked: dict[Path, PlannedRun] = {}
    for file in grid_files(path):
        for run in read_grid(file).runs:
            folder = Run(file.parent / run.folder, trust)
            if not folder.begun:
                check_plugins(run.plugins, folder.path, trust)
                begin = partial(experiment_of, run, file, trust)
                asked.setdefault(folder.path, PlannedRun(folder, begin, run.fingerprint))
            else:
                asked.setdefault(folder.path, _begun(folder))
    for folder in find(path, 0 if asked else 1, trust):
        asked.setdefault(folder.path, _begun(folder))
    return list(asked.values())


def _begun(folder: Run) -> PlannedRun:
    """A run that has a folder; nothing is imported yet, but it is known whether it may be."""
    if not folder.finished and folder.readable:
        folder.check_may_go_on()
    return PlannedRun(folder, folder.experiment_to_go_on)


class _Grid:
    """Carries out many runs in groups."""

    def __init__(
        self,
        progress: Progress,
        judge: Judge = to_the_end,
        before_first: Callable[[], None] = lambda: None,
        shard: Shard | None = None,
    ) -> None:
        """Prepare; ``before_first`` is called before a run begins that has no folder yet."""
        self._progress, self._judge, self._before_first, self._shard = progress, judge, before_first, shard
        self._busy: set[Path] = set()  # runs that other processes are at work on
        self._waiting: list[tuple[PlannedRun, Simulation]] = []  # for others that are alike
        self.choice_of: Choice | None = None  # of those that wait
        self._folders: dict[Path, Run] = {}
        self._damaged: list[PlannedRun] = []
        self._refusal: FedshiftError | None = None  # what the method of the first run refuses that was not even begun
        self.failed: Failures = {}

    def carry_out(self, asked: Sequence[PlannedRun]) -> tuple[list[Run], Failures]:
        """Carry out all; see :func:`run_all`."""
        if self._shard is None:
            self._carry_out_all(asked)
        else:
            self._share(self._shard.order(asked))
        folders = [self._folders[each.folder.path] for each in asked if each.folder.path in self._folders]
        if self._refusal and len(self.failed) == len(asked):
            raise self._refusal
        return folders, self.failed

    def _carry_out_all(self, asked: Sequence[PlannedRun]) -> None:
        unfinished = [each for each in asked if not self._is_finished(each)]
        fresh = self._go_on_with_groups(unfinished)
        self._carry_out_fresh(fresh)
        damaged, self._damaged = self._damaged, []
        self._carry_out_fresh(damaged)
        for again in self._damaged:
            self._note_failure(again, FedshiftError("its files are damaged over and over; look at the disk."))

    # Runs that other processes carry out as well ------------------------------------------------

    def _share(self, asked: Sequence[PlannedRun]) -> None:
        """Carry out, each alone, what no other process is at work on, until all are over."""
        waits = False
        while asked:
            left = [each for each in asked if not self._is_over(replace(each, folder=replace(each.folder)))]
            if len(left) == len(asked):
                if not waits:
                    self._progress.note(f"Waiting for {len(left)} runs that other processes carry out.")
                waits = True
                time.sleep(LOOK_AGAIN)
            asked = left

    def _is_over(self, asked: PlannedRun) -> bool:
        """Carry a run out, unless it is over; whether it is then, which it is not if another process is at it."""
        path = asked.folder.path
        if (path / DIVERGED).is_file() and not asked.folder.finished:
            self._folders[path] = asked.folder
            self.failed[path] = DivergedError(f"{path.name}: {(path / DIVERGED).read_text(encoding='utf-8')}")
            return True
        if asked.folder.begun and not asked.folder.finished and self._judge(asked.folder):
            return True
        try:
            if not asked.folder.finished:
                with locked(path):  # before its data are loaded; what a process left that is gone is free in the end
                    pass
        except LockedError:
            return False
        self._busy.discard(path)
        self._carry_out_all([asked])
        if isinstance(error := self.failed.get(path), DivergedError):
            files.write(path / DIVERGED, error.what.removeprefix(f"{path.name}: "))
        return path not in self._busy

    # Runs that have begun -----------------------------------------------------------------------

    def _is_finished(self, asked: PlannedRun) -> bool:
        """Whether a run is finished, or to be left out for now: a damaged one is made again after the others."""
        folder = asked.folder
        try:
            if asked.fingerprint is not None and folder.begun:
                folder.check_is(asked.fingerprint)
                _ = folder.table  # or an error: what was asked for must be as it was
            if not folder.finished:
                return False
            if damage := folder.damage():
                self._set_aside(asked, damage)
                return True
        except FedshiftError as error:
            self._note_failure(asked, error)
            return True
        self._folders[folder.path] = folder
        self._progress.reused(folder.path.name)
        return True

    def _go_on_with_groups(self, unfinished: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Carry on the runs that have a checkpoint, with those they went on with; gives back the others."""
        fresh: list[PlannedRun] = []
        groups: dict[tuple[Path, tuple[str, ...]], tuple[Checkpoint, list[PlannedRun]]] = {}
        for asked in unfinished:
            folder = asked.folder.path
            try:
                checkpoint = asked.folder.checkpoint
            except FedshiftError as error:
                self._set_aside(asked, error)
                continue
            if checkpoint is None:
                fresh.append(asked)
                continue
            mates = [Run(folder.parent / name) for name in checkpoint.together]
            if all(saved_positions(mate.path) for mate in mates if mate.begun and not mate.finished):
                names = tuple(checkpoint.together)
                groups.setdefault((folder.parent, names), (checkpoint, []))[1].append(asked)
            else:  # it begins again with its group, of which not all have written their first checkpoint
                fresh.append(asked)
        for checkpoint, members in groups.values():
            self._go_on(checkpoint, members)
        return fresh

    def _go_on(self, checkpoint: Checkpoint, members: Sequence[PlannedRun]) -> None:
        """Carry on runs that went on together."""
        ready = [(asked, simulation) for asked in members if (simulation := self._simulation(asked)) is not None]
        if not ready:
            return
        first, simulation = ready[0]
        position = common_position([asked.folder.path for asked, _ in ready])
        choice = choice_of(checkpoint, simulation, self._progress)
        gone = {*checkpoint.together} - {asked.folder.path.name for asked, _ in ready}
        missing = sum(not _had_ended(Run(first.folder.path.parent / name), position) for name in gone)
        if missing and position < simulation.rounds and choice.engine == "vectorised":
            self._progress.note(
                f"{first.folder.path.name} was stacked with {missing} runs that do not go on with it: its last digits "
                "may differ from those of a run that was never interrupted."
            )
        self._carry_out(ready, choice)

    # Runs that begin ----------------------------------------------------------------------------

    def _carry_out_fresh(self, asked: Iterable[PlannedRun]) -> None:
        for each in asked:
            simulation = self._simulation(each)
            if simulation is not None:
                self._add(each, simulation, simulation.choice(self._progress.note))
        self._carry_out_waiting()

    def _add(self, asked: PlannedRun, simulation: Simulation, choice: Choice) -> None:
        """Put a run to those that wait, after carrying these out if it is of another kind or they are enough."""
        if self._waiting and not (choice == self.choice_of and _alike(self._waiting[0][1], simulation)):
            self._carry_out_waiting()
        self.choice_of = choice
        self._waiting.append((asked, simulation))
        if len(self._waiting) >= (simulation.experiment.run.together or choice.together):
            self._carry_out_waiting()

    def _carry_out_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self.choice_of:
            self._carry_out(waiting, self.choice_of)

    # All ----------------------------------------------------------------------------------------

    def _simulation(self, asked: PlannedRun) -> Simulation | None:
        """Load a run's data and build its model; None if that cannot be done, which is written down."""
        experiment = None
        try:
            experiment = asked.experiment()
            return Simulation(experiment, self._progress.embedded)
        except FedshiftError as error:
            first = not (self._folders or self.failed)
            if experiment and first and refused_by_method(experiment, self._progress.embedded):
                self._refusal = error
            self._note_failure(asked, error)
            return None

    def _carry_out(self, runs: Sequence[tuple[PlannedRun, Simulation]], choice: Choice) -> None:
        """Carry out a group."""
        self._before_first()
        by_simulation = {simulation: asked for asked, simulation in runs}
        self._folders |= {asked.folder.path: asked.folder for asked, _ in runs}
        group = [(simulation, asked.folder) for asked, simulation in runs]
        failed = carry_out(group, choice, self._progress, self._judge)
        for simulation, error in failed.items():
            asked = by_simulation[simulation]
            if isinstance(error, DamagedError):
                self._set_aside(asked, error)
            elif isinstance(error, FedshiftError):
                if not isinstance(error, StoppedError):
                    self._note_failure(asked, error)
            else:
                raise error

    def _set_aside(self, asked: PlannedRun, reason: object) -> None:
        """Make room for a damaged run, which is made again after the others."""
        try:
            with locked(asked.folder.path):
                aside = asked.folder.set_aside()
        except FedshiftError as error:
            self._note_failure(asked, error)
            return
        self._damaged.append(asked)
        self._progress.note(
            f"{asked.folder.path.name} is made again from its first round, alone: {reason} What was there is kept in "
            f"'{aside.name}'. If it was stacked with others, its last digits may differ from what it was."
        )

    def _note_failure(self, asked: PlannedRun, error: FedshiftError) -> None:
        """Remember what went wrong with a run.

        What is wrong with the first is most likely wrong with all, unless it diverged or its method refuses it.
        """
        if self._shard and isinstance(error, LockedError):
            self._busy.add(asked.folder.path)
            self._folders.pop(asked.folder.path, None)
            return
        if not isinstance(error, DivergedError):
            self._folders.pop(asked.folder.path, None)
            if not (self._folders or self.failed or self._refusal):
                raise error
        name = asked.folder.path.name
        if isinstance(error, DivergedError):
            self.failed[asked.folder.path] = DivergedError(f"{name}: {error.what}", error.fix)
        else:
            kind = next((kind for kind in TOLD_APART if isinstance(error, kind)), FedshiftError)
            self.failed[asked.folder.path] = kind(f"{name}: {error}")


def _alike(current: Simulation, other: Simulation) -> bool:
    """Whether two runs may advance together: what shares a stack, carried out in the same way."""
    return kind(current.setup) == kind(other.setup) and current.experiment.run == other.experiment.run


def _had_ended(folder: Run, position: int) -> bool:
    """Whether a run was at its end when so many rounds were done, so that others went on without it."""
    try:
        return folder.finished and folder.records[-1]["position"] <= position
    except (FedshiftError, IndexError):
        return False
