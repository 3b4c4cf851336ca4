"""What came of runs: their tables, scores and report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedshift.core.metrics import ACCURACY
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.reporting.results import MeanStd, Refused, Results, Row, described
from fedshift.reporting.table import Table, tables
from fedshift.reporting.tabled import Measurements
from fedshift.runs.folder import RunFolder
from fedshift.runs.run import Run
from fedshift.runs.runner import Failures, run_path
from fedshift.runs.schema import Record
from fedshift.runs.selection import ORACLES, RULES


@dataclass(frozen=True, repr=False)
class Comparison(Measurements):
    """Runs and what was measured; prints as its tables.

    Attributes:
        results: the records of every run, in the rows of its tables.
        failed: a message for each run that blew up or could not be carried out.
        asked: how many runs were asked for.
    """

    results: Results
    failed: tuple[str, ...] = ()
    asked: int = 0

    @classmethod
    def of(
        cls, folders: Sequence[RunFolder], failed: Failures, asked: int, experiments: Sequence[Experiment] = ()
    ) -> Comparison:
        """What is in the folders of runs, of which some failed.

        Args:
            folders: those of the others.
            failed: what went wrong.
            asked: how many runs were asked for.
            experiments: what these were, so that a row of which none has a record is shown with the reason.

        Raises:
            FedshiftError: all failed.
        """
        problems = tuple(map(str, failed.values()))
        if len(failed) == asked:
            raise type(next(iter(failed.values())))(_failure(problems, asked))
        results = Results.read(folders)
        there = {run.folder.identity.series for run in results.runs}
        lacking: dict[str, Refused] = {}
        for each in experiments:
            error = failed.get(path := run_path(each))
            if error is not None and each.series not in there:
                reason = str(error).removeprefix(f"{path.name}: ")
                lacking.setdefault(each.series, Refused(described(each.table(), each.contents), reason))
        return cls(replace(results, refused=tuple(lacking.values())), problems, asked)

    @property
    def runs(self) -> list[Run]:
        """The runs that have records."""
        return self.results.runs

    @property
    def folders(self) -> list[Path]:
        """The folders of these runs."""
        return [run.path for run in self.runs]

    @property
    def failure(self) -> str:
        """One message about all that failed; empty if nothing did."""
        return _failure(self.failed, self.asked) if self.failed else ""

    def report(self, path: str | Path) -> Path:
        """Write the self-contained HTML report, into a folder that is made if need be, and return its path.

        Raises:
            FedshiftError: it cannot be written.
        """
        from fedshift.reporting.page import write_report

        return write_report(self.results, Path(path))

    def accuracy(self, method: str) -> float:
        """A row's headline: test accuracy at the last round, mean over environments and seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return self.score(method, ACCURACY)

    def score(self, method: str, metric: str | None = None) -> float:
        """A row's test score at the last round, mean over environments and seeds, in 0..1.

        Args:
            method: the row's label.
            metric: such as "auroc" or "auroc of cat", of those in ``evaluate.metrics``; None: the one that selects.

        Raises:
            FedshiftError: no row has that label, or its runs no such metric.
        """
        row, known = self._row(method), [one.name for one in self.results.metrics]
        if metric is not None and metric not in known:
            raise UnknownNameError("metric", metric, known)
        return _mean(row.score("test", metric=metric))

    def worst(self, method: str) -> float:
        """A row's test score, by the metric that selects, at the last round on each seed's worst environment.

        It is the mean over seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return _mean(self._row(method).worst("test"))

    def measurements(self) -> list[Record]:
        """Every model's score on every environment, at the round that each selection rule picks.

        Each has the ``run`` (its folder's name), the row's label as ``method``, ``seed``, ``hold_out`` (or None); the
        ``rule``, whether it is an ``oracle`` that looks at test data, and the ``position`` (rounds done), ``stage`` and
        ``round`` it picks; the ``environment`` and its ``role`` (test or validation), whose ``model`` is scored on it
        (global, own, unseen), the mean over how many ``models``, the ``accuracy`` in 0..1, the ``loss`` in nats,
        over how many samples ``n``, and each metric by its name (None where it is undefined). An environment of several
        clients comes once for each.
        """
        return [
            {
                "run": run.path.name,
                "method": row.label,
                "seed": run.table["seed"],
                "hold_out": run.table["protocol"].get("hold_out"),
                "rule": name,
                "oracle": name in ORACLES,
                **{key: record[key] for key in ("position", "stage", "round")},
                **{name: value for name, value in scored.items() if name not in ("metrics", "undefined")},
                **scored.get("metrics", {}),
            }
            for row in self.results.rows()
            for run in row.runs
            for name, rule in RULES.items()
            for record in [rule(run.records)]
            for scored in record["environments"]
        ]

    def _row(self, label: str) -> Row:
        rows = {row.label: row for row in self.results.rows()}
        if label not in rows:
            raise FedshiftError(f"No row is called '{label}'; rows: {', '.join(rows)}.")
        return rows[label]

    def tables(self) -> list[Table]:
        """The headline table, then by environment, metrics, and what part of the loss each term makes up."""
        return tables(self.results)

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        return self.results.notes


def _failure(failed: Sequence[str], asked: int) -> str:
    return f"{len(failed)} of {asked} runs failed. {failed[0]}"


def _mean(measured: MeanStd | None) -> float:
    if measured is None:
        raise FedshiftError("The row has no test environment on which the metric is defined.")
    return measured.mean
