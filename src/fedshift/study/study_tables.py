"""What a study measured, by scenario, row and column; the files in which it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedshift import files
from fedshift.reporting.frames import as_csv
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table, markdown
from fedshift.reporting.tabled import Measurements
from fedshift.study.execute import LACKING, Findings
from fedshift.study.study_plan import StudyPlan


@dataclass(frozen=True, repr=False)
class StudyResults(Measurements):
    """A study, as carried out; prints as its tables.

    Attributes:
        plan: what was asked for.
        findings: what came of it.
    """

    WIDTH: ClassVar[int] = 200

    plan: StudyPlan
    findings: Findings

    def by_seed(self, scenario: str, row: str, column: str) -> dict[int, float]:
        """The numbers of a cell; empty where it has none."""
        return self._by_cell.get((scenario, row, column), {})

    def mean(self, scenario: str, row: str, column: str) -> MeanStd | None:
        """Mean and standard deviation of a cell over seeds."""
        return MeanStd.of([*self.by_seed(scenario, row, column).values()])

    def measurements(self) -> list[dict[str, Any]]:
        """Every number, as :class:`~fedshift.study.execute.Number` has it, with the scale and the paper's."""
        known = {scenario.name: scenario for scenario in self.plan.known}
        rows = {row.name: row for row in self.plan.exhibit.rows}
        found = []
        for each in self.findings.numbers:
            theirs = self.plan.exhibit.number(known[each.scenario], rows[each.row], each.column)
            found.append({**asdict(each), "paper": theirs and theirs.mean, "scale": self.plan.scale.name})
        return found

    def what_is_lacking(self) -> list[str]:
        """Why cells have no number, and scenarios are left out."""
        titles = {scenario.name: self.plan.title(scenario) for scenario in self.plan.known}
        words = [
            f"{', '.join(filter(None, (titles[scenario], row, point)))}: {LACKING[why.kind]}. {why.reason}"
            for (scenario, row, point), why in self.findings.lacking.items()
        ]
        return [*words, *self.findings.left_out.values()]

    def more_tables(self) -> list[Table]:
        """Tables that stand in the files alone."""
        return []

    def table(self) -> str:
        """The tables and notes as Markdown."""
        return markdown([*self.tables(), *self.more_tables()], self.notes())

    def json(self) -> str:
        """Everything that the tables say, and every number."""
        whole = {
            "scale": self.plan.scale.name,
            **asdict(self.findings.count),
            "measurements": self.measurements(),
            "lacking": [{"cell": key, **asdict(why)} for key, why in self.findings.lacking.items()],
            "tables": [asdict(table) for table in (*self.tables(), *self.more_tables())],
            "notes": self.notes(),
        }
        return json.dumps(whole, indent=1) + "\n"

    def write_files(self, more: Mapping[str, bytes]) -> list[Path]:
        """Write Markdown, CSV, JSON and ``more``, by their suffixes, into the plan's folder, replacing earlier ones."""
        measured = self.measurements()
        csv = as_csv(measured, [*measured[0]] if measured else [])
        contents: dict[str, str | bytes] = {"md": self.table(), "csv": csv, "json": self.json(), **more}
        files.make_folder(self.plan.folder)
        for suffix, content in contents.items():
            files.write(self.plan.folder / f"{self.plan.exhibit.name}.{suffix}", content)
        return [self.plan.folder / f"{self.plan.exhibit.name}.{suffix}" for suffix in contents]

    @cached_property
    def _by_cell(self) -> dict[tuple[str, str, str], dict[int, float]]:
        found: dict[tuple[str, str, str], dict[int, float]] = {}
        for each in self.findings.numbers:
            found.setdefault((each.scenario, each.row, each.column), {})[each.seed] = each.value
        return found
