"""The measurements of a study, by scenario, row and column, and their files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, Self

from fedshift import files
from fedshift.errors import DamagedError, FedshiftError
from fedshift.reporting.live import display
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Tabled
from fedshift.runs.events import Progress
from fedshift.runs.locks import locked
from fedshift.runs.run import Run
from fedshift.runs.scheduling import run_path
from fedshift.runs.selection import by_environment, last
from fedshift.runs.shard import Shard
from fedshift.study.execute import PlanOutcome, divergence_reason, planned_runs, run_plan
from fedshift.study.quantities import quantity
from fedshift.study.records import LACKING, Key, Lacking
from fedshift.study.study_plan import Cell, StudyPlan
from fedshift.study.tuned import Found

NONE = "-"
RUNS_FILE = "runs.json"  # in a table's folder: the folders of the runs of each of its cells
WAIT = 600.0  # seconds for another process that reads and writes the same table


@dataclass(frozen=True)
class Count:
    """The number of runs.

    Attributes:
        diverged: runs of cells that diverged, whose remaining seeds are skipped.
        seconds: of the finished runs, evaluation included.
    """

    runs: int = 0
    finished: int = 0
    diverged: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, cells: Iterable[Sequence[Run]]) -> Count:
        runs = finished = diverged = 0
        seconds = 0.0
        for folders in cells:
            times = [folder.times for folder in folders if folder.finished]
            runs += len(folders)
            finished += len(times)
            diverged += len(folders) - len(times) if divergence_reason(folders) else 0
            seconds += sum(each.training + each.evaluation for each in times)
        return cls(runs, finished, diverged, seconds)

    @property
    def complete(self) -> bool:
        return self.finished + self.diverged == self.runs

    def __str__(self) -> str:
        return f"{self.finished} of {self.runs} runs finished{f', {self.diverged} diverged' if self.diverged else ''}"


@dataclass(frozen=True, repr=False)
class StudyResults(Tabled):
    """A study's results; prints as its tables."""

    WIDTH: ClassVar[int] = 200

    plan: StudyPlan
    # of every seed whose runs are all finished, by scenario, row, and column or point of a curve
    numbers: Mapping[Key, Mapping[int, float]] = field(default_factory=dict)
    lacking: Mapping[Key, Lacking] = field(default_factory=dict)  # why cells have none
    count: Count = Count()  # how many runs are over
    # what tuning found, for each held-out domain, by scenario and row
    chosen: Mapping[tuple[str, str], Sequence[Found]] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)  # why scenarios are excluded, by name

    @classmethod
    def run(cls, plan: StudyPlan, progress: Progress | None = None, shard: Shard | None = None) -> Self:
        """Run a plan, perhaps shared with other processes, and write the files of all results."""
        requested, tuned = plan.available, plan.scale.rates
        with display(progress, sum(map(planned_runs, requested.cells))) as shown:
            files.check_folder(plan.folder)
            if not tuned:  # a tuned study's runs are unknown before their settings are chosen
                files.make_folder(plan.folder)
                files.write(plan.folder / RUNS_FILE, json.dumps(run_folders(plan), indent=1))
            for why in plan.excluded.values():
                shown.note(why)
            outcome = run_plan(requested, shown, shard)
        with locked(plan.folder, WAIT):  # another process may have finished more runs since these were read
            done = cls.read(plan, outcome.cells if tuned else plan.whole.cells, outcome)
            done.write()
        return done

    @classmethod
    def read(cls, plan: StudyPlan, cells: Sequence[Cell], done: PlanOutcome) -> Self:
        """The content of the cells' folders, of all processes."""
        folders = {cell.key: [Run(run_path(each)) for each in cell.experiments] for cell in cells}
        numbers: dict[Key, dict[int, float]] = {}
        diverged: dict[Key, Lacking] = {}
        with naming_damage():
            for cell in cells:
                if why := divergence_reason(folders[cell.key]):
                    diverged[cell.key] = Lacking(why, "diverged")
                elif cell.key not in done.lacking:
                    runs = [run for run in folders[cell.key] if run.finished]
                    numbers |= _numbers(plan, cell, _whole_seeds(cell, runs))
            count = Count.of(folders.values())
        known = plan.records.of([each.name for each in plan.scenarios], [row.name for row in plan.rows])
        lacking = {**known.lacking, **diverged, **done.lacking}
        return cls(plan, {**known.numbers, **numbers}, lacking, count, done.chosen, plan.excluded)

    def by_seed(self, scenario: str, row: str, column: str) -> Mapping[int, float]:
        return self.numbers.get((scenario, row, column), {})

    def mean(self, scenario: str, row: str, column: str) -> MeanStd | None:
        return MeanStd.of([*self.by_seed(scenario, row, column).values()])

    def measurements(self) -> list[dict[str, Any]]:
        """Every number, with its scenario, row, column, seed and unit, the paper's number, and the scale."""
        exhibit, known = self.plan.exhibit, {scenario.name: scenario for scenario in self.plan.known}
        rows, found = {row.name: row for row in exhibit.rows}, []
        for (name, row, column), by_seed in self.numbers.items():
            theirs, unit = exhibit.number(known[name], rows[row], column), exhibit.quantity(known[name], column).unit
            about = {"paper": theirs and theirs.mean, "scale": self.plan.scale.name}
            for seed, value in by_seed.items():
                of = {"scenario": name, "row": row, "column": column, "seed": seed}
                found.append({**of, "value": value, "unit": unit, **about})
        return found

    def lacking_notes(self) -> list[str]:
        titles = {scenario.name: self.plan.title(scenario) for scenario in self.plan.known}
        words = [
            f"{', '.join(filter(None, (titles[scenario], row, point)))}: {LACKING[why.kind]}. {why.reason}"
            for (scenario, row, point), why in self.lacking.items()
        ]
        return [*words, *self.excluded.values()]

    def json(self) -> str:
        whole = {
            "scale": self.plan.scale.name,
            **asdict(self.count),
            "measurements": self.measurements(),
            "lacking": [{"cell": key, **asdict(why)} for key, why in self.lacking.items()],
            "tables": [asdict(table) for table in (*self.tables(), *self.more_tables())],
            "notes": self.notes(),
        }
        return json.dumps(whole, indent=1) + "\n"

    def more_files(self) -> dict[str, str | bytes]:
        return {}

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON and :meth:`more_files` into the plan's folder, replacing earlier files.

        Returns the files.

        Raises a FedshiftError if a file cannot be written.
        """
        measured = self.measurements()
        text = StringIO()
        writer = csv.DictWriter(text, [*measured[0]] if measured else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(measured)
        texts = {"md": self.table(), "csv": text.getvalue(), "json": self.json()}
        written = []
        files.make_folder(self.plan.folder)
        for suffix, content in {**texts, **self.more_files()}.items():
            written.append(self.plan.folder / f"{self.plan.exhibit.name}.{suffix}")
            files.write(written[-1], content)
        return written


def run_folders(plan: StudyPlan) -> list[list[str]]:
    out = plan.folder.parent
    return [[str(run_path(each).relative_to(out)) for each in cell.experiments] for cell in plan.whole.cells]


@contextmanager
def naming_damage() -> Iterator[None]:
    """Add the fix to the error of a run that cannot be read."""
    try:
        yield
    except FedshiftError as error:
        raise DamagedError(f"{error} Or delete the run's folder: the same command repeats it.") from error


def _whole_seeds(cell: Cell, runs: Sequence[Run]) -> list[Run]:
    seeds = [run.table["seed"] for run in runs]
    requested = [each.seed for each in cell.experiments]
    return [run for run, seed in zip(runs, seeds, strict=True) if seeds.count(seed) == requested.count(seed)]


def _numbers(plan: StudyPlan, cell: Cell, runs: list[Run]) -> dict[Key, dict[int, float]]:
    """The numbers of runs, by the column or the point of a curve, and by seed."""
    scenario, row, point = cell.key
    columns = plan.exhibit.quantities(next(each for each in plan.known if each.name == scenario))
    if plan.exhibit.along == "environment":
        names = dict.fromkeys(name for run in runs for name in by_environment(last(run.records), "test"))
        columns = {name: f"on: {name}" for name in names}
    found = {point or name: quantity(text).by_seed(runs) for name, text in columns.items()}
    if plan.exhibit.along == "round":
        (text,) = columns.values()
        places = sorted({record["position"] for run in runs for record in run.records})
        found = {str(place): quantity(text).by_seed(runs, place) for place in places}
    return {(scenario, row, column): by_seed for column, by_seed in found.items() if by_seed}
