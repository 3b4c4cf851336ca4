"""Carrying out a table: its runs lie in folders that are not repeated, so that it goes on where it was killed.

A panel's runs are ordered by seed, for which the data are loaded once. Where a run diverged, its cell's other seeds are
left out. What came of a table is read from the folders of all its runs, whichever of them were asked for now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import partial

from fedshift import files
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, LockedError
from fedshift.reporting.results import Row as Runs
from fedshift.reproduction.plan import Cell, Plan
from fedshift.reproduction.scores import Score, score
from fedshift.runs import runner
from fedshift.runs.cells import Lacking, carried_out, divergence
from fedshift.runs.folder import RunFolder
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.run import Run
from fedshift.runs.selection import by_environment, last

RUNS_FILE = "runs.json"  # in a table's folder: the folders of the runs of each of its cells


@dataclass(frozen=True)
class Measured:
    """A number of one seed.

    Attributes:
        panel: the panel's name.
        row: the row's.
        column: the column's heading, or a point of a curve.
        seed: the seed.
        value: in the column's unit.
        unit: that.
    """

    panel: str
    row: str
    column: str
    seed: int
    value: float
    unit: str


@dataclass(frozen=True)
class Count:
    """How many runs of a table there are.

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
        diverged = len(folders) - len(over) if divergences(folders) else 0
        times = [folder.times() for folder in over]
        return cls(len(folders), len(over), diverged, sum(each.training + each.evaluation for each in times))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to carry out."""
        return self.finished + self.diverged == self.runs

    def __str__(self) -> str:
        return f"{self.finished} of {self.runs} runs finished{f', {self.diverged} diverged' if self.diverged else ''}"


def divergences(folders: Sequence[RunFolder]) -> str:
    """Why the first of the runs of a cell diverged that did; empty if none did."""
    return next(filter(None, map(divergence, folders)), "")


@contextmanager
def said_of_damage() -> Iterator[None]:
    """Say of a run that cannot be read how it is made again."""
    try:
        yield
    except FedshiftError as error:
        raise DamagedError(f"{error} Or delete the run's folder: the same command makes it again.") from error


@dataclass
class Outcome:
    """What came of a table so far.

    Attributes:
        measured: every number.
        count: how many runs are over.
        lacking: why cells have no figure, by panel, row and point.
        left_out: why panels are left out, by name.
    """

    measured: list[Measured] = field(default_factory=list)
    count: Count = Count()
    lacking: dict[tuple[str, str, str], Lacking] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def carry_out(plan: Plan, progress: Progress) -> dict[tuple[str, str, str], Lacking]:
    """Carry out all that a plan asks for and this machine has; finished runs are not repeated.

    Returns:
        Why cells have no figure that could not be carried out now, by panel, row and point.

    Raises:
        FedshiftError: nothing of it can be carried out here; or runs cannot be, for a reason that is not their
            method's, such as a full disk, or another process that is at work on them.
    """
    files.check_folder(plan.folder)
    left_out = plan.left_out
    for why in left_out.values():
        progress.note(why)
    files.make_folder(plan.folder)
    files.write(plan.folder / RUNS_FILE, json.dumps(plan.run_folders(), indent=1))
    refused: dict[tuple[str, str, str], Lacking] = {}
    for panel in (panel for panel in plan.panels if panel.name not in left_out):
        cells = [cell for cell in plan.cells if cell.panel == panel]
        for seed in plan.scale.seeds:
            for cell in (cell for cell in cells if cell.key not in refused):
                if refusal := _seed_of(plan, cell, seed, progress):
                    refused[cell.key] = refusal
    return refused


def _seed_of(plan: Plan, cell: Cell, seed: int, progress: Progress) -> Lacking | None:
    """Carry out the runs of one seed of a cell; gives back why that cannot be."""
    asked = [each for each in cell.experiments if each.seed == seed]
    try:
        carried_out(asked, OfCell(progress, {each.run_name: plan.run_title(cell, each) for each in asked}))
    except DivergedError as error:
        return Lacking(error.what, "diverged")
    except (DiskError, LockedError, DamagedError) as error:
        where = f"{plan.title(cell.panel)}, {cell.row.name}"
        raise FedshiftError(f"{where}: {error} What is finished is kept. The same command carries on.") from error
    except FedshiftError as error:
        return Lacking(str(error), "refused")
    return None


class OfCell(Progress):
    """Tells another display of a cell's runs by what they are, in the place of their folders' names."""

    def __init__(self, progress: Progress, names: Mapping[str, str]) -> None:
        """Tell ``progress``, with ``names`` by the folder's."""
        self._progress, self._names = progress, names

    def embedded(self, network: str, done: int, total: int) -> None:
        """A frozen network has embedded so many images."""
        self._progress.embedded(network, done, total)

    def note(self, text: str) -> None:
        """Something a user should see."""
        self._progress.note(text)

    def begin(self, outlook: Outlook) -> RunProgress:
        """A run starts or goes on."""
        return self._progress.begin(replace(outlook, name=self._names.get(outlook.name, outlook.name)))

    def reused(self, name: str) -> None:
        """A run was finished before."""
        self._progress.reused(self._names.get(name, name))


@said_of_damage()
def read(plan: Plan) -> Outcome:
    """What the folders of a whole table say, whoever carried them out.

    Raises:
        DamagedError: one cannot be read; the message says how it is made again.
    """
    folders = {cell.key: [RunFolder(runner.run_path(each)) for each in cell.experiments] for cell in plan.whole.cells}
    outcome = Outcome(count=Count.of(folders.values()), left_out=plan.left_out)
    for cell in plan.whole.cells:
        if why := divergences(folders[cell.key]):
            outcome.lacking[cell.key] = Lacking(why, "diverged")
            continue
        runs = [Run(folder) for folder in folders[cell.key] if folder.finished]
        outcome.measured += _measured(plan, cell, _whole_seeds(cell, runs))
    return outcome


def _whole_seeds(cell: Cell, runs: Sequence[Run]) -> list[Run]:
    """The runs of the seeds of which all are finished, so that a mean over held-out domains is one over all."""
    seeds = [run.table["seed"] for run in runs]
    asked = [each.seed for each in cell.experiments]
    return [run for run, seed in zip(runs, seeds, strict=True) if seeds.count(seed) == asked.count(seed)]


def _measured(plan: Plan, cell: Cell, runs: Sequence[Run]) -> Iterator[Measured]:
    """The numbers of a cell: of each column, or of each point of a curve."""
    of_cell = Runs(cell.row.name, list(runs))
    for column, (its, values) in _columns(plan, cell, runs).items():
        for seed, value in sorted(of_cell.by_seed(values, its.of_seed).items()):
            yield Measured(cell.panel.name, cell.row.name, column, seed, value, its.unit)


def _columns(plan: Plan, cell: Cell, runs: Sequence[Run]) -> dict[str, tuple[Score, Callable[[Run], Iterable[float]]]]:
    """What is read off runs, by the column."""
    scores = {name: score(text) for name, text in plan.exhibit.scores(cell.panel).items()}
    if plan.exhibit.along == "environment":
        names = dict.fromkeys(name for run in runs for name in by_environment(last(run.records), "test"))
        return {name: (its := score(f"on: {name}"), partial(_at_the_end, its)) for name in names}
    if plan.exhibit.along == "round":
        (its,) = scores.values()
        positions = sorted({record["position"] for run in runs for record in run.records})
        return {str(position): (its, partial(_after, its, position)) for position in positions}
    return {cell.point or name: (its, partial(_at_the_end, its)) for name, its in scores.items()}


def _at_the_end(its: Score, run: Run) -> Iterable[float]:
    return its.values(run, run.records)


def _after(its: Score, position: int, run: Run) -> Iterable[float]:
    there = [record for record in run.records if record["position"] == position]
    return its.values(run, there) if there else []
