"""A table that was carried out, beside the paper's numbers, and the files in which all of it stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedshift import files
from fedshift.reporting.frames import as_csv, as_frame
from fedshift.reporting.results import MeanStd
from fedshift.reproduction.carry_out import Measured, Outcome, carry_out, read
from fedshift.reproduction.exhibits import Printed, Row
from fedshift.reproduction.panels import Panel
from fedshift.reproduction.plan import Plan
from fedshift.runs.folder import locked
from fedshift.runs.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

WAIT = 600.0  # seconds for another process that reads and writes the same table
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
class Reproduction:
    """A table or curve of a paper, as carried out here; prints as the table.

    Attributes:
        plan: what was asked for.
        outcome: what came of the whole table so far.
    """

    plan: Plan
    outcome: Outcome

    @classmethod
    def made(cls, plan: Plan, progress: Progress) -> Self:
        """Carry out all that a plan asks for, and write the table of all that is there then.

        Raises:
            FedshiftError: as :func:`fedshift.reproduction.carry_out.carry_out` and :meth:`write`.
        """
        refused = carry_out(plan, progress)
        with locked(plan.folder, WAIT):  # another process may have finished more runs since these were read
            outcome = read(plan)
            done = cls(plan, replace(outcome, lacking={**outcome.lacking, **refused}))
            done.write()
        return done

    @property
    def complete(self) -> bool:
        """Whether nothing is left to carry out."""
        return self.outcome.count.complete

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

    def frame(self) -> pd.DataFrame:
        """The :meth:`measurements` as a pandas table, a row for each.

        Raises:
            FedshiftError: pandas is not installed.
        """
        return as_frame(self.measurements())

    def table(self) -> str:
        """The tables as Markdown."""
        from fedshift.reproduction.tables import as_markdown

        return as_markdown(self)

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON, and of a curve the figure into the plan's folder, in the place of earlier ones.

        Returns:
            The files.

        Raises:
            FedshiftError: one cannot be written.
        """
        folder, name = self.plan.folder, self.plan.exhibit.name
        contents: dict[str, str | bytes] = {
            f"{name}.md": self.table(),
            f"{name}.csv": self._csv(),
            f"{name}.json": self._json(),
        }
        if self.plan.exhibit.kind == "curve" and self.outcome.measured:
            from fedshift.reproduction.figure import figure  # with matplotlib

            contents[f"{name}.png"] = figure(self)
        files.make_folder(folder)
        for file, content in contents.items():
            files.write(folder / file, content)
        return [folder / file for file in contents]

    def _csv(self) -> str:
        """A line for each number."""
        return as_csv(self.measurements(), [*Measured.__dataclass_fields__, "paper", "scale"])

    def _json(self) -> str:
        """Everything that the tables say."""
        from fedshift.reproduction.tables import beside_paper, notes, unit_of

        plan, outcome = self.plan, self.outcome
        whole = {
            "table": plan.exhibit.name,
            "paper": plan.exhibit.paper,
            "scale": plan.scale.name,
            "seeds": list(plan.scale.seeds),
            "command": plan.command,
            **asdict(outcome.count),
            "cells": [
                {
                    "panel": panel.name,
                    "row": row.name,
                    "column": column,
                    "unit": unit_of(plan, panel, column),
                    **_cell(self.beside(panel, row, column)),
                }
                for panel in self.panels
                for row in plan.exhibit.rows
                for column in self.columns(panel)
            ],
            "lacking": [
                {"panel": panel, "row": row, "point": point, **asdict(why)}
                for (panel, row, point), why in outcome.lacking.items()
            ],
            "left_out": outcome.left_out,
            "differs": {panel.name: [each._asdict() for each in beside_paper(plan, panel)] for panel in self.panels},
            "notes": notes(self),
        }
        return json.dumps(whole, indent=1) + "\n"

    @property
    def panels(self) -> Sequence[Panel]:
        """All panels that the scale has."""
        return self.plan.whole.panels

    @cached_property
    def _measured(self) -> dict[tuple[str, str, str], list[Measured]]:
        found: dict[tuple[str, str, str], list[Measured]] = {}
        for each in self.outcome.measured:
            found.setdefault((each.panel, each.row, each.column), []).append(each)
        return found

    def __str__(self) -> str:
        from fedshift.reproduction.tables import as_text

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedshift.reproduction.tables import as_html

        return as_html(self)


def place(column: str) -> float:
    """Where a point lies along a curve: the number that its name ends with."""
    return float(column.rpartition("=")[2])


def _cell(found: Beside) -> dict[str, Any]:
    return {
        "ours": None if found.ours is None else asdict(found.ours),
        "paper": None if found.paper is None else found.paper._asdict(),
        "difference": found.difference,
        "outside": found.outside,
    }
