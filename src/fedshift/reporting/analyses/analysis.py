"""The base of analyses: measurements of a finished run, and tables and charts of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from fedshift.reporting.charts import Chart
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.runs.run import Run
from fedshift.runs.schema import File
from fedshift.spec import Spec


class Measured(File):
    """The measurements of a run, as the cache keeps them.

    Attributes:
        rows: the numbers with their names.
        images: PNG files in base64, by names that rows refer to.
    """

    rows: list[dict[str, float | int | str | None]]
    images: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredRun:
    """A run and its measurements."""

    run: Run
    measured: Measured

    @property
    def seed(self) -> int:
        return int(self.run.table["seed"])


Rows = Mapping[str, Sequence[MeasuredRun]]  # runs that differ only in seed and held-out domain, by the row's label


class Analysis(Spec):
    """Measurements of finished runs, computed from their folders and data without training.

    The class docstring defines the measurements with their units. :meth:`measure` reads a single run and is cached in
    its folder; the other methods combine runs.

    Attributes:
        title: the heading.
        source: the paper and figure or equation.
        version: incremented when :meth:`measure` gives other numbers for the same settings, which discards caches.
    """

    section: ClassVar[str] = "analysis"
    title: ClassVar[str] = ""
    source: ClassVar[str] = ""
    version: ClassVar[int] = 1

    def measure(self, trained: TrainedSimulation) -> Measured:
        """Measure a finished run.

        Raises:
            FedshiftError: it does not apply to this run; the message gives the reason.
        """
        raise NotImplementedError

    def tables(self, rows: Rows) -> list[Table]:
        """Tables of the measurements of every row."""
        raise NotImplementedError

    def charts(self, rows: Rows) -> list[Chart]:
        """Charts of the measurements; empty if tables are enough."""
        return []

    def notes(self, rows: Rows) -> list[str]:
        """Notes for readers of the numbers."""
        return []

    def measurements(self, rows: Rows) -> list[dict[str, Any]]:
        """Every number with its ``method``, ``run``, ``seed`` and ``hold_out`` (or None)."""
        return [
            {
                "method": label,
                "run": one.run.path.name,
                "seed": one.seed,
                "hold_out": one.run.table["protocol"].get("hold_out"),
                **row,
            }
            for label, its in rows.items()
            for one in its
            for row in one.measured.rows
        ]
