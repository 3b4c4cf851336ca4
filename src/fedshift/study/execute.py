"""Carrying out a study; what is finished is not repeated, so the same study goes on where it was.

Where the scale has trials, each row is tuned on each scenario first, with other seeds. The runs of a scenario are
ordered by seed, for which the data are loaded once. Where a run diverges, that is written into its folder, as it would
diverge each time, and its cell's other seeds are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from fedshift import files
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, FedshiftWarning, LockedError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.reporting.results import REFUSED, Row
from fedshift.runs import runner
from fedshift.runs.dry_run import estimate
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.runs.run import Run
from fedshift.runs.selection import by_environment, last
from fedshift.runs.simulation import Simulation
from fedshift.study.papers import Exhibit, ExhibitRow
from fedshift.study.quantities import Quantity, quantity
from fedshift.study.scenarios import Scale, Scenario
from fedshift.study.study_plan import Cell, Forecast, Key, Lacking, StudyPlan
from fedshift.study.tune import Budget, search_all
from fedshift.study.tuned import Found

DIVERGED = "diverged.txt"  # in the folder of a run: why it has no end
LACKING = {"diverged": "diverged", "refused": "cannot run", "failed": "failed"}  # the cell of a table without a number
Chosen = dict[tuple[str, str], list[Found]]


@dataclass(frozen=True)
class Number:
    """A number of one seed.

    Attributes:
        scenario: the scenario's name.
        row: the row's.
        column: the column's heading, or a point of a curve.
        seed: the seed.
        value: in the column's unit.
        unit: that.
    """

    scenario: str
    row: str
    column: str
    seed: int
    value: float
    unit: str


@dataclass(frozen=True)
class Count:
    """How many runs there are.

    Attributes:
        runs: in all.
        finished: carried to their end.
        diverged: others of cells that diverged, of which the remaining seeds are left out.
        seconds: what the finished ones took, evaluation included.
    """

    runs: int = 0
    finished: int = 0
    diverged: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, cells: Iterable[Sequence[RunFolder]]) -> Count:
        """Of the folders of each cell.

        Raises:
            FedshiftError: one cannot be read.
        """
        runs = finished = diverged = 0
        seconds = 0.0
        for folders in cells:
            times = [folder.times() for folder in folders if folder.finished]
            runs += len(folders)
            finished += len(times)
            diverged += len(folders) - len(times) if why_diverged(folders) else 0
            seconds += sum(each.training + each.evaluation for each in times)
        return cls(runs, finished, diverged, seconds)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to carry out."""
        return self.finished + self.diverged == self.runs

    def __str__(self) -> str:
        return f"{self.finished} of {self.runs} runs finished{f', {self.diverged} diverged' if self.diverged else ''}"


@dataclass(frozen=True)
class Findings:
    """What a study found so far.

    Attributes:
        numbers: of every seed of which all runs are finished.
        lacking: why cells have none.
        left_out: why scenarios are left out, by name.
        count: how many runs are over.
        chosen: what was found by tuning, one for each held-out domain, by scenario and row.
    """

    numbers: Sequence[Number] = ()
    lacking: Mapping[Key, Lacking] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    count: Count = Count()
    chosen: Chosen = field(default_factory=dict)


# Carrying out ----------------------------------------------------------------------------------------


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
        for row, point in plan.asked(scenario):
            with noting(lacking, (scenario.name, row.name, point), partial(_every_run, plan, scenario, row, point)):
                experiments = plan.experiments(scenario, row, point, plan.scale.seeds)
                if plan.scale.trials:
                    experiments = _tuned(plan, scenario, row, experiments, chosen, progress)
                here.append(Cell(scenario, row.name, point, experiments))
        _carry_out_cells(here, plan.scale.seeds, progress, lacking)
        cells += here
    return cells, lacking, chosen


def _every_run(plan: StudyPlan, scenario: Scenario, row: ExhibitRow, point: str) -> list[Experiment]:
    return plan.experiments(scenario, row, point, (*plan.scale.tuning_seeds, *plan.scale.seeds))


def _tuned(
    plan: StudyPlan,
    scenario: Scenario,
    row: ExhibitRow,
    experiments: Sequence[Experiment],
    chosen: Chosen,
    progress: Progress,
) -> list[Experiment]:
    """A row's runs with the settings that were chosen on validation data, which are put on record."""
    tuned_on = plan.experiments(scenario, row, "", plan.scale.tuning_seeds)
    tuning = search_all(tuned_on, budget_of(plan, scenario, row), progress)
    chosen[scenario.name, row.name] = sorted(tuning.found, key=lambda found: found.case)
    if tuning.failed:  # of one held-out domain among several
        raise DivergedError(tuning.failed[0])
    with warnings.catch_warnings():  # rows are tuned one by one, so the file has some with other searched settings
        warnings.simplefilter("ignore", FedshiftWarning)
        return tuning.tuned.apply(experiments, where=str(tuning.path))


def budget_of(plan: StudyPlan, scenario: Scenario, row: ExhibitRow) -> Budget:
    """By what settings are chosen, the same for all rows."""
    trials, fixed = plan.scale.trials, tuple(plan.scale.settings_of(row.method))
    return Budget(trials=trials, parallel=min(4, trials), search=dict(scenario.search), fixed=fixed)


def _carry_out_cells(
    cells: Sequence[Cell], seeds: Sequence[int], progress: Progress, lacking: dict[Key, Lacking]
) -> None:
    """Carry out the cells of a scenario, but for those that lack something already; others may be added to these.

    Raises:
        FedshiftError: runs cannot be carried out for a reason that is not their method's, such as a full disk, or
            another process that is at work on them.
    """
    for seed in seeds:
        for cell in (cell for cell in cells if cell.key not in lacking):
            asked = [each for each in cell.experiments if each.seed == seed]
            with noting(lacking, cell.key, partial(list, asked)):
                _carry_out(asked, progress)


def carry_out_runs(experiments: Sequence[Experiment], progress: Progress) -> tuple[list[RunFolder], runner.Failures]:
    """Carry out runs; why one could not begin is written into its folder.

    Returns:
        The folders of those that were carried out, and what went wrong with the others.

    Raises:
        FedshiftError: as :func:`fedshift.runs.runner.run_all`.
    """
    folders, failed = runner.run_all(experiments, progress)
    for path, error in failed.items():
        if not (RunFolder(path).begun or isinstance(error, DiskError | LockedError)):
            files.make_folder(path)
            files.write(path / REFUSED, str(error).removeprefix(f"{path.name}: "))
    return folders, failed


def _carry_out(experiments: Sequence[Experiment], progress: Progress) -> None:
    """Carry out the runs of a cell that have a seed."""
    there = [RunFolder(runner.run_path(each)) for each in experiments]
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
def noting(lacking: dict[Key, Lacking], key: Key, experiments: Callable[[], Sequence[Experiment]]) -> Iterator[None]:
    """Note why a cell has no number, and let the others go on, unless nothing can."""
    try:
        yield
    except Exception as error:
        why = why_lacking(error, experiments)
        if why is not None:
            lacking[key] = why
        elif isinstance(error, FedshiftError):
            where = ", ".join(filter(None, key))
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
    if METHODS.get(asked[0].method_name).built_in:
        return None
    name = "" if isinstance(error, FedshiftError) else f"{type(error).__name__}: "
    return Lacking(f"{name}{error}", "failed")


def why_diverged(folders: Iterable[RunFolder]) -> str:
    """Why the first of some runs diverged that did; empty if none did."""
    notes = (folder.path / DIVERGED for folder in folders if not folder.finished)
    return next((note.read_text(encoding="utf-8") for note in notes if note.is_file()), "")


# Reading ---------------------------------------------------------------------------------------------


@contextmanager
def naming_damage() -> Iterator[None]:
    """Add to the error of a run that cannot be read how it is made again."""
    try:
        yield
    except FedshiftError as error:
        raise DamagedError(f"{error} Or delete the run's folder: the same command makes it again.") from error


def read_findings(
    plan: StudyPlan, cells: Sequence[Cell], lacking: Mapping[Key, Lacking], chosen: Chosen | None = None
) -> Findings:
    """What the folders of cells hold, whoever carried them out.

    Raises:
        DamagedError: a folder cannot be read; the message says how it is made again.
    """
    folders = {cell.key: [RunFolder(runner.run_path(each)) for each in cell.experiments] for cell in cells}
    numbers: list[Number] = []
    diverged: dict[Key, Lacking] = {}
    with naming_damage():
        for cell in cells:
            if why := why_diverged(folders[cell.key]):
                diverged[cell.key] = Lacking(why, "diverged")
            elif cell.key not in lacking:
                runs = [Run(folder) for folder in folders[cell.key] if folder.finished]
                numbers += _numbers(plan.exhibit, cell, _whole_seeds(cell, runs))
        count = Count.of(folders.values())
    return Findings(numbers, {**diverged, **lacking}, plan.left_out, count, chosen or {})


def _whole_seeds(cell: Cell, runs: Sequence[Run]) -> list[Run]:
    """The runs of the seeds of which all are finished, so that a mean over held-out domains is one over all."""
    seeds = [run.table["seed"] for run in runs]
    asked = [each.seed for each in cell.experiments]
    return [run for run, seed in zip(runs, seeds, strict=True) if seeds.count(seed) == asked.count(seed)]


def _numbers(exhibit: Exhibit, cell: Cell, runs: Sequence[Run]) -> Iterator[Number]:
    row = Row(cell.row, list(runs))
    for column, its in _columns(exhibit, cell, runs).items():
        for seed, value in sorted(row.by_seed(its.values, its.of_seed).items()):
            yield Number(cell.scenario.name, cell.row, column, seed, value, its.unit)


def _columns(exhibit: Exhibit, cell: Cell, runs: Sequence[Run]) -> dict[str, Quantity]:
    """What is read off runs, by the column or the point of a curve."""
    found = {name: quantity(text) for name, text in exhibit.quantities(cell.scenario).items()}
    if exhibit.along == "environment":
        names = dict.fromkeys(name for run in runs for name in by_environment(last(run.records), "test"))
        return {name: quantity(f"on: {name}") for name in names}
    if exhibit.along == "round":
        (its,) = found.values()
        positions = sorted({record["position"] for run in runs for record in run.records})
        return {str(position): its.at(position) for position in positions}
    return {cell.point or name: its for name, its in found.items()}


# Forecasts -------------------------------------------------------------------------------------------


def forecast_cells(plan: StudyPlan, scenario: Scenario) -> Iterator[Forecast]:
    """What each cell of a scenario would cost, with the settings that it begins with, without what is finished."""
    for row, point in plan.asked(scenario):
        label = ", ".join(filter(None, (plan.title(scenario), row.name, point)))
        asked = partial(plan.experiments, scenario, row, point, plan.scale.seeds)
        found: dict[Key, Lacking] = {}
        with noting(found, (label, "", ""), asked):
            experiments = asked()
            left = _count_left(plan.scale, experiments)
            yield Forecast(label, left, estimate(experiments[0]) if left else None)
        for why in found.values():
            yield Forecast(label, 0, None, why.reason)


def _count_left(scale: Scale, experiments: Sequence[Experiment]) -> int:
    """How many runs there are to carry out, the trials of searches included."""
    held_out = len(experiments) // len(scale.seeds)
    unfinished = sum(not RunFolder(runner.run_path(each)).finished for each in experiments)
    return unfinished + held_out * scale.trials * len(scale.tuning_seeds)
