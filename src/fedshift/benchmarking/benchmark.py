"""A benchmark that was carried out: its tables, and the files in which all of it stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift import files
from fedshift.benchmarking.carry_out import Measured
from fedshift.benchmarking.scores import Scores
from fedshift.benchmarking.statistics import Interval
from fedshift.reporting.frames import as_csv, as_frame
from fedshift.reporting.results import MeanStd
from fedshift.runs.cells import Lacking

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Benchmark(Scores):
    """Methods on federations, as measured; prints as its tables."""

    def frame(self) -> pd.DataFrame:
        """The :meth:`measurements` as a pandas table, a row for each.

        Raises:
            FedshiftError: pandas is not installed.
        """
        return as_frame(self.measurements())

    def table(self) -> str:
        """The tables as Markdown."""
        from fedshift.benchmarking.tables import as_markdown

        return as_markdown(self)

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

    def __str__(self) -> str:
        from fedshift.benchmarking.tables import as_text

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedshift.benchmarking.tables import as_html

        return as_html(self)


def _table(value: MeanStd | Interval | Lacking | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
