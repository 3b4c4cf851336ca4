"""The numbers of a table or curve that was carried out, each beside the paper's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from fedshift.reporting.results import MeanStd, flat
from fedshift.settings.spec import shown
from fedshift.study.papers import PaperRow, Printed
from fedshift.study.quantities import quantity
from fedshift.study.scenarios import AS_PRINTED, Scenario, scale_of
from fedshift.study.study_results import StudyResults
from fedshift.study.table_plan import TablePlan

NONE = "-"
SPREADS = 2  # standard deviations beyond which a paper's number is marked
NOT_SAID = frozenset({"name", "seed", "run", "evaluate"})  # of settings in which scales differ


@dataclass(frozen=True)
class Beside:
    """A number of ours beside the paper's, both in the column's unit.

    Attributes:
        ours: mean and standard deviation over seeds; None if there is none yet.
        paper: the printed one; None if none is printed.
        compared: whether they are of the same thing.
    """

    ours: MeanStd | None
    paper: Printed | None
    compared: bool = True

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; None where one of them is lacking, or they are not compared."""
        if self.ours is None or self.paper is None or not self.compared:
            return None
        return self.ours.mean - self.paper.mean

    @property
    def outside(self) -> bool:
        """Whether the paper's number lies outside our mean ± 2 standard deviations; not of a single seed."""
        if self.difference is None or self.ours is None or self.ours.std is None:
            return False
        return abs(self.difference) > SPREADS * self.ours.std


@dataclass(frozen=True, repr=False)
class PaperNumbers(StudyResults):
    """What a table or curve of a paper holds so far.

    Attributes:
        plan: what was asked for.
        findings: what came of the whole table so far.
    """

    plan: TablePlan

    @property
    def name(self) -> str:
        """The stem of its files."""
        return self.plan.exhibit.name

    def columns(self, scenario: Scenario) -> list[str]:
        """The columns of a scenario: headings, or points of a curve."""
        exhibit = self.plan.exhibit
        if not exhibit.along:
            return [*exhibit.quantities(scenario)]
        if not isinstance(exhibit.along, str):
            return [*exhibit.points(self.plan.scale.name)]
        names = {each.column for each in self.findings.numbers if each.scenario == scenario.name}
        return sorted(names, key=place)

    def beside(self, scenario: Scenario, row: PaperRow, column: str) -> Beside:
        """A cell beside the paper's."""
        ours = self.mean(scenario.name, row.name, column)
        return Beside(ours, self.plan.exhibit.number(scenario, row, column), self.plan.compared(scenario))

    def unit(self, scenario: Scenario, column: str) -> str:
        """The unit of a column, or of the points of a curve."""
        quantities = self.plan.exhibit.quantities(scenario)
        return quantity(quantities.get(column) or next(iter(quantities.values()))).unit

    def measurements(self) -> list[dict[str, Any]]:
        """Every number, as :class:`~fedshift.study.execute.Number` has it, with the scale and the paper's."""
        scenarios = {scenario.name: scenario for scenario in self.plan.known}
        rows = {row.name: row for row in self.plan.exhibit.rows}
        found = []
        for each in self.findings.numbers:
            theirs = self.plan.exhibit.number(scenarios[each.scenario], rows[each.row], each.column)
            paper = None if theirs is None else theirs.mean
            found.append({**asdict(each), "paper": paper, "scale": self.plan.scale.name})
        return found


def place(column: str) -> float:
    """Where a point lies along a curve: the number that its name ends with."""
    return float(column.rpartition("=")[2])


def differences_from_paper(plan: TablePlan, scenario: Scenario) -> dict[str, list[str]]:
    """The settings in which a scale differs from the paper's, such as "train.rounds 2 (600)".

    Returns:
        For each of them the rows that it is of.
    """
    exhibit = plan.exhibit
    if plan.scale.name == AS_PRINTED or AS_PRINTED not in scenario.sizes:
        return {}
    ours, theirs = (
        replace(plan, scale=scale, data={}, settings={}) for scale in (plan.scale, scale_of("papers", AS_PRINTED))
    )
    found: dict[str, list[str]] = {}
    for row in (row for row in exhibit.carried_out if exhibit.asks_for(scenario, row, "")):
        here, paper = (_settings(each, scenario, row) for each in (ours, theirs))
        for name in sorted(here.keys() | paper.keys()):
            if here.get(name) != paper.get(name):
                words = f"{name} {here.get(name, NONE)} ({paper.get(name, NONE)})"
                found.setdefault(words, []).append(row.name)
    return found


def _settings(plan: TablePlan, scenario: Scenario, row: PaperRow) -> dict[str, str]:
    """The settings of a row's runs by dotted name, as they are written, but for those of the points."""
    of_points = {name for point in plan.exhibit.points(plan.scale.name).values() for name in point}
    table = flat({key: value for key, value in plan.first_of(scenario, row).table().items() if key not in NOT_SAID})
    return {name: shown(value) for name, value in table.items() if name not in of_points}
