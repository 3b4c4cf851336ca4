"""A paper's table that is carried out, beside the paper's numbers, and the files in which all of it stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedshift import files
from fedshift.reporting.table import Table
from fedshift.runs.lock import locked
from fedshift.runs.progress import Progress
from fedshift.runs.records import Record
from fedshift.runs.run import Run
from fedshift.runs.runner import run_path
from fedshift.runs.selection import by_environment, last
from fedshift.study.beside import PaperNumbers
from fedshift.study.execute import carry_out_cells, read_findings
from fedshift.study.paper_tables import notes, tables
from fedshift.study.quantities import Quantity, Values, quantity
from fedshift.study.study_plan import Cell, Key, Lacking
from fedshift.study.table_plan import TablePlan

RUNS_FILE = "runs.json"  # in a table's folder: the folders of the runs of each of its cells
WAIT = 600.0  # seconds for another process that reads and writes the same table


@dataclass(frozen=True, repr=False)
class Reproduction(PaperNumbers):
    """A table or curve of a paper, as carried out here; prints as the table."""

    def tables(self) -> list[Table]:
        """A table for each scenario."""
        return tables(self)

    def notes(self) -> list[str]:
        """What was carried out, how it differs from the paper, and what has no number."""
        return notes(self)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to carry out."""
        return self.findings.count.complete

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON, and of a curve the figure into the plan's folder, replacing earlier ones.

        Returns:
            The files.

        Raises:
            FedshiftError: one cannot be written.
        """
        if self.plan.exhibit.kind != "curve" or not self.findings.numbers:
            return self.write_files({})
        from fedshift.study.figures import draw_curve  # with matplotlib

        return self.write_files({"png": draw_curve(self)})


def reproduce_table(plan: TablePlan, progress: Progress) -> Reproduction:
    """Carry out all that a plan asks for and this machine has, and write the table of all that is there then.

    Raises:
        FedshiftError: nothing of it can be carried out here; or runs cannot be, for a reason that is not their
            method's, such as a full disk, or another process that is at work on them.
    """
    files.check_folder(plan.folder)
    for why in plan.left_out.values():
        progress.note(why)
    files.make_folder(plan.folder)
    files.write(plan.folder / RUNS_FILE, json.dumps(run_folders(plan), indent=1))
    lacking: dict[Key, Lacking] = {}
    for scenario in plan.available:
        cells = [cell for cell in plan.cells if cell.scenario == scenario]
        carry_out_cells(cells, plan.scale.seeds, progress, lacking)
    with locked(plan.folder, WAIT):  # another process may have finished more runs since these were read
        done = read_table(plan, lacking)
        done.write()
    return done


def read_table(plan: TablePlan, lacking: dict[Key, Lacking]) -> Reproduction:
    """What the folders of a whole table hold, whoever carried them out."""
    return Reproduction(plan, read_findings(plan.whole.cells, partial(_columns, plan), lacking, plan.left_out))


def run_folders(plan: TablePlan) -> list[list[str]]:
    """The folders of the runs of each cell of the whole table, below OUT."""
    return [
        [str(run_path(experiment).relative_to(plan.out)) for experiment in cell.experiments]
        for cell in plan.whole.cells
    ]


def _columns(plan: TablePlan, cell: Cell, runs: Sequence[Run]) -> dict[str, tuple[Quantity, Values]]:
    """What is read off runs, by the column or the point of a curve."""
    found = {name: quantity(text) for name, text in plan.exhibit.quantities(cell.scenario).items()}
    if plan.exhibit.along == "environment":
        names = dict.fromkeys(name for run in runs for name in by_environment(last(run.records), "test"))
        found = {name: quantity(f"on: {name}") for name in names}
    if plan.exhibit.along == "round":
        (its,) = found.values()
        positions = sorted({record["position"] for run in runs for record in run.records})
        return {str(position): (its, partial(_after, its, position)) for position in positions}
    return {cell.point or name: (its, its.values) for name, its in found.items()}


def _after(its: Quantity, position: int, run: Run, records: Sequence[Record]) -> Sequence[float]:
    there = [record for record in records if record["position"] == position]
    return [*its.values(run, there)] if there else []
