"""The benchmark: methods that are tuned alike on a set of scenarios, run with other seeds, and ranked."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from fedshift.errors import FedshiftError
from fedshift.experiments import load_plugins
from fedshift.methods import METHODS
from fedshift.reporting.live import display
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.runs.events import Progress
from fedshift.spec import shown
from fedshift.study.execute import LACKING, carry_out, read_findings
from fedshift.study.papers import Exhibit, ExhibitRow, Printed, published
from fedshift.study.quantities import Interval, paired, ranks, t_quantile
from fedshift.study.scenarios import Scenario, scale_of, scenarios, text_of
from fedshift.study.study_plan import Lacking, StudyPlan
from fedshift.study.study_tables import StudyResults
from fedshift.written import parse_toml

OUT = "runs/benchmark"
BASE = "fedavg"  # with which rows are compared
ALL = "all"
NONE = "-"
LAST = float("-inf")  # the accuracy by which what diverged is ranked


@cache
def contents() -> dict[str, Any]:
    """What the benchmark's file says: its federations, columns, and the methods that are left out unless named."""
    return parse_toml(text_of("benchmark/benchmark"), "the benchmark")


def rows(names: Sequence[str] | None = None) -> list[str]:
    """The methods of the benchmark: the catalogue's, but none that its file leaves out.

    "all" among the names, as no names at all, stands for these.

    Raises:
        FedshiftError: the names are none, or a method is not known, or named twice.
    """
    if names is not None and not names:
        raise FedshiftError(f"No method is named: give some, such as {BASE}, or '{ALL}' for the published ones.")
    left_out = contents()["left_out"]
    published = [name for name in METHODS if name not in left_out and METHODS.get(name).built_in]
    found = [each for name in (names or [ALL]) for each in (published if name == ALL else [name])]
    for name in found:
        METHODS.get(name)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise FedshiftError(f"The method '{twice[0]}' is given twice; give each once ('{ALL}' has the published ones).")
    return found


def exhibit_of_methods(methods: Sequence[str], plugins: Sequence[str], known: Sequence[Scenario]) -> Exhibit:
    """The benchmark's table; a user's plugins are a part of the runs of their own methods alone."""
    its = [(name, [] if METHODS.get(name).built_in else [*plugins]) for name in methods]
    return Exhibit(
        name="benchmark",
        paper="",
        title="Benchmark",
        what="Methods that are tuned alike on a set of federations.",
        kind="table",
        scenarios=tuple(known),
        rows=tuple(ExhibitRow(name, name, {"plugins": plugins}) for name, plugins in its),
        columns=contents()["columns"],
        panel="federation",
        plain=ExhibitRow(BASE, BASE, {"plugins": []}),
    )


def plan_benchmark(
    scale: str = "smoke",
    methods: str | Sequence[str] | None = None,
    federations: str | Sequence[str] | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    out: str | Path | None = None,
) -> StudyPlan:
    """The plan of what a user names, one or several, as for :func:`benchmark`; None stands for all.

    Raises:
        FedshiftError: a name is not known, ``data`` has no names, a plugin cannot be imported, or SciPy is not
            installed.
    """
    t_quantile(1)  # so that what is not installed is named before anything runs
    given = [plugins] if isinstance(plugins, str | Path) else plugins
    code = [str(Path(path).expanduser().absolute()) for path in given]
    load_plugins(code)
    names = rows([methods] if isinstance(methods, str) else methods)
    exhibit = exhibit_of_methods(names, code, [scenarios("benchmark")[name] for name in contents()["federations"]])
    size, folder = scale_of("benchmark", scale), Path(out or OUT) / scale
    return StudyPlan.of(exhibit, size, folder=folder, runs=folder, scenarios=federations, data=data)


def benchmark(
    scale: str = "smoke",
    methods: str | Sequence[str] | None = None,
    federations: str | Sequence[str] | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Carry out the published benchmark: methods on a set of federations, tuned alike, with ranks and differences.

    What is finished is not repeated: called again, it goes on where it was. The tables, a page and the figure are
    written into the scale's folder.

    Args:
        scale: "smoke", "short" or "paper".
        methods: the rows, or one; "all" among them stands for the published methods that come with the package. By
            default these.
        federations: the columns, or one; by default all that the scale has.
        data: paths of the data that are not there or made, by data set: ``{"pacs": "pacs.parquet"}``.
        plugins: Python files that register methods, which are rows if ``methods`` names them.
        out: the folder; by default runs/benchmark.
        progress: callback for the progress; by default a live display.

    Raises:
        FedshiftError: a name is not known, no column has its data, or runs cannot be carried out for a reason that is
            not their method's, such as a full disk; what is finished is kept, and no table is written.
    """
    plan = plan_benchmark(scale, methods, federations, data=data, plugins=plugins, out=out)
    return carry_out_benchmark(plan, progress)


def carry_out_benchmark(plan: StudyPlan, progress: Progress | None = None) -> Benchmark:
    """Carry out a plan, and write its files."""
    each = plan.scale.trials * len(plan.scale.tuning_seeds) + len(plan.scale.seeds)
    with display(progress, each * len(plan.scenarios) * len(plan.rows)) as shown:
        done = Benchmark(plan, read_findings(plan, *carry_out(plan, shown)))
    done.write()
    return done


@dataclass(frozen=True, repr=False)
class Benchmark(StudyResults):
    """Methods on federations, as measured, accuracies in %; prints as its tables."""

    @property
    def columns(self) -> list[Scenario]:
        """The scenarios that have their data."""
        return [each for each in self.plan.scenarios if each.name not in self.findings.left_out]

    @property
    def methods(self) -> list[str]:
        """The rows."""
        return [row.name for row in self.plan.rows]

    @property
    def failed(self) -> bool:
        """Whether a user's method failed somewhere."""
        return any(each.kind == "failed" for each in self.findings.lacking.values())

    def lacking(self, scenario: str, method: str) -> Lacking | None:
        """Why a cell has no number."""
        return self.findings.lacking.get((scenario, method, ""))

    def ranks(self, scenario: str) -> dict[str, float]:
        """The rank of each method by its mean accuracy, 1 for the best; what diverged is last."""
        values: dict[str, float] = {}
        for method in self.methods:
            accuracy, lacking = self.mean(scenario, method, "accuracy"), self.lacking(scenario, method)
            if accuracy is not None:
                values[method] = accuracy.mean
            elif lacking is not None and lacking.kind == "diverged":
                values[method] = LAST
        return ranks(values)

    @cached_property
    def _ranks(self) -> dict[str, dict[str, float]]:
        return {scenario.name: self.ranks(scenario.name) for scenario in self.columns}

    def mean_rank(self, method: str) -> float | None:
        """The mean of a method's ranks over the scenarios on which it can run; None if there is none."""
        found = [rank[method] for rank in self._ranks.values() if method in rank]
        return mean(found) if found else None

    def by_rank(self) -> list[str]:
        """The methods, the lowest mean rank first, and those without any last."""
        there = {method: self.mean_rank(method) for method in self.methods}
        return sorted(there, key=lambda method: (there[method] is None, there[method] or 0.0))

    def differences(self, scenario: str, method: str) -> dict[int, float]:
        """By seed, a method's accuracy less FedAvg's on the same split, in points; empty where one of them lacks it."""
        ours, base = (self.by_seed(scenario, name, "accuracy") for name in (method, BASE))
        return paired(ours, base)

    def difference(self, scenario: str, method: str) -> Interval | None:
        """The mean of these differences, with an interval over seeds."""
        return Interval.of([*self.differences(scenario, method).values()])

    def overall(self, method: str) -> Interval | None:
        """The difference to FedAvg averaged over the scenarios that both have, with an interval over seeds.

        It is of these federations: how far others would differ it does not say.
        """
        found = [differences for each in self.columns if (differences := self.differences(each.name, method))]
        seeds = set.intersection(*map(set, found)) if found else set()
        return Interval.of([mean(differences[seed] for differences in found) for seed in sorted(seeds)])

    def tables(self) -> list[Table]:
        """Accuracy with ranks, differences to FedAvg, cost, and the papers' rows beside ours."""
        found = [_accuracy(self)]
        if BASE in self.methods and len(self.methods) > 1:
            found.append(_differences(self))
        return [*found, _cost(self), *_published(self)]

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        scale = self.plan.scale
        tuned = ", ".join(map(str, scale.tuning_seeds))
        words = [
            f"Scale {scale.name}: {scale.about}. Every method was tuned on every column (each held-out domain apart) "
            f"with {scale.trials} trials, seed {tuned}, on validation data alone; the tables are of seeds "
            f"{', '.join(map(str, scale.seeds))}, on which nothing was chosen, and of the last round.",
            *(f"{scenario.title}: {scenario.score}." for scenario in self.columns),
            "Mean rank: over the columns on which a method can run, so it is no comparison of methods with different "
            "columns. Equal means share a rank, and what diverged is last.",
            f"Differences to {BASE} are paired by seed, whose data and split are the same; intervals are Student's "
            "over seeds, 95 % each. 'overall' is the mean over the columns that both have: it is of these federations.",
        ]
        return [*words, *self.what_is_lacking()]

    def more_tables(self) -> list[Table]:
        """The settings of each cell, and of what search they are, which stand in the files alone."""
        rows = [
            [
                method,
                scenario.title,
                found.hold_out or NONE,
                ", ".join(f"{name} = {_setting(value)}" for name, value in found.settings.items()),
                f"{100 * found.value:.1f}",
                *map(str, (found.trials, found.pruned, found.failed, found.repeated)),
                ", ".join(map(str, found.seeds)),
                found.sampler,
            ]
            for method in self.methods
            for scenario in self.columns
            for found in self.findings.chosen.get((scenario.name, method), ())
        ]
        counts = ["trials", "pruned", "failed", "repeated"]
        heads = ["method", "federation", "held out", "settings", "validation", *counts, "seeds", "sampler"]
        title = "Chosen settings, their validation accuracy in %, and how the trials they were chosen among ended"
        return [Table(title, heads, rows)] if rows else []

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON, the figure and the page into the plan's folder, replacing earlier ones.

        Returns:
            The files.

        Raises:
            FedshiftError: one cannot be written.
        """
        from fedshift.reporting.page import render, write_page_to  # with matplotlib
        from fedshift.study.figures import draw_ranks

        ranked = ((method, self.mean_rank(method)) for method in self.by_rank())
        its = [(name, rank, self.overall(name) if name != BASE else None) for name, rank in ranked if rank is not None]
        png = draw_ranks(its, BASE)
        page = render(
            "benchmark.html.jinja",
            title=f"Benchmark, scale {self.plan.scale.name}",
            tables=[*self.tables(), *self.more_tables()],
            notes=self.notes(),
            figure=b64encode(png).decode(),
            base=BASE,
        )
        return [*self.write_files({"png": png}), write_page_to(self.plan.folder, "benchmark.html", page)]


def _accuracy(done: Benchmark) -> Table:
    columns = ["method", "paper"]
    for scenario in done.columns:
        columns += [scenario.title, f"{scenario.title} worst"] if scenario.worst else [scenario.title]
    rows = []
    for method in done.by_rank():
        cells = [METHODS.get(method).paper]
        for scenario in done.columns:
            cells.append(_ranked(done, scenario, method))
            cells += [_text(done.mean(scenario.name, method, "worst"))] if scenario.worst else []
        rank = done.mean_rank(method)
        rows.append([method, *cells, f"{rank:.1f}" if rank is not None else NONE])
    title = f"Accuracy in %, mean ± standard deviation over {len(done.plan.scale.seeds)} seeds (rank)"
    return Table(title, [*columns, "mean rank"], rows)


def _ranked(done: Benchmark, scenario: Scenario, method: str) -> str:
    accuracy, lacking = done.mean(scenario.name, method, "accuracy"), done.lacking(scenario.name, method)
    words = NONE if lacking is None or lacking.kind == "refused" else LACKING[lacking.kind]
    rank = done.ranks(scenario.name).get(method)
    return f"{accuracy.text() if accuracy else words}{f' ({rank:g})' if rank else ''}"


def _text(found: MeanStd | None) -> str:
    return found.text() if found else NONE


def _differences(done: Benchmark) -> Table:
    rows = []
    for method in (name for name in done.by_rank() if name != BASE):
        cells = [_interval(done.difference(scenario.name, method)) for scenario in done.columns]
        rows.append([method, *cells, _interval(done.overall(method))])
    title = f"Accuracy less {BASE}'s in points, paired by seed [95 % interval]; * where 0 is outside"
    return Table(title, ["method", *(scenario.title for scenario in done.columns), "overall"], rows)


def _interval(found: Interval | None) -> str:
    if found is None:
        return NONE
    if found.half is None:
        return f"{found.mean:+.1f}"
    low, high = found.mean - found.half, found.mean + found.half
    return f"{found.mean:+.1f} [{low:+.1f}, {high:+.1f}]{'*' if found.clear else ''}"


def _cost(done: Benchmark) -> Table:
    rows = []
    for method in done.by_rank():
        cells = []
        for scenario in done.columns:
            seconds, sent = (done.mean(scenario.name, method, name) for name in ("seconds", "megabytes"))
            cells.append(f"{seconds.mean:.1f} s, {sent.mean:.3g} MB" if seconds and sent else NONE)
        rows.append([method, *cells])
    title = "Seconds of training and megabytes in both directions, of one run"
    return Table(title, ["method", *(scenario.title for scenario in done.columns)], rows)


def _setting(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def _published(done: Benchmark) -> list[Table]:
    """For each column that a paper has rows of, these beside ours."""
    titles = {scenario.name: scenario.title for scenario in done.columns}
    found = []
    for paper in (each for each in published() if each.column in titles):
        means, worsts = paper.means(), paper.worsts()
        rows = [
            [method, *_beside(done.mean(paper.column, method, "accuracy"), means.get(method))]
            + (_beside(done.mean(paper.column, method, "worst"), worsts.get(method)) if worsts else [])
            for method in done.by_rank()
            if method in means
        ]
        heads = ["method", "ours", "paper", *(["ours, worst", "paper, worst"] if worsts else [])]
        title = f"{titles[paper.column]} beside {paper.source}. {paper.caution(done.plan.scale.name)}"
        if rows:
            found.append(Table(title, heads, rows))
    return found


def _beside(ours: MeanStd | None, theirs: Printed | None) -> list[str]:
    return [_text(ours), theirs.text if theirs else NONE]
