"""Carrying out a study; what is finished is not repeated, so the same study goes on where it was.

Where the scale has trials, each row is tuned on each scenario first, with other seeds. The runs of a scenario are
ordered by seed, for which the data are loaded once. Where a run diverges, that is written into its folder, as it would
diverge each time, and its cell's other seeds are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedshift import files
from fedshift.catalogue import built_in
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, FedshiftWarning, LockedError
from fedshift.experiments import Experiment
from fedshift.reporting.comparison import REFUSED
from fedshift.runs import runner
from fedshift.runs.dry_run import estimate
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation
from fedshift.study.scenarios import Scale, Scenario
from fedshift.study.study_plan import Cell, Forecast, Key, Lacking, StudyPlan, always
from fedshift.study.tuned import Found

if TYPE_CHECKING:
    from fedshift.study.tune import Budget

DIVERGED = "diverged.txt"  # in the folder of a run: why it has no end
Chosen = dict[tuple[str, str], list[Found]]


def carry_out(plan: StudyPlan, progress: Progress) -> tuple[list[Cell], dict[Key, Lacking], Chosen]:
    """Carry out all that a plan asks for and this machine has.

    Returns:
        The cells as they were carried out, why others have no number, and what was found by tuning.

    Raises:
        FedshiftError: no scenario has its data here; or runs cannot be carried out for a reason that is not their
            method's, such as a full disk, or another process that is at work on them.
    """
    files.check_folder(plan.folder)
    for why in plan.left_out.values():
        progress.note(why)
    lacking: dict[Key, Lacking] = {}
    chosen: Chosen = {}
    cells: list[Cell] = []
    for scenario in plan.available:
        here: list[Cell] = []
        for cell in plan.cells_of(scenario):
            with noting(lacking, cell, (*plan.scale.tuning_seeds, *plan.scale.seeds)):
                asked = cell.experiments
                if plan.scale.trials:
                    asked = _tuned(plan, scenario, cell, chosen, progress)
                here.append(replace(cell, make=always(asked)))
        for seed in plan.scale.seeds:
            for cell in (cell for cell in here if cell.key not in lacking):
                asked = [each for each in cell.experiments if each.seed == seed]
                with noting(lacking, replace(cell, make=always(asked))):
                    _carry_out(asked, progress)
        cells += here
    return cells, lacking, chosen


def _tuned(plan: StudyPlan, scenario: Scenario, cell: Cell, chosen: Chosen, progress: Progress) -> list[Experiment]:
    """A row's runs with the settings that were chosen on validation data, which are put on record."""
    from fedshift.study.tune import search_all

    budget = budget_of(plan.scale, scenario, cell.experiments[0].method_name)
    tuning = search_all(cell.make(plan.scale.tuning_seeds), budget, progress)
    chosen[cell.key[:2]] = sorted(tuning.found, key=lambda found: found.case)
    if tuning.failed:  # of one held-out domain among several
        raise DivergedError(tuning.failed[0])
    with warnings.catch_warnings():  # rows are tuned one by one, so the file has some with other searched settings
        warnings.simplefilter("ignore", FedshiftWarning)
        return tuning.tuned.apply(cell.experiments, where=str(tuning.path))


def budget_of(scale: Scale, scenario: Scenario, method: str) -> Budget:
    """By what settings are chosen, the same for all rows."""
    from fedshift.study.tune import Budget

    fixed = tuple(scale.settings_of(method))
    return Budget(trials=scale.trials, parallel=min(4, scale.trials), search=dict(scenario.search), fixed=fixed)


def carry_out_runs(experiments: Sequence[Experiment], progress: Progress) -> tuple[list[Run], runner.Failures]:
    """Carry out runs; why one could not begin is written into its folder.

    Returns:
        The folders of those that were carried out, and what went wrong with the others.

    Raises:
        FedshiftError: as :func:`fedshift.runs.runner.run_all`.
    """
    folders, failed = runner.run_all(experiments, progress)
    for path, error in failed.items():
        if not (Run(path).begun or isinstance(error, DiskError | LockedError)):
            files.make_folder(path)
            files.write(path / REFUSED, str(error).removeprefix(f"{path.name}: "))
    return folders, failed


def _carry_out(experiments: Sequence[Experiment], progress: Progress) -> None:
    """Carry out the runs of a cell that have a seed."""
    there = [Run(runner.run_path(each)) for each in experiments]
    if before := why_diverged(there):
        raise DivergedError(before)
    _, failed = carry_out_runs(experiments, progress)
    diverged = [error for error in failed.values() if isinstance(error, DivergedError)]
    if other := next((error for error in failed.values() if error not in diverged), None):
        raise other
    for error in diverged[:1]:
        for folder in (each for each in there if not each.finished):
            files.write(folder.path / DIVERGED, error.what)  # without advice, as settings are not the user's here
        raise DivergedError(error.what)


@contextmanager
def noting(lacking: dict[Key, Lacking], cell: Cell, seeds: Sequence[int] = ()) -> Iterator[None]:
    """Note why a cell has no number, and let the others go on, unless nothing can."""
    try:
        yield
    except Exception as error:
        why = why_lacking(error, partial(cell.make, seeds))
        if why is not None:
            lacking[cell.key] = why
        elif isinstance(error, FedshiftError):
            where = ", ".join(filter(None, cell.key))
            raise FedshiftError(f"{where}: {error} What is finished is kept. The same command carries on.") from error
        else:
            raise


def why_lacking(error: Exception, experiments: Callable[[], Sequence[Experiment]]) -> Lacking | None:
    """Why an error leaves a cell without a number; None where it is not the method that is at fault."""
    if isinstance(error, DivergedError):
        return Lacking(error.what, "diverged")
    if isinstance(error, DiskError | LockedError | DamagedError):
        return None
    try:
        asked = experiments()
        for each in asked:
            Simulation(each)
    except FedshiftError as refusal:
        return Lacking(str(refusal), "refused")
    if built_in(type(asked[0].method)):
        return None
    name = "" if isinstance(error, FedshiftError) else f"{type(error).__name__}: "
    return Lacking(f"{name}{error}", "failed")


def why_diverged(folders: Iterable[Run]) -> str:
    """Why the first of some runs diverged that did; empty if none did."""
    notes = (folder.path / DIVERGED for folder in folders if not folder.finished)
    return next((note.read_text(encoding="utf-8") for note in notes if note.is_file()), "")


# Forecasts -------------------------------------------------------------------------------------------


def forecast(cells: Iterable[Cell], count: Callable[[Cell], int]) -> list[Forecast]:
    """What cells would cost; nothing is written, and no more is trained than a few steps that are timed.

    Args:
        cells: these.
        count: how many runs of a cell are left to be carried out.

    Raises:
        FedshiftError: none can run, or one cannot for a reason that is not its method's.
    """
    found, refused = [], list[FedshiftError]()
    for cell in cells:
        try:
            left = count(cell)
            found.append(Forecast(cell.label, left, estimate(cell.experiments[0]) if left else None))
        except FedshiftError as error:
            why = why_lacking(error, partial(cell.make, cell.seeds))
            if why is None:
                raise
            refused.append(error)
            found.append(Forecast(cell.label, 0, None, why.reason))
    if found and len(refused) == len(found):
        raise refused[0]
    return found


def forecast_study(plan: StudyPlan) -> list[Forecast]:
    """What the cells of a study would cost, with the settings that they begin with, without what is finished."""

    def left(cell: Cell) -> int:
        held_out = len(cell.experiments) // len(plan.scale.seeds)
        unfinished = sum(not Run(runner.run_path(each)).finished for each in cell.experiments)
        return unfinished + held_out * plan.scale.trials * len(plan.scale.tuning_seeds)

    return forecast((cell for scenario in plan.available for cell in plan.cells_of(scenario)), left)
