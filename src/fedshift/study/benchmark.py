"""The benchmark: methods that are tuned alike on a set of scenarios, run with other seeds, and ranked."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from fedshift.catalogue import built_in
from fedshift.errors import FedshiftError, needs
from fedshift.experiments import load_plugins
from fedshift.methods import METHODS
from fedshift.reporting.intervals import Interval, paired
from fedshift.reporting.table import Table, render
from fedshift.runs.events import Progress
from fedshift.study.papers import Exhibit, ExhibitRow, published
from fedshift.study.quantities import ranks
from fedshift.study.scenarios import Scenario, scale_of, scenarios, text_of
from fedshift.study.study_plan import StudyPlan
from fedshift.study.study_tables import LACKING, NONE, StudyResults
from fedshift.written import parse_toml, shown

OUT = "runs/benchmark"
BASE = "fedavg"  # with which rows are compared
ALL = "all"
LAST = float("-inf")  # the accuracy by which what diverged is ranked


@cache
def contents() -> dict[str, Any]:
    """What the benchmark's file says."""
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
    published = [name for name in METHODS if name not in left_out and built_in(METHODS.get(name))]
    found = [each for name in (names or [ALL]) for each in (published if name == ALL else [name])]
    for name in found:
        METHODS.get(name)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise FedshiftError(f"The method '{twice[0]}' is given twice; give each once ('{ALL}' has the published ones).")
    return found


def exhibit_of_methods(methods: Sequence[str], plugins: Sequence[str], known: Sequence[Scenario]) -> Exhibit:
    """The benchmark's table; a user's plugins are a part of the runs of their own methods alone."""
    its = [(name, [] if built_in(METHODS.get(name)) else [*plugins]) for name in methods]
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
        FedshiftError: a name is not known, ``data`` has no names, or a plugin cannot be imported.
    """
    with needs("benchmark", "The benchmark"):  # before anything runs
        import optuna  # noqa: F401
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
    return Benchmark.carried_out(plan, progress)


@dataclass(frozen=True, repr=False)
class Benchmark(StudyResults):
    """Methods on federations, as measured, accuracies in %; prints as its tables."""

    @property
    def columns(self) -> list[Scenario]:
        """The scenarios that have their data."""
        return [each for each in self.plan.scenarios if each.name not in self.left_out]

    @property
    def methods(self) -> list[str]:
        """The rows."""
        return [row.name for row in self.plan.rows]

    @property
    def failed(self) -> bool:
        """Whether a user's method failed somewhere."""
        return any(each.kind == "failed" for each in self.lacking.values())

    def ranks(self, scenario: str) -> dict[str, float]:
        """The rank of each method by its mean accuracy, 1 for the best; what diverged is last."""
        values: dict[str, float] = {}
        for method in self.methods:
            accuracy, lacking = self.mean(scenario, method, "accuracy"), self.lacking.get((scenario, method, ""))
            if accuracy is not None:
                values[method] = accuracy.mean
            elif lacking is not None and lacking.kind == "diverged":
                values[method] = LAST
        return ranks(values)

    def mean_ranks(self) -> dict[str, float | None]:
        """The mean of each method's ranks over the scenarios on which it can run; the lowest first, None last."""
        by_scenario = [self.ranks(scenario.name) for scenario in self.columns]
        found = {method: [rank[method] for rank in by_scenario if method in rank] for method in self.methods}
        means = {method: mean(its) if its else None for method, its in found.items()}
        return dict(sorted(means.items(), key=lambda item: (item[1] is None, item[1] or 0.0)))

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

    def tables(self) -> list[Table]:
        """Accuracy with ranks, differences to FedAvg, cost, and the papers' rows beside ours."""
        found = [self._accuracy()]
        if BASE in self.methods and len(self.methods) > 1:
            found.append(self._differences())
        return [*found, self._cost(), *self._published()]

    def _accuracy(self) -> Table:
        columns = ["method", "paper"]
        for scenario in self.columns:
            columns += [scenario.title, f"{scenario.title} worst"] if scenario.worst else [scenario.title]
        rows = []
        for method, rank in self.mean_ranks().items():
            cells = [METHODS.get(method).cited()]
            for scenario in self.columns:
                found, lacking = (
                    self.mean(scenario.name, method, "accuracy"),
                    self.lacking.get((scenario.name, method, "")),
                )
                words = NONE if lacking is None or lacking.kind == "refused" else LACKING[lacking.kind]
                its = self.ranks(scenario.name).get(method)
                cells.append(f"{found.text() if found else words}{f' ({its:g})' if its else ''}")
                cells += [self._text(scenario, method, "worst")] if scenario.worst else []
            rows.append([method, *cells, f"{rank:.1f}" if rank is not None else NONE])
        title = f"Accuracy in %, mean ± standard deviation over {len(self.plan.scale.seeds)} seeds (rank)"
        return Table(title, [*columns, "mean rank"], rows)

    def _text(self, scenario: Scenario, method: str, column: str) -> str:
        found = self.mean(scenario.name, method, column)
        return found.text() if found else NONE

    def _differences(self) -> Table:
        rows = [
            [
                method,
                *(_interval(self.difference(scenario.name, method)) for scenario in self.columns),
                _interval(self.overall(method)),
            ]
            for method in self.mean_ranks()
            if method != BASE
        ]
        title = f"Accuracy less {BASE}'s in points, paired by seed [95 % interval]; * where 0 is outside"
        return Table(title, ["method", *(scenario.title for scenario in self.columns), "overall"], rows)

    def _cost(self) -> Table:
        rows = []
        for method in self.mean_ranks():
            cells = []
            for scenario in self.columns:
                seconds, sent = (self.mean(scenario.name, method, name) for name in ("seconds", "megabytes"))
                cells.append(f"{seconds.mean:.1f} s, {sent.mean:.3g} MB" if seconds and sent else NONE)
            rows.append([method, *cells])
        title = "Seconds of training and megabytes in both directions, of one run"
        return Table(title, ["method", *(scenario.title for scenario in self.columns)], rows)

    def _published(self) -> list[Table]:
        """For each column that a paper has rows of, these beside ours."""
        columns, found = {scenario.name: scenario for scenario in self.columns}, []
        for paper in (each for each in published() if each.column in columns):
            scenario = columns[paper.column]
            heads, theirs = ["ours", "paper"], {"accuracy": paper.numbers(paper.mean)}
            if paper.worst:
                heads += ["ours, worst", "paper, worst"]
                theirs["worst"] = paper.numbers(paper.worst)
            rows = []
            for method in (name for name in self.mean_ranks() if name in theirs["accuracy"]):
                cells = []
                for column, its in theirs.items():
                    cells += [self._text(scenario, method, column), its[method].text if method in its else NONE]
                rows.append([method, *cells])
            title = f"{scenario.title} beside {paper.source}. {paper.caution(self.plan.scale.name)}"
            found += [Table(title, ["method", *heads], rows)] if rows else []
        return found

    def more_tables(self) -> list[Table]:
        """The settings of each cell, and of what search they are, which stand in the files alone."""
        rows = [
            [
                method,
                scenario.title,
                found.hold_out or NONE,
                ", ".join(
                    f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {shown(value)}"
                    for name, value in found.settings.items()
                ),
                f"{100 * found.value:.1f}",
                *map(str, (found.trials, found.pruned, found.failed, found.repeated)),
                ", ".join(map(str, found.seeds)),
                found.sampler,
            ]
            for method in self.methods
            for scenario in self.columns
            for found in self.chosen.get((scenario.name, method), ())
        ]
        counts = ["trials", "pruned", "failed", "repeated"]
        heads = ["method", "federation", "held out", "settings", "validation", *counts, "seeds", "sampler"]
        title = "Chosen settings, their validation accuracy in %, and how the trials they were chosen among ended"
        return [Table(title, heads, rows)] if rows else []

    def more_files(self) -> dict[str, str | bytes]:
        """The figure and the page."""
        from fedshift.study.figures import draw_ranks  # with matplotlib

        its = [
            (name, rank, self.overall(name) if name != BASE else None)
            for name, rank in self.mean_ranks().items()
            if rank is not None
        ]
        png = draw_ranks(its, BASE)
        page = render(
            "benchmark.html.jinja",
            title=f"Benchmark, scale {self.plan.scale.name}",
            tables=[*self.tables(), *self.more_tables()],
            notes=self.notes(),
            figure=b64encode(png).decode(),
            base=BASE,
        )
        return {"png": png, "html": page}


def _interval(found: Interval | None) -> str:
    if found is None:
        return NONE
    if found.half is None:
        return f"{found.mean:+.1f}"
    low, high = found.mean - found.half, found.mean + found.half
    return f"{found.mean:+.1f} [{low:+.1f}, {high:+.1f}]{'*' if found.clear else ''}"
