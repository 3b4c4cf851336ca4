"""A table that was carried out, beside the paper's numbers, and the files in which all of it stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedshift import files
from fedshift.reporting.frames import as_csv, as_frame
from fedshift.reproduction.carry_out import Measured, carry_out, read
from fedshift.reproduction.numbers import Beside, Numbers
from fedshift.reproduction.plan import Plan
from fedshift.runs.folder import locked
from fedshift.runs.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

WAIT = 600.0  # seconds for another process that reads and writes the same table


@dataclass(frozen=True, repr=False)
class Reproduction(Numbers):
    """A table or curve of a paper, as carried out here; prints as the table."""

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

    def __str__(self) -> str:
        from fedshift.reproduction.tables import as_text

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedshift.reproduction.tables import as_html

        return as_html(self)


def _cell(found: Beside) -> dict[str, Any]:
    return {
        "ours": None if found.ours is None else asdict(found.ours),
        "paper": None if found.paper is None else found.paper._asdict(),
        "difference": found.difference,
        "outside": found.outside,
    }
