"""An analysis: numbers of a finished run's models and data, and the tables and charts of several runs."""

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
    """What an analysis measured of a run, as its cache keeps it.

    Attributes:
        rows: the numbers, with the names of what they are of.
        images: PNG files in base64, by names that rows refer to.
    """

    rows: list[dict[str, float | int | str | None]]
    images: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredRun:
    """A run, and what was measured of it."""

    run: Run
    measured: Measured

    @property
    def seed(self) -> int:
        return int(self.run.table["seed"])


Rows = Mapping[str, Sequence[MeasuredRun]]  # runs that differ only in seed and held-out domain, by the row's label


class Analysis(Spec):
    """Numbers of finished runs, computed from their folders and data without training again.

    Its docstring defines what is measured, with units; :meth:`measure` reads a single run, and is cached in its folder;
    the others combine runs.

    Attributes:
        title: what it measures, as headings have it.
        source: the paper and figure or equation.
        version: changes when :meth:`measure` gives other numbers for the same settings, so that caches are made again.
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
        """The numbers of every row as tables."""
        raise NotImplementedError

    def charts(self, rows: Rows) -> list[Chart]:
        """Pictures of the numbers; empty if tables show everything."""
        return []

    def notes(self, rows: Rows) -> list[str]:
        """What a reader of the numbers must know."""
        return []

    def measurements(self, rows: Rows) -> list[dict[str, Any]]:
        """Every number with its ``method``, ``run``, ``seed`` and ``hold_out`` (None if none is)."""
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
