"""A table that was carried out, beside the paper's numbers, and the files in which all of it stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from fedshift import files
from fedshift.reporting.frames import as_csv
from fedshift.reporting.table import Table
from fedshift.reporting.tabled import Measurements
from fedshift.reproduction.carry_out import Measured, carry_out, read
from fedshift.reproduction.numbers import Beside, Numbers
from fedshift.reproduction.plan import Plan
from fedshift.reproduction.tables import beside_paper, notes, tables, unit_of
from fedshift.runs.lock import locked
from fedshift.runs.progress import Progress

WAIT = 600.0  # seconds for another process that reads and writes the same table


@dataclass(frozen=True, repr=False)
class Reproduction(Numbers, Measurements):
    """A table or curve of a paper, as carried out here; prints as the table."""

    WIDTH: ClassVar[int] = 200

    def tables(self) -> list[Table]:
        """A table for each panel."""
        return tables(self)

    def notes(self) -> list[str]:
        """What was carried out, how it differs from the paper, and what has no number."""
        return notes(self)

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
            "notes": self.notes(),
        }
        return json.dumps(whole, indent=1) + "\n"


def _cell(found: Beside) -> dict[str, Any]:
    return {
        "ours": None if found.ours is None else asdict(found.ours),
        "paper": None if found.paper is None else found.paper._asdict(),
        "difference": found.difference,
        "outside": found.outside,
    }
