"""Running a plan; finished work is not repeated, so the same plan continues.

A cell with a budget is tuned first, with other seeds. Seed by seed, the runs of a scenario are ordered by seed, for
which the data are loaded once. If such a run diverges, which is deterministic, its folder records that, and its cell's
other seeds are skipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby

from fedshift import files
from fedshift.catalogue import built_in
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, FedshiftWarning, LockedError
from fedshift.experiments import Experiment
from fedshift.reporting.comparison import REFUSED
from fedshift.runs import runner, scheduling
from fedshift.runs.dry_run import estimate
from fedshift.runs.events import Progress
from fedshift.runs.run import DIVERGED, Run
from fedshift.runs.shard import Shard
from fedshift.runs.simulation import Simulation
from fedshift.study.records import Key, Lacking
from fedshift.study.study_plan import Cell, Forecast, Plan, of_seeds
from fedshift.study.tuned import Found


@dataclass
class PlanOutcome:
    """The outcome of a plan."""

    shard: Shard | None = None
    cells: list[Cell] = field(default_factory=list)  # those that could run, with their tuned settings
    runs: list[Run] = field(default_factory=list)  # those that ran
    failed: scheduling.Failures = field(default_factory=dict)  # errors of others
    lacking: dict[Key, Lacking] = field(default_factory=dict)  # why cells have no number, if it is their method's fault
    # what tuning found, for each held-out domain, by scenario and row
    chosen: dict[tuple[str, str], list[Found]] = field(default_factory=dict)

    def tune(self, cell: Cell, progress: Progress) -> Cell:
        """A cell with the settings that are chosen on validation data, which are recorded."""
        requested = cell.experiments
        if cell.budget is not None:
            from fedshift.study.tune import best_settings, search  # which a dry run does not need

            searched = cell.make(cell.tuning_seeds)
            studies, failed = search(searched, cell.budget, progress, self.shard)
            best = best_settings(searched[0], studies)
            self.chosen[cell.key[:2]] = sorted(best.tuned, key=lambda found: found.case)
            if failed:  # of a single held-out domain among several
                raise DivergedError(str(failed[0]))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FedshiftWarning)
                requested = best.apply(requested)
        return replace(cell, make=of_seeds(requested), budget=None)

    def run(self, experiments: Sequence[Experiment], progress: Progress) -> scheduling.Failures:
        """Run runs; a run that cannot start records the reason in its folder. Returns the errors."""
        runs, failed = runner.run_all(experiments, progress, self.shard)
        for path, error in failed.items():
            if not (Run(path).has_started or isinstance(error, DiskError | LockedError)):
                files.make_folder(path)
                files.write(path / REFUSED, str(error).removeprefix(f"{path.name}: "))
        self.runs += runs
        self.failed |= failed
        return failed

    def run_seed(self, experiments: Sequence[Experiment], progress: Progress) -> None:
        there = [Run(scheduling.run_path(each)) for each in experiments]
        if before := divergence_reason(there):
            raise DivergedError(before)
        failed = self.run(experiments, progress).values()
        if other := next((error for error in failed if not isinstance(error, DivergedError)), None):
            raise other
        for error in failed:
            assert isinstance(error, DivergedError)
            for folder in (each for each in there if not each.finished):
                files.write(folder.path / DIVERGED, error.what)  # without advice, as settings are not the user's here
            raise DivergedError(error.what)

    @contextmanager
    def noting(self, cell: Cell) -> Iterator[None]:
        """Record why a cell has no number, and let the others continue, unless nothing can."""
        try:
            yield
        except Exception as error:
            why = lacking_reason(error, cell)
            if why is not None:
                self.lacking[cell.key] = why
            elif isinstance(error, FedshiftError):
                where = ", ".join(filter(None, cell.key))
                raise FedshiftError(f"{where}: {error} What is finished is kept. The same command resumes.") from error
            else:
                raise


def run_plan(plan: Plan, progress: Progress, shard: Shard | None = None) -> PlanOutcome:
    """Run the cells of a plan, perhaps shared with other processes, which begin with separate cells."""
    done = PlanOutcome(shard)
    order: Callable[[Sequence[Cell]], list[Cell]] = shard.order if shard else list
    for _, group in groupby(plan.cells, key=lambda cell: cell.key[0]):
        there, tuned = [*group], dict[Key, Cell]()
        for cell in order(there):
            with done.noting(replace(cell, seeds=(*cell.tuning_seeds, *cell.seeds))):
                tuned[cell.key] = done.tune(cell, progress)
        cells = [tuned[cell.key] for cell in there if cell.key in tuned]
        done.cells += cells
        if not plan.seed_by_seed:
            done.run([each for cell in cells for each in cell.experiments], progress)
            continue
        for seed in dict.fromkeys(seed for cell in cells for seed in cell.seeds):
            for cell in order(cells):
                of_seed = replace(cell, seeds=(seed,))
                if cell.key not in done.lacking:
                    with done.noting(of_seed):
                        done.run_seed(of_seed.experiments, progress)
    return done


def lacking_reason(error: Exception, cell: Cell) -> Lacking | None:
    """Why an error leaves a cell without a number; None if it is not the method's fault."""
    if isinstance(error, DivergedError):
        return Lacking(error.what, "diverged")
    if isinstance(error, DiskError | LockedError | DamagedError):
        return None
    try:
        for each in cell.experiments:
            Simulation(each)
    except FedshiftError as refusal:
        return Lacking(str(refusal), "refused")
    if built_in(type(cell.experiments[0].method)):
        return None
    name = "" if isinstance(error, FedshiftError) else f"{type(error).__name__}: "
    return Lacking(f"{name}{error}", "failed")


def divergence_reason(folders: Iterable[Run]) -> str:
    """Why the first diverged run diverged; empty if none did."""
    notes = (folder.path / DIVERGED for folder in folders if not folder.finished)
    return next((note.read_text(encoding="utf-8") for note in notes if note.is_file()), "")


# Forecasts -------------------------------------------------------------------------------------------


def forecast(plan: Plan, count: Callable[[Cell], int]) -> list[Forecast]:
    """The cost of a plan's cells, of which ``count`` returns the number of runs left; nothing is written.

    Only a few steps are trained, to time them. A tuned cell costs what its initial settings do. Raises a FedshiftError
    if no cell can run, or one cannot for a reason other than its method.
    """
    found, refused = [], list[FedshiftError]()
    for cell in plan.cells:
        try:
            left = count(cell)
            found.append(Forecast(cell.label, left, estimate(cell.experiments[0]) if left else None))
        except FedshiftError as error:
            why = lacking_reason(error, cell)
            if why is None:
                raise
            refused.append(error)
            found.append(Forecast(cell.label, 0, None, why.reason))
    if found and len(refused) == len(found):
        raise refused[0]
    return found


def unfinished_runs(cell: Cell) -> int:
    unfinished = sum(not Run(scheduling.run_path(each)).finished for each in cell.experiments)
    return unfinished + tuning_runs(cell)


def tuning_runs(cell: Cell) -> int:
    """The runs that choose a cell's settings: at each held-out domain, of each fold."""
    if cell.budget is None:
        return 0
    held_out = len(cell.experiments) // len(cell.seeds)
    folds = len(cell.budget.folds(cell.experiments[0]))
    return held_out * folds * cell.budget.runs(len(cell.tuning_seeds))


def planned_runs(cell: Cell) -> int:
    """All runs of a cell, with its tuning; 0 if it cannot run, which :func:`run_plan` reports."""
    try:
        return len(cell.experiments) + tuning_runs(cell)
    except FedshiftError:
        return 0
