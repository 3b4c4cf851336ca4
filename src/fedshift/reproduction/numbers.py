"""The numbers of a table that was carried out, each beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fedshift.reporting.results import MeanStd
from fedshift.reproduction.carry_out import Measured, Outcome
from fedshift.reproduction.exhibits import Printed, Row
from fedshift.reproduction.panels import Panel
from fedshift.reproduction.plan import Plan

SPREADS = 2  # standard deviations beyond which a paper's number is marked


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
        """Whether the paper's number lies outside our mean ± 2 standard deviations; of a single seed it is not told."""
        if self.difference is None or self.ours is None or self.ours.std is None:
            return False
        return abs(self.difference) > SPREADS * self.ours.std


@dataclass(frozen=True, repr=False)
class Numbers:
    """What a table or curve of a paper holds so far.

    Attributes:
        plan: what was asked for.
        outcome: what came of the whole table so far.
    """

    plan: Plan
    outcome: Outcome

    @property
    def panels(self) -> Sequence[Panel]:
        """All panels that the scale has."""
        return self.plan.whole.panels

    def columns(self, panel: Panel) -> list[str]:
        """The columns of a panel: headings, or points of a curve."""
        exhibit = self.plan.exhibit
        if not exhibit.along:
            return [*exhibit.scores(panel)]
        if not isinstance(exhibit.along, str):
            return [*exhibit.points(self.plan.scale.name)]
        names = {each.column for each in self.outcome.measured if each.panel == panel.name}
        return sorted(names, key=place)

    def of(self, panel: Panel, row: Row, column: str) -> list[Measured]:
        """The numbers of a cell, by seed."""
        return self._measured.get((panel.name, row.name, column), [])

    def beside(self, panel: Panel, row: Row, column: str) -> Beside:
        """A cell beside the paper's."""
        ours = MeanStd.of([each.value for each in self.of(panel, row, column)])
        return Beside(ours, self.plan.exhibit.number(panel, row, column), self.plan.compared(panel))

    def measurements(self) -> list[dict[str, Any]]:
        """Every number, as :class:`~fedshift.reproduction.carry_out.Measured` says, with the scale and the paper's."""
        panels = {panel.name: panel for panel in self.panels}
        rows = {row.name: row for row in self.plan.exhibit.rows}
        found = []
        for each in self.outcome.measured:
            theirs = self.plan.exhibit.number(panels[each.panel], rows[each.row], each.column)
            paper = None if theirs is None else theirs.mean
            found.append({**asdict(each), "paper": paper, "scale": self.plan.scale.name})
        return found

    @cached_property
    def _measured(self) -> dict[tuple[str, str, str], list[Measured]]:
        found: dict[tuple[str, str, str], list[Measured]] = {}
        for each in self.outcome.measured:
            found.setdefault((each.panel, each.row, each.column), []).append(each)
        return found


def place(column: str) -> float:
    """Where a point lies along a curve: the number that its name ends with."""
    return float(column.rpartition("=")[2])
