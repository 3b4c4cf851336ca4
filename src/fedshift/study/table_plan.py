"""A paper's table or curve that is asked for: the experiments of every cell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from fedshift.errors import FedshiftError
from fedshift.runs import runner
from fedshift.runs.folder import RunFolder
from fedshift.settings.experiment import Experiment
from fedshift.settings.spec import shown
from fedshift.study.execute import forecast_cell
from fedshift.study.papers import Exhibit, PaperRow, exhibit_of
from fedshift.study.scenarios import Scenario, choose, scale_of
from fedshift.study.study_plan import Cell, Forecast, Need, StudyPlan, paths_by_name

OUT = "runs/reproduce"


@dataclass(frozen=True, kw_only=True)
class TablePlan(StudyPlan):
    """A table that is asked for.

    Attributes:
        exhibit: the table or curve.
        rows: those of its rows that are carried out.
        settings: dotted settings of [run], which decide no result.
    """

    exhibit: Exhibit
    rows: tuple[PaperRow, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        table: str,
        scale: str,
        scenarios: str | Sequence[str] | None = None,
        rows: str | Sequence[str] | None = None,
        out: str | Path = OUT,
        data: Mapping[str, str | Path] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """The plan of what a user names; None stands for all scenarios, or rows.

        Raises:
            FedshiftError: a name is not known, the table is not reproduced, or a setting decides results.
        """
        exhibit, size = exhibit_of(table), scale_of("papers", scale)
        if exhibit.why:
            raise FedshiftError(f"{exhibit.title} of {exhibit.paper} is not reproduced: {exhibit.why}")
        there = {scenario.name: scenario for scenario in exhibit.scenarios_at(size)}
        if not there:
            raise FedshiftError(f"{table} is not of the scale {scale}: give another --scale.")
        elsewhere = {each.name: f"it is not of the scale {scale}: give another --scale." for each in exhibit.scenarios}
        refused = {row.name: f"it is not carried out here: {row.why}." for row in exhibit.rows if row.why}
        plan = cls(
            scale=size,
            scenarios=tuple(choose("panel", there, scenarios, elsewhere)),
            out=Path(out),
            data=paths_by_name(data),
            exhibit=exhibit,
            rows=tuple(choose("row", {row.name: row for row in exhibit.carried_out}, rows, refused)),
            settings=dict(settings or {}),
        )
        plan.check_data()
        for name, value in plan.settings.items():
            if name == "run.out":
                raise FedshiftError(f"{name} = {shown(value)}: tables share their runs' folder; give --out instead.")
            if not name.startswith("run."):
                raise FedshiftError(
                    f"{name} = {shown(value)}: a table's settings are what is reproduced, so only those of [run], "
                    "such as run.threads=2, can be given; for others there is `fedshift compare`."
                )
        return plan

    @property
    def known(self) -> Sequence[Scenario]:
        """All scenarios that the scale has."""
        return self.exhibit.scenarios_at(self.scale)

    @property
    def folder(self) -> Path:
        """Where its tables lie."""
        return self.out / f"{self.exhibit.name}-{self.scale.name}"

    @property
    def runs(self) -> Path:
        """The folder of all runs, so that tables share those that they have in common."""
        return self.out / "runs"

    @property
    def command(self) -> str:
        """The command that makes the table."""
        words = ["fedshift", "reproduce", self.exhibit.name, "--scale", self.scale.name]
        options: list[tuple[str, str]] = []
        if self.scenarios != self.known:
            options += [("--panel", scenario.name) for scenario in self.scenarios]
        if self.rows != tuple(self.exhibit.carried_out):
            options += [("--row", row.name) for row in self.rows]
        options += [("--data", f"{name}={path}") for name, path in self.data.items()]
        options += [("--set", f"{name}={shown(value)}") for name, value in self.settings.items()]
        options += [("--out", str(self.out))] if str(self.out) != OUT else []
        return shlex.join([*words, *(word for option in options for word in option)])

    def compared(self, scenario: Scenario) -> bool:
        """Whether a scenario's numbers can be compared with the paper's."""
        return self.scale.compared and scenario.has_its_data(self.scale.name)

    @property
    def whole(self) -> TablePlan:
        """The plan of all scenarios and rows."""
        return replace(self, scenarios=tuple(self.known), rows=tuple(self.exhibit.carried_out))

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell, scenario by scenario.

        Raises:
            FedshiftError: the settings of one are wrong.
        """
        return [cell for scenario in self.scenarios for cell in self.cells_of(scenario)]

    def cells_of(self, scenario: Scenario) -> Iterator[Cell]:
        """The cells of a scenario, row by row."""
        for row in self.rows:
            for point, settings in self.exhibit.points(self.scale.name).items():
                if self.exhibit.asks_for(scenario, row, point):
                    its = self._experiments(scenario, row, settings, self.scale.seeds)
                    yield Cell(scenario, row.name, point, its)

    def _experiments(
        self, scenario: Scenario, row: PaperRow, point: Mapping[str, Any], seeds: Sequence[int]
    ) -> list[Experiment]:
        own = {**self.exhibit.own(self.scale.name), **point, **row.settings, **row.at.get(scenario.name, {})}
        return self.experiments(scenario, row.method, seeds, {**own, **self.settings})

    def first_of(self, scenario: Scenario, row: PaperRow) -> Experiment:
        """The first run of a row."""
        (point, *_) = self.exhibit.points(self.scale.name).values()
        return self._experiments(scenario, row, point, self.scale.seeds[:1])[0]

    def first(self, scenario: Scenario) -> Experiment:
        """A run on a scenario, which needs the data and the model that all need."""
        return self.first_of(scenario, next(row for row in self.rows if self.exhibit.asks_for(scenario, row, "")))

    def needs(self, scenario: Scenario) -> Need | None:
        """What the data, the network or the methods of a scenario need that is not here; None if nothing."""
        rows = {row.method: row for row in self.rows if self.exhibit.asks_for(scenario, row, "")}
        return self.lacking(scenario, (self.first_of(scenario, row) for row in rows.values()))

    def forecasts(self, scenario: Scenario) -> list[Forecast]:
        """The cost of each cell of a scenario, of the runs that are not finished."""
        return [
            forecast_cell(
                ", ".join(filter(None, (self.title(scenario), cell.row, cell.point))),
                partial(list, cell.experiments),
                _count_unfinished,
            )
            for cell in self.cells_of(scenario)
        ]


def _count_unfinished(experiments: Sequence[Experiment]) -> int:
    return sum(not RunFolder(runner.run_path(each)).finished for each in experiments)
