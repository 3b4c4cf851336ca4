"""Carrying out the cells of a study; what is finished is not repeated, so the same study goes on where it was.

The runs of a scenario are ordered by seed, for which the data are loaded once. Where a run diverges, that is written
into its folder, as it would diverge each time, and its cell's other seeds are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial

from fedshift import files
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, LockedError
from fedshift.methods import METHODS
from fedshift.reporting.results import Row
from fedshift.runs import runner
from fedshift.runs.folder import RunFolder
from fedshift.runs.progress import Progress
from fedshift.runs.run import Run
from fedshift.settings.experiment import Experiment
from fedshift.simulation.dry_run import estimate
from fedshift.simulation.simulation import Simulation
from fedshift.study.quantities import Quantity, Values
from fedshift.study.study_plan import Cell, Forecast, Key, Lacking

DIVERGED = "diverged.txt"  # in the folder of a run: why it has no end
LACKING = {"diverged": "diverged", "refused": "cannot run", "failed": "failed"}  # the cell of a table without a number
Columns = Callable[[Cell, Sequence[Run]], Mapping[str, tuple[Quantity, Values]]]


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
        counts = [cls._of_cell(folders) for folders in cells]
        return cls(*(sum(each) for each in zip(*map(astuple, counts), strict=True))) if counts else cls()

    @classmethod
    def _of_cell(cls, folders: Sequence[RunFolder]) -> Count:
        over = [folder for folder in folders if folder.finished]
        diverged = len(folders) - len(over) if why_diverged(folders) else 0
        times = [folder.times() for folder in over]
        return cls(len(folders), len(over), diverged, sum(each.training + each.evaluation for each in times))

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
    """

    numbers: Sequence[Number] = ()
    lacking: Mapping[Key, Lacking] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    count: Count = Count()


# Carrying out ----------------------------------------------------------------------------------------


def carry_out_cells(
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


def _carry_out(experiments: Sequence[Experiment], progress: Progress) -> None:
    there = [RunFolder(runner.run_path(each)) for each in experiments]
    if before := why_diverged(there):
        raise DivergedError(before)
    _, failed = runner.run_all(experiments, progress)
    diverged = [error for error in failed.values() if isinstance(error, DivergedError)]
    if other := next((error for error in failed.values() if error not in diverged), None):
        raise other
    if diverged:
        reason = diverged[0].what  # settings are not the user's here, so what helps elsewhere is left out
        for folder in (each for each in there if not each.finished):
            files.write(folder.path / DIVERGED, reason)
        raise DivergedError(reason)


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
    cells: Sequence[Cell], columns: Columns, lacking: Mapping[Key, Lacking], left_out: Mapping[str, str]
) -> Findings:
    """What the folders of cells hold, whoever carried them out.

    Args:
        cells: the cells.
        columns: what is read off the runs of a cell, by the column.
        lacking: why some have no number.
        left_out: why scenarios are left out, by name.

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
                numbers += _numbers(cell, _whole_seeds(cell, runs), columns)
        return Findings(numbers, {**diverged, **lacking}, left_out, Count.of(folders.values()))


def _whole_seeds(cell: Cell, runs: Sequence[Run]) -> list[Run]:
    """The runs of the seeds of which all are finished, so that a mean over held-out domains is one over all."""
    seeds = [run.table["seed"] for run in runs]
    asked = [each.seed for each in cell.experiments]
    return [run for run, seed in zip(runs, seeds, strict=True) if seeds.count(seed) == asked.count(seed)]


def _numbers(cell: Cell, runs: Sequence[Run], columns: Columns) -> Iterator[Number]:
    row = Row(cell.row, list(runs))
    for column, (quantity, values) in columns(cell, runs).items():
        for seed, value in sorted(row.by_seed(partial(_values, values), quantity.of_seed).items()):
            yield Number(cell.scenario.name, cell.row, column, seed, value, quantity.unit)


def _values(values: Values, run: Run) -> Iterable[float]:
    return values(run, run.records)


# Forecasts -------------------------------------------------------------------------------------------


def forecast_cell(
    label: str, experiments: Callable[[], Sequence[Experiment]], count: Callable[[Sequence[Experiment]], int]
) -> Forecast:
    """What a cell would cost; ``count`` is how many runs it has for these experiments."""
    try:
        asked = experiments()
        left = count(asked)
        return Forecast(label, left, estimate(asked[0]) if left else None)
    except Exception as error:
        why = why_lacking(error, experiments)
        if why is None:
            raise
        return Forecast(label, 0, None, why.reason)
