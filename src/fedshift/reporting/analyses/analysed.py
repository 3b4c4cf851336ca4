"""Carrying an analysis out on runs: measuring, caching, and writing what comes out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift import files
from fedshift.errors import DamagedError, DiskError, FedshiftError
from fedshift.manifest import digested_json, read_json
from fedshift.reporting.analyses import ANALYSES
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.charts import Chart
from fedshift.reporting.table import Table, Tabled, as_csv
from fedshift.runs.observed import TrainedSimulation
from fedshift.runs.run import WEIGHTS, Run
from fedshift.runs.schema import File, Record

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

FOLDER = "analyses"  # in a run's folder: what was measured of it


class Cached(File):
    """analyses/NAME-*.json in a run's folder."""

    analysis: dict[str, Any]  # the analysis's name and settings
    version: int  # the analysis's
    weights: str  # the digest of the run's final weights
    measured: Measured  # what came out


@dataclass(frozen=True, eq=False, repr=False)
class Analysed(Tabled):
    """An analysis of runs; prints as its tables."""

    analysis: Analysis  # what was measured
    rows: Rows  # what came out, by the row's label
    left_out: tuple[str, ...] = ()  # why runs are missing, a note each

    @property
    def name(self) -> str:
        return ANALYSES.name_of(self.analysis)

    def tables(self) -> list[Table]:
        return self.analysis.tables(self.rows)

    def charts(self) -> list[Chart]:
        return self.analysis.charts(self.rows)

    def notes(self) -> list[str]:
        """What is measured, by which source, and what a reader must know."""
        definition = " ".join(self.analysis.help().split())
        return [f"{definition} Source: {self.analysis.source}.", *self.analysis.notes(self.rows), *self.left_out]

    def measurements(self) -> list[Record]:
        """Every number with its ``method``, ``run``, ``seed`` and ``hold_out``."""
        return self.analysis.measurements(self.rows)

    def write(self, folder: str | Path) -> list[Path]:
        """Write the numbers as CSV, and each chart as SVG and PNG with its numbers as CSV.

        Returns:
            The files.
        """
        contents: dict[str, bytes | str] = {f"{self.name}.csv": as_csv(self.measurements())}
        for chart in self.charts():
            contents |= {f"{chart.name}.{kind}": getattr(chart, kind)() for kind in ("svg", "png", "csv")}
        files.make_folder(Path(folder))
        for name, content in contents.items():
            files.write(Path(folder) / name, content)
        return [Path(folder) / name for name in contents]


def analyse(comparison: Comparison, analysis: Analysis, tell: Callable[[Run], None] = lambda run: None) -> Analysed:
    """Measure every finished run of a comparison; what was measured before is read from the run's folder.

    Args and errors are those of :func:`analyse_rows`.
    """
    return analyse_rows(((row.label, row.runs) for row in comparison.rows()), analysis, tell)


def analyse_rows(
    labelled: Iterable[tuple[str, Sequence[Run]]], analysis: Analysis, tell: Callable[[Run], None] = lambda run: None
) -> Analysed:
    """Measure the finished runs of rows.

    Args:
        labelled: the rows, each with its label.
        analysis: what to measure.
        tell: is called with each run before it is measured.
    """
    left_out: list[FedshiftError] = []
    rows: dict[str, list[MeasuredRun]] = {}
    for label, runs in labelled:
        for run in runs:
            try:
                rows.setdefault(label, []).append(MeasuredRun(run, measure(run, analysis, tell)))
            except FedshiftError as error:
                left_out.append(error)
    found = {label: its for label, its in rows.items() if its}
    if not found:
        raise left_out[0]
    return Analysed(analysis, found, tuple(f"A run is excluded: {error}" for error in left_out))


def measure(run: Run, analysis: Analysis, tell: Callable[[Run], None] = lambda run: None) -> Measured:
    """What an analysis measures of a run; from the run's folder if it is there, else computed and kept there."""
    if found := cached(run, analysis):
        return found
    trained = TrainedSimulation(run)
    tell(run)
    measured = analysis.measure(trained)
    table = ANALYSES.table_of(analysis)
    content = Cached(analysis=table, version=analysis.version, weights=_weights(run), measured=measured)
    path = _path(run, table)
    try:
        files.make_folder(path.parent)
        files.write(path, digested_json(content.model_dump()))
    except DiskError:
        if not _read_only(run.path):
            raise
    return measured


def cached(run: Run, analysis: Analysis) -> Measured | None:
    table = ANALYSES.table_of(analysis)
    path = _path(run, table)
    if not run.finished or not path.is_file():
        return None
    try:
        found = read_json(path, Cached)
    except DamagedError:  # it is made again
        return None
    same = (found.analysis, found.version, found.weights) == (table, analysis.version, _weights(run))
    return found.measured if same else None


def existing(comparison: Comparison) -> Iterator[Analysed]:
    """Every analysis that was made of a run of a comparison before, by name and then settings."""
    tables = dict[str, dict[str, Any]]()
    for run in comparison.runs:
        for path in sorted((run.path / FOLDER).glob("*.json")):
            try:
                table = read_json(path, Cached).analysis
            except DamagedError:
                continue
            tables[json.dumps(table, sort_keys=True)] = table
    for _, table in sorted(tables.items()):
        if table["name"] not in ANALYSES:  # a plugin's, which is not imported for a report
            continue
        analysis = ANALYSES.build(table)
        rows = {
            row.label: [MeasuredRun(run, its) for run in row.runs if (its := cached(run, analysis))]
            for row in comparison.rows()
        }
        if found := {label: its for label, its in rows.items() if its}:
            yield Analysed(analysis, found)


def _path(run: Run, table: Mapping[str, Any]) -> Path:
    key = files.digest_of(json.dumps(table, sort_keys=True).encode())[:8]
    return run.path / FOLDER / f"{table['name']}-{key}.json"


def _weights(run: Run) -> str:
    return run.final.files[WEIGHTS].digest


def _read_only(folder: Path) -> bool:
    return not os.access(folder, os.W_OK)
