"""The results of runs: their rows, tables, scores and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedshift.clients import PROTOCOLS
from fedshift.core.metrics import ACCURACY, Metric
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.reporting.comparison_notes import Caution, cautions, notes
from fedshift.reporting.comparison_tables import more_tables, tables
from fedshift.reporting.results import MeanStd, Row, common_targets, described, flattened, labels
from fedshift.reporting.table import Table, Tabled
from fedshift.runs.find import find, grid_files, read_grid
from fedshift.runs.origin import check_no_study
from fedshift.runs.run import Run
from fedshift.runs.scheduling import Failures, run_path
from fedshift.runs.schema import Record
from fedshift.runs.selection import ORACLES, RULES, moment, selects

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedshift.reporting.analyses.analysed import Analysed

REFUSED = "refused.txt"  # in the folder of a run that could not begin: why


@dataclass(frozen=True, repr=False)
class Comparison(Tabled):
    """Runs and their results; prints as tables.

    Attributes:
        runs: the runs with records.
        missing: notes on runs without records, with the reasons.
        lacking: the reason by label for each requested row without a run.
        failed: messages of runs that diverged or could not run.
        requested: the number of requested runs.
        labels: the labels of requested rows, by the fingerprint that a row's runs share.
    """

    runs: list[Run]
    missing: tuple[str, ...] = ()
    lacking: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    requested: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folders: Sequence[Run],
        failed: Failures,
        requested: int,
        rows: Sequence[tuple[str, Sequence[Experiment]]] = (),
    ) -> Comparison:
        """The comparison of run folders, of which some runs failed.

        Args:
            folders: the folders of the other runs.
            failed: the errors.
            requested: the number of requested runs.
            rows: the requested rows by label, so that a row without records is shown with the reason.

        Raises:
            FedshiftError: all runs failed.
        """
        problems = tuple(map(str, failed.values()))
        if len(failed) == requested:
            raise type(next(iter(failed.values())))(_failure(problems, requested))
        read = cls.read(folders)
        there, lacking = {run.identity.series for run in read.runs}, dict[str, str]()
        for label, its in rows:
            reasons = [
                str(failed[path]).removeprefix(f"{path.name}: ") for each in its if (path := run_path(each)) in failed
            ]
            if reasons and its[0].series not in there:
                lacking[label] = reasons[0]
        called = {its[0].series: label for label, its in rows}
        return replace(read, lacking=lacking, failed=problems, requested=requested, labels=called)

    @classmethod
    def read(cls, folders: Sequence[Run]) -> Comparison:
        """Read the runs that have records; runs without records, and damaged ones, are noted.

        Raises:
            FedshiftError: no run has records.
        """
        runs, damaged, waiting = [], [], []
        for run in folders:
            try:
                run.check()
                if run.records:
                    runs.append(run)
                else:
                    why = run.given_up or f"{run.resume_command} continues."
                    waiting.append(f"{run.path.name} has no record yet. {why}")
            except FedshiftError as error:
                damaged.append(str(error))
        if not runs and damaged:
            raise FedshiftError(damaged[0])
        if not runs:
            raise FedshiftError("None of these runs has a record yet; `fedshift resume` carries them on.")
        missing = [f"A run is excluded: {problem}" for problem in (*damaged, *waiting)]
        return cls(runs, tuple(missing), requested=len(runs))

    @classmethod
    def at(cls, *paths: Path, trust: bool = False) -> Comparison:
        """Every run at or below the paths, sorted by method and settings, without repetitions.

        Raises:
            FedshiftError: no run has records, or a path belongs to a search.
        """
        found: dict[Path, Run] = {}
        for path in paths:
            check_no_study(path)
            found |= {run.path.resolve(): run for run in find(path, trust=trust)}
        read = cls.read([*found.values()])
        waiting = [note for path in paths for note in _not_started(path)]
        return replace(read, runs=sorted(read.runs, key=_order), missing=(*read.missing, *waiting))

    # Rows and columns --------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Runs grouped by everything that decides their results except seed and held-out domain, in order."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.identity.series, []).append(run)
        called = self.labels or labels(
            {series: described(runs[0].table, runs[0].identity.contents) for series, runs in groups.items()}
        )
        common = common_targets(groups.values())
        return [Row(called[series], runs, self.metric, common) for series, runs in groups.items()]

    @property
    def seeds(self) -> list[int]:
        return sorted({run.table["seed"] for run in self.runs})

    @cached_property
    def metric(self) -> Metric:
        """The metric that tables show first: the one by which the runs select, or accuracy if they differ."""
        selecting = dict.fromkeys(selects(run.records[-1]) for run in self.runs)
        return next(iter(selecting)) if len(selecting) == 1 else Metric(ACCURACY)

    @property
    def moment(self) -> str:
        """The scored rounds in words, such as "last round"."""
        found = {moment(run.records) for run in self.runs}
        return found.pop() if len(found) == 1 else "last evaluations"

    @cached_property
    def metrics(self) -> list[Metric]:
        """The metrics that all runs have, :attr:`metric` first."""
        every = [run.records[-1]["environments"][0].get("metrics", {}) for run in self.runs]
        common = [ACCURACY, *(name for name in every[0] if all(name in names for names in every))]
        return [self.metric, *(Metric(name) for name in common if name != self.metric.name)]

    def environments(self, role: str) -> list[str]:
        """The names of the environments of a role, in order."""
        rows = (row for run in self.runs for row in run.records[-1]["environments"] if row["role"] == role)
        return list(dict.fromkeys(row["environment"] for row in rows))

    def heading(self, role: str, environment: str) -> str:
        """The heading of a column or panel: the role, and the environment if its name adds information."""
        label = self.label(role)
        return label if environment == label else f"{label} {environment}"

    def label(self, role: str) -> str:
        """The protocol's name for the score on environments of a role."""
        name = self.runs[0].table["protocol"]["name"]
        if name not in PROTOCOLS:  # a plugin's, which is not imported for a report
            return role
        protocol = PROTOCOLS.get(name)
        return protocol.test_label if role == "test" else protocol.validation_label

    # What users call ----------------------------------------------------------------------------

    @property
    def failure(self) -> str:
        """One message about all failures; empty if there are none."""
        return _failure(self.failed, self.requested) if self.failed else ""

    def report(self, path: str | Path, images: bool = False) -> Path:
        """Write the self-contained HTML report and return its path.

        Args:
            path: the file, or a folder for report.html, which is created if needed.
            images: read the data of the first finished run for sample images of each domain, which its folder keeps;
                images that a run already has are always shown.

        Raises:
            FedshiftError: it cannot be written.
        """
        from fedshift.reporting.report_page import write_report

        return write_report(self, Path(path), images)

    def write(self, folder: str | Path) -> list[Path]:
        """Write every table as LaTeX, Markdown and CSV, and every figure as SVG and PNG with its numbers as CSV.

        Returns:
            The files.

        Raises:
            FedshiftError: they cannot be written.
        """
        from fedshift.reporting.report_page import write_files

        return write_files(self, Path(folder))

    def analyse(self, name: str, **settings: Any) -> Analysed:
        """Analyse every finished run without training; see :func:`fedshift.analyse`.

        Args:
            name: the analysis, from ``fedshift list analyses``.
            settings: its settings, by name.

        Raises:
            FedshiftError: there is no such analysis or setting, or it applies to none of the runs.
        """
        from fedshift.reporting.analyses import ANALYSES
        from fedshift.reporting.analyses.analysed import analyse

        return analyse(self, ANALYSES.build({"name": name, **settings}))

    def accuracy(self, method: str) -> float:
        """A row's headline: test accuracy at the end (``evaluate.last``), mean over environments and seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return self.score(method, ACCURACY)

    def score(self, method: str, metric: str | None = None) -> float:
        """A row's test score at the end (``evaluate.last``), mean over environments and seeds, in 0..1.

        Args:
            method: the row's label.
            metric: a metric of ``evaluate.metrics`` such as "auroc" or "auroc of cat"; default: the selecting metric.

        Raises:
            FedshiftError: no row has that label, or its runs lack the metric.
        """
        row = self._row(method)
        return _mean(row.score("test", metric=self._metric(metric).name))

    def _metric(self, name: str | None) -> Metric:
        known = {one.name: one for one in self.metrics}
        if name is not None and name not in known:
            raise UnknownNameError("metric", name, [*known])
        return self.metric if name is None else known[name]

    def plot(self, role: Literal["test", "validation"] = "test", metric: str | None = None) -> Figure:
        """A figure of every row's score by environment, with two kinds of uncertainty.

        Thick lines are 95 % t intervals over seeds, pale lines the intervals within an environment. With more than
        twelve environments only their mean is drawn. Save it by ``comparison.plot().savefig("scores.pdf")``.

        Args:
            role: the environments' role.
            metric: as in :meth:`score`.

        Raises:
            FedshiftError: there are no such environments, or no such metric.
        """
        from fedshift.reporting.score_plot import score_plot

        if not self.environments(role):
            raise FedshiftError(f"role = {role!r}: give 'test' or 'validation'.")
        return score_plot(self, role, self._metric(metric))

    def worst(self, method: str) -> float:
        """A row's test score at the end on each seed's worst environment, mean over seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return _mean(self._row(method).worst("test"))

    def _row(self, label: str) -> Row:
        rows = {row.label: row for row in self.rows()}
        if label not in rows:
            raise FedshiftError(f"No row is called '{label}'; rows: {', '.join(rows)}.")
        return rows[label]

    def measurements(self) -> list[Record]:
        """Every model's score on every environment, at the round that each selection rule picks.

        Each measurement has ``run`` (the folder's name), ``method`` (the row's label), ``seed``, ``hold_out`` (or
        None); the selection ``rule``, whether it is an ``oracle`` that uses test data, and its ``position`` (rounds
        done), ``stage`` and ``round``; the ``environment``, its ``role`` (test or validation), the scored ``model``
        (global, own, unseen), the number of ``models`` in the mean, ``accuracy`` in 0..1, ``loss`` in nats, the number
        of samples ``n``, and each metric by name (None if undefined). ``accuracy low`` and ``accuracy high`` are the
        ends of the 95 % interval within the environment; metrics have such ends, too. An environment of several clients
        occurs once for each.
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
                **{name: value for name, value in scored.items() if name not in ("metrics", "undefined", "intervals")},
                **scored.get("metrics", {}),
                **{
                    f"{name} {end}": bound
                    for name, ends in scored.get("intervals", {}).items()
                    for end, bound in zip(("low", "high"), ends, strict=True)
                },
            }
            for row in self.rows()
            for run in row.runs
            for name, rule in RULES.items()
            for record in [rule(run.records)]
            for scored in record["environments"]
        ]

    def tables(self) -> list[Table]:
        """The headline table, then tables by environment, of metrics, and of each loss term's share."""
        return tables(self)

    def more_tables(self) -> list[Table]:
        """Differences paired by seed, every environment with its samples, and the model that is scored on it."""
        return more_tables(self)

    def notes(self) -> list[str]:
        """Notes for readers of the tables, including unfinished runs."""
        return notes(self)

    def cautions(self) -> list[Caution]:
        """Reasons to distrust the numbers, such as a single seed or an unfinished run."""
        return cautions(self)


def _failure(failed: Sequence[str], requested: int) -> str:
    return f"{len(failed)} of {requested} runs failed. {failed[0]}"


def _mean(measured: MeanStd | None) -> float:
    if measured is None:
        raise FedshiftError("The row has no test environment on which the metric is defined.")
    return measured.mean


def _not_started(path: Path) -> Iterator[str]:
    """The runs of comparisons at or below a path that have no folder yet."""
    for file in grid_files(path):
        try:
            runs = read_grid(file).runs
        except FedshiftError as error:
            yield str(error)
            continue
        waiting = [file.parent / run.folder for run in runs if not Run(file.parent / run.folder).has_started]
        refused = [folder for folder in waiting if (folder / REFUSED).is_file()]
        for folder in refused:
            reason = (folder / REFUSED).read_text(encoding="utf-8")
            yield f"{folder.name} could not run: {reason} `fedshift resume {path}` tries again."
        if names := [folder.name for folder in waiting if folder not in refused]:
            yield (
                f"{len(names)} of the {len(runs)} runs of a comparison have not started ({', '.join(names[:4])}"
                f"{', ...' if len(names) > 4 else ''}); `fedshift resume {path}` begins them."
            )


def _order(run: Run) -> list[tuple[int, float, str]]:
    values = [run.table["method"]["name"], *flattened(run.table).values()]
    return [(0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in values]
