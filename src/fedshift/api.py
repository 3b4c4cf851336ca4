"""The same runs as on the command line, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.errors import FedshiftError
from fedshift.reporting.page import write_report
from fedshift.reporting.results import Measured, Results, Row
from fedshift.reporting.table import as_text, tables
from fedshift.runs import runner
from fedshift.runs.folder import RunFolder, find
from fedshift.runs.progress import Progress
from fedshift.settings import grid


@dataclass(frozen=True)
class Comparison:
    """Runs and what was measured; prints as its tables.

    Attributes:
        results: the records of every run.
        failed: a message for each run that blew up or could not be carried out.
    """

    results: Results
    failed: tuple[str, ...] = ()

    @property
    def folders(self) -> list[Path]:
        """The run folders."""
        return [run.folder.path for run in self.results.runs]

    def report(self, path: str | Path) -> Path:
        """Write the self-contained HTML report and return its path."""
        return write_report(self.results, Path(path))

    def accuracy(self, method: str) -> float:
        """A row's headline: test accuracy at the last round, mean over environments and seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return _mean(self._row(method).accuracy("test"))

    def worst(self, method: str) -> float:
        """A row's test accuracy at the last round on each seed's worst environment, mean over seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return _mean(self._row(method).worst("test"))

    def _row(self, label: str) -> Row:
        rows = {row.label: row for row in self.results.rows()}
        if label not in rows:
            raise FedshiftError(f"No row is called '{label}'; rows: {', '.join(rows)}.")
        return rows[label]

    def __str__(self) -> str:
        return as_text(self.results)

    def _repr_html_(self) -> str:
        from html import escape

        def line(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        return "".join(
            f"<table><caption>{escape(table.title)}</caption>{line(table.columns, 'th')}"
            + "".join(line(row, "td") for row in table.rows)
            + "</table>"
            for table in tables(self.results)
        )


def _mean(measured: Measured | None) -> float:
    if measured is None:
        raise FedshiftError("The row has no test environment.")
    return measured.mean


def compare(
    experiment: str | Path | Mapping[str, Any] = "rotated-mnist",
    overrides: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Carry out every run that an experiment describes; finished ones are not repeated.

    Args:
        experiment: a TOML file, the name of an experiment that comes with fedshift, or a table.
        overrides: dotted settings such as ``{"method.l2r": 0.05, "seed": [0, 1, 2]}``; a list where one
            value is expected makes a run for each.
        progress: hears of the progress; by default a live display.

    Raises:
        FedshiftError: something in the experiment is wrong; the message names it and the fix.
    """
    document = experiment if isinstance(experiment, Mapping) else grid.read(experiment)
    experiments = grid.expand(grid.override(document, overrides or {}))
    with _shown(progress, len(experiments)) as shown:
        folders, failed = runner.run_all(experiments, shown)
    if len(failed) == len(experiments):
        raise failed[0]
    return Comparison(Results.read(folders), tuple(str(error) for error in failed))


def resume(path: str | Path, progress: Progress | None = None) -> Comparison:
    """Carry on every unfinished run at or below a path."""
    folders = find(Path(path))
    with _shown(progress, len(folders)) as shown:
        for folder in folders:
            runner.resume(folder, shown)
    return Comparison(Results.read(folders))


def load(path: str | Path) -> Comparison:
    """What the runs at or below a path have recorded so far."""
    return Comparison(Results.at(Path(path)))


def _shown(progress: Progress | None, runs: int) -> Any:
    from contextlib import nullcontext

    from fedshift.reporting.live import LiveProgress

    return nullcontext(progress) if progress else LiveProgress(runs)


__all__ = ["Comparison", "RunFolder", "compare", "load", "resume"]
