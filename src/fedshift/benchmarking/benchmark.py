"""A benchmark that was carried out: its tables, and the files in which all of it stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedshift import files
from fedshift.benchmarking.carry_out import Measured
from fedshift.benchmarking.scores import Scores
from fedshift.benchmarking.statistics import Interval
from fedshift.benchmarking.tables import notes, tables, tables_and_settings
from fedshift.reporting.frames import as_csv
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table, markdown
from fedshift.reporting.tabled import Measurements
from fedshift.runs.cells import Lacking


@dataclass(frozen=True, repr=False)
class Benchmark(Scores, Measurements):
    """Methods on federations, as measured; prints as its tables."""

    WIDTH: ClassVar[int] = 200

    def tables(self) -> list[Table]:
        """Accuracy with ranks, differences to FedAvg, cost, and the papers' rows beside ours."""
        return tables(self)

    def notes(self) -> list[str]:
        """How it was measured, and what has no figure."""
        return notes(self)

    def table(self) -> str:
        """The tables and notes as Markdown, with the settings that were chosen."""
        return markdown(tables_and_settings(self), self.notes())

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON, the figure and the page into the plan's folder, in the place of earlier ones.

        Returns:
            The files.

        Raises:
            FedshiftError: one cannot be written.
        """
        from fedshift.benchmarking.page import figure, write_page  # with matplotlib

        folder, png = self.plan.folder, figure(self)
        files.make_folder(folder)
        texts = {"benchmark.md": self.table(), "benchmark.csv": self._csv(), "benchmark.json": self._json()}
        for name, content in texts.items():
            files.write(folder / name, content)
        files.write(folder / "benchmark.png", png)
        return [*(folder / name for name in texts), folder / "benchmark.png", write_page(self, png, folder)]

    def _csv(self) -> str:
        """A line for each seed of each cell."""
        return as_csv(self.measurements(), list(Measured.__dataclass_fields__))

    def _json(self) -> str:
        """Everything that the tables say."""
        cells = [
            {
                "column": column.name,
                "method": method,
                "accuracy": _table(self.accuracy(column.name, method)),
                "worst": _table(self.worst(column.name, method)),
                "rank": self._ranks[column.name].get(method),
                "difference": _table(self.difference(column.name, method)),
                "lacking": _table(self.lacking(column.name, method)),
            }
            for column in self.columns
            for method in self.plan.methods
        ]
        methods = [
            {"method": name, "mean_rank": self.mean_rank(name), "overall": _table(self.overall(name))}
            for name in self.plan.methods
        ]
        scale = {"name": self.plan.scale.name, "trials": self.plan.scale.trials, "seeds": list(self.plan.scale.seeds)}
        whole = {
            "scale": scale,
            "methods": methods,
            "cells": cells,
            "measurements": self.measurements(),
            "chosen": [
                {"column": column, **found.model_dump()}
                for (column, _), each in self.outcome.chosen.items()
                for found in each
            ],
            "left_out": self.outcome.left_out,
        }
        return json.dumps(whole, indent=1) + "\n"


def _table(value: MeanStd | Interval | Lacking | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
