"""The benchmark: methods that are tuned the same on a set of scenarios, run with other seeds, and ranked."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from fedshift.core.metrics import ACCURACY
from fedshift.methods import METHODS
from fedshift.reporting.curves import Line, Panel
from fedshift.reporting.intervals import Interval, paired, t_quantile
from fedshift.reporting.results import Row
from fedshift.reporting.table import Table, render
from fedshift.runs.events import Progress
from fedshift.runs.find import find
from fedshift.runs.run import Run
from fedshift.runs.selection import mean_score
from fedshift.runs.shard import Shard
from fedshift.study import papers
from fedshift.study.benchmark_plan import AGAIN, BASE, plan_benchmark
from fedshift.study.quantities import ranks
from fedshift.study.records import CHOSEN, LACKING, Chosen
from fedshift.study.scenarios import Scenario
from fedshift.study.study_tables import NONE, StudyResults
from fedshift.written import shown

LAST = float("-inf")  # the accuracy by which what diverged is ranked
BEHIND = 15.0  # points of validation accuracy below FedAvg's, from which a method did not train
LEAST = 0.5  # points that other batches are taken to change at least: under a shortcut null rows are equal


def benchmark(
    scale: str = "smoke",
    methods: str | Sequence[str] | None = None,
    federations: str | Sequence[str] | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    out: str | Path | None = None,
    published: bool = False,
    progress: Progress | None = None,
    shard: str | None = None,
) -> Benchmark:
    """Run the published benchmark: methods on a set of federations, tuned the same, with ranks and differences.

    Finished work is not repeated: called again, it continues. The tables, a page and the figure are written into the
    scale's folder.

    Args:
        scale: "smoke", "short" or "paper".
        methods: the rows, a name or several; "all" stands for the published methods that come with the package, which
            are the default.
        federations: the columns, a name or several; by default all that the scale has.
        data: paths of data that cannot be fetched or generated, by data set: ``{"pacs": "pacs.parquet"}``.
        plugins: Python files that register methods, which are rows if ``methods`` names them.
        out: the folder; by default runs/benchmark.
        published: use the published numbers of cells that the package contains, and run the others only.
        progress: callback for the progress; by default a live display.
        shard: "3/16" shares the runs with 15 other processes in the same folder, on any machines.

    Raises:
        FedshiftError: a name is unknown, no column has its data, or runs cannot run for a reason other than their
            method, such as a full disk; finished work is kept, and no table is written.
    """
    plan = plan_benchmark(scale, methods, federations, data=data, plugins=plugins, out=out, published=published)
    return Benchmark.run(plan, progress, Shard.of(shard))


@dataclass(frozen=True, repr=False)
class Benchmark(StudyResults):
    """Measured accuracies of methods on federations, in %; prints as its tables."""

    @classmethod
    def published(cls) -> Benchmark:
        """The benchmark at scale short with the numbers that the package contains; nothing is run."""
        plan = plan_benchmark("short", published=True)
        records = plan.records.of([each.name for each in plan.scenarios], [row.name for row in plan.rows])
        return cls(plan, records.numbers, records.lacking)

    @property
    def columns(self) -> list[Scenario]:
        return [each for each in self.plan.scenarios if each.name not in self.excluded]

    @property
    def methods(self) -> list[str]:
        """The rows."""
        return [row.name for row in self.plan.rows]

    def label(self, method: str) -> str:
        """A row's name in tables."""
        (row,) = (each for each in self.plan.rows if each.name == method)
        return f"{method} (our form)" if METHODS.get(row.method).our_form else method

    @property
    def failed(self) -> bool:
        return any(each.kind == "failed" for each in self.lacking.values())

    def trained(self, scenario: str, method: str) -> bool:
        """Whether a method's validation accuracy is near FedAvg's, or above, where both are known."""
        ours, base = (self.mean(scenario, name, "validation") for name in (method, BASE))
        return ours is None or base is None or ours.mean > base.mean - BEHIND

    def ranks(self, scenario: str) -> dict[str, float]:
        """The rank of each method by its mean accuracy, 1 for the best.

        Diverged methods are last, untrained ones omitted.
        """
        values: dict[str, float] = {}
        for method in self.methods:
            accuracy, lacking = self.mean(scenario, method, "accuracy"), self.lacking.get((scenario, method, ""))
            if accuracy is not None and self.trained(scenario, method):
                values[method] = accuracy.mean
            elif lacking is not None and lacking.kind == "diverged":
                values[method] = LAST
        return ranks(values)

    def mean_ranks(self) -> dict[str, float | None]:
        """The mean of each method's ranks over the scenarios where it has a rank.

        Methods with most ranks come first, then by the lowest mean; None last.
        """
        by_scenario = [(scenario.weight, self.ranks(scenario.name)) for scenario in self.columns]
        means = {
            method: _weighted([(weight, rank[method]) for weight, rank in by_scenario if method in rank])
            for method in self.methods
        }
        count = {method: sum(method in rank for _, rank in by_scenario) for method in means}
        return dict(sorted(means.items(), key=lambda item: (-count[item[0]], item[1] or 0.0)))

    def differences(self, scenario: str, method: str) -> dict[int, float]:
        """By seed, a method's accuracy minus FedAvg's on the same split, in points.

        Empty if it is missing or did not train.
        """
        if not self.trained(scenario, method):
            return {}
        ours, base = (self.by_seed(scenario, name, "accuracy") for name in (method, BASE))
        return paired(ours, base)

    def difference(self, scenario: str, method: str) -> Interval | None:
        """The mean of these differences, with an interval over seeds that null rows have calibrated."""
        found = Interval.of([*self.differences(scenario, method).values()])
        return found and found.widened(self._chance(self.differences(scenario, row) for row in self.null_rows))

    def overall(self, method: str) -> Interval | None:
        """The mean difference to FedAvg over the scenarios that both have, with an interval as for a single scenario.

        Null rows calibrate it by their mean differences over the same scenarios. It is about these federations and
        does not show how far others would differ.
        """
        both = [each for each in self.columns if self.differences(each.name, method)]
        found = Interval.of([*self._over(both, method).values()])
        return found and found.widened(self._chance(self._over(both, row) for row in self.null_rows))

    def by_column(self) -> list[tuple[str, list[Interval | str]]]:
        """Each method's difference to FedAvg on every column, or a word why there is no difference."""
        return [
            (
                self.label(name),
                [self.difference(each.name, name) or self._reason_for_gap(each.name, name) for each in self.columns],
            )
            for name in self.mean_ranks()
        ]

    @property
    def null_rows(self) -> list[str]:
        return [row.name for row in self.plan.rows if row.method == AGAIN]

    def _over(self, scenarios: Iterable[Scenario], method: str) -> dict[int, float]:
        """By seed, the mean of a method's differences over those scenarios where it has some."""
        found = [
            (each.weight, differences) for each in scenarios if (differences := self.differences(each.name, method))
        ]
        seeds = set.intersection(*(set(differences) for _, differences in found)) if found else set()
        by_seed = {seed: _weighted([(weight, its[seed]) for weight, its in found]) for seed in sorted(seeds)}
        return {seed: value for seed, value in by_seed.items() if value is not None}

    @staticmethod
    def _chance(null: Iterable[Mapping[int, float]]) -> float:
        means = [fmean(its.values()) for its in null if its]
        return max(LEAST, t_quantile(len(means)) * sqrt(fmean(mean**2 for mean in means))) if means else LEAST

    def equal_rows(self) -> list[str]:
        """Which rows of a column are equal to the last digit, in words."""
        found = []
        for scenario in self.columns:
            rows: dict[tuple[tuple[int, float], ...], list[str]] = {}
            for name in self.methods:
                if by_seed := self.by_seed(scenario.name, name, "accuracy"):
                    rows.setdefault(tuple(sorted(by_seed.items())), []).append(name)
            equal = [names for names in rows.values() if len(names) > 1]
            found += [f"{scenario.title}: {', '.join(names)} are equal to the last digit." for names in equal]
        return found

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        scale = self.plan.scale
        words = [
            f"Scale {scale.name}: {scale.about}. Every method was tuned on every column (each held-out domain "
            f"separately) by one grid: {scale.rates} learning rates times at most {scale.choices} choices of its "
            f"first setting, by the mean validation accuracy over seeds {', '.join(map(str, scale.tuning_seeds))}; "
            f"the tables are of seeds {', '.join(map(str, scale.seeds))}, on which nothing was chosen, and of the "
            "mean of the last evaluations.",
            *(
                f"{each.title}: tuning seeds after the first are for the {each.finalists} best choices by the first."
                for each in self.columns
                if each.finalists and len(scale.tuning_seeds) > 1
            ),
            *(
                f"{each.title}: settings are chosen by leave-one-domain-out cross-validation over the domains that "
                "train."
                for each in self.columns
                if each.cross_validate
            ),
            *(f"{scenario.title}: {scenario.score}." for scenario in self.columns),
            f"'did not train': validation accuracy {BEHIND:g} points or more below {BASE}'s; such a cell has no rank "
            "and no difference.",
            "Mean rank: over the columns on which a method has a rank, so it does not compare methods with "
            "different columns: methods with most columns come first. Equal means share a rank, what diverged is last. "
            "Columns of the same data count once.",
            f"Differences to {BASE} are paired by seed, whose data and split are the same. An interval, 95 % each, is "
            f"Student's over seeds, widened by {self._widening()}: the root of the sum of both squares. 'overall' is "
            "the mean over the columns that both have: it is of these federations.",
        ]
        return [
            *words,
            *self._single_notes(),
            *self._without_notes(),
            *self.equal_rows(),
            *self.lacking_notes(),
        ]

    def _widening(self) -> str:
        """By what intervals over seeds are widened."""
        if not self.null_rows:
            return f"{LEAST:g} points; the chance that tuning adds is unknown without null rows (--method {AGAIN})"
        return (
            f"how far from 0 the null rows are on the same columns ('{AGAIN}': {BASE} with other batches, tuned as all "
            f"others), and by {LEAST:g} points at least"
        )

    def _single_notes(self) -> Iterator[str]:
        """Which rows end with a stage of one round, so that the mean of their last evaluations is of one."""
        single = [row.name for row in self.plan.rows if METHODS.get(row.method)().stages(2)[-1].rounds == 1]
        if single:
            yield f"{', '.join(single)}: the last stage has one round, so the score is of one evaluation."

    def _without_notes(self) -> Iterator[str]:
        """Which rows columns lack, by reason."""
        lacks: dict[str, dict[str, list[str]]] = {}
        for row in self.plan.rows:
            for scenario in self.columns:
                if why := row.without.get(scenario.name):
                    lacks.setdefault(why, {}).setdefault(row.name, []).append(scenario.title)
        for why, by_row in lacks.items():
            titles = dict.fromkeys(title for each in by_row.values() for title in each)
            yield f"{', '.join(by_row)}: no row of {', '.join(titles)}: {why}."

    def tables(self) -> list[Table]:
        """Accuracy with ranks, differences to FedAvg, its plateau, cost, and the papers' rows with ours."""
        found = [self._accuracy()]
        if BASE in self.methods and len(self.methods) > 1:
            found.append(self._differences())
        return [*found, *self._plateau(), self._cost(), *self._published()]

    def _accuracy(self) -> Table:
        columns = ["method", "paper"]
        for scenario in self.columns:
            columns += [scenario.title, f"{scenario.title} worst"] if scenario.worst else [scenario.title]
        cited = {row.name: METHODS.get(row.method).cited() for row in self.plan.rows}
        rows = []
        for method, rank in self.mean_ranks().items():
            cells = [cited[method]]
            for scenario in self.columns:
                cells.append(self._ranked(scenario.name, method))
                cells += [self._text(scenario, method, "worst")] if scenario.worst else []
            rows.append([self.label(method), *cells, f"{rank:.1f}" if rank is not None else NONE])
        title = f"Accuracy in %, mean ± standard deviation over {len(self.plan.scale.seeds)} seeds (rank)"
        return Table(title, [*columns, "mean rank"], rows)

    def _ranked(self, scenario: str, method: str) -> str:
        found, rank = self.mean(scenario, method, "accuracy"), self.ranks(scenario).get(method)
        lacking = self.lacking.get((scenario, method, ""))
        words = NONE if lacking is None or lacking.kind == "refused" else LACKING[lacking.kind]
        note = f" ({rank:g})" if rank else " (did not train)" if found else ""
        return f"{found.text() if found else words}{note}"

    def _reason_for_gap(self, scenario: str, method: str) -> str:
        lacking = self.lacking.get((scenario, method, ""))
        if lacking is not None:
            return NONE if lacking.kind == "refused" else LACKING[lacking.kind]
        if any(scenario in row.without for row in self.plan.rows if row.name == method):
            return NONE
        return "" if self.trained(scenario, method) else "did not train"

    def _plateau(self) -> list[Table]:
        found = [(each.title, self.mean(each.name, BASE, "late gain")) for each in self.columns]
        rows = [[title, gain.text(decimals=2)] for title, gain in found if gain]
        title = f"What {BASE} gained in the last third of the evaluations, in points"
        return [Table(title, ["federation", "gain"], rows)] if rows else []

    def _text(self, scenario: Scenario, method: str, column: str) -> str:
        found = self.mean(scenario.name, method, column)
        return found.text() if found else NONE

    def _differences(self) -> Table:
        rows = [
            [
                self.label(method),
                *(_interval(self.difference(scenario.name, method)) for scenario in self.columns),
                _interval(self.overall(method)),
            ]
            for method in self.mean_ranks()
            if method != BASE
        ]
        title = f"Accuracy minus {BASE}'s in points, paired by seed [95 % interval]; * where 0 is outside"
        return Table(title, ["method", *(scenario.title for scenario in self.columns), "overall"], rows)

    def _cost(self) -> Table:
        rows = []
        for method in self.mean_ranks():
            cells = []
            for scenario in self.columns:
                seconds, sent = (self.mean(scenario.name, method, name) for name in ("seconds", "megabytes"))
                cells.append(f"{seconds.mean:.1f} s, {sent.mean:.3g} MB" if seconds and sent else NONE)
            rows.append([self.label(method), *cells])
        title = "Seconds of training and megabytes in both directions, per run"
        return Table(title, ["method", *(scenario.title for scenario in self.columns)], rows)

    def _published(self) -> list[Table]:
        columns, found = {scenario.name: scenario for scenario in self.columns}, []
        for paper in (each for each in papers.published() if each.column in columns):
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
                rows.append([self.label(method), *cells])
            title = f"{scenario.title} compared with {paper.source}. {paper.caution(self.plan.scale.name)}"
            found += [Table(title, ["method", *heads], rows)] if rows else []
        return found

    @cached_property
    def choices(self) -> dict[tuple[str, str], Sequence[Chosen]]:
        ours = {
            cell: [
                Chosen(
                    each.hold_out or "",
                    ", ".join(
                        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {shown(value)}"
                        for name, value in each.settings.items()
                    ),
                    100 * each.value,
                )
                for each in found
            ]
            for cell, found in self.chosen.items()
        }
        known = self.plan.records.of([each.name for each in self.columns], self.methods)
        return {**known.chosen, **ours}

    def more_tables(self) -> list[Table]:
        """The settings of each cell, which only the files contain."""
        rows = [
            [self.label(method), scenario.title, choice.hold_out or NONE, choice.settings, f"{choice.validation:.1f}"]
            for method in self.methods
            for scenario in self.columns
            for choice in self.choices.get((scenario.name, method), ())
        ]
        heads = ["method", "federation", "held out", "settings", "validation"]
        return [Table("Chosen settings, and their validation accuracy in %", heads, rows)] if rows else []

    def measurements(self) -> list[dict[str, Any]]:
        empty = {"value": "", "unit": "", "paper": "", "scale": self.plan.scale.name, "note": ""}

        def line(scenario: str, row: str, column: str, **its: Any) -> dict[str, Any]:
            return {"scenario": scenario, "row": row, "column": column, "seed": "", **empty, **its}

        chosen = [
            line(*cell, CHOSEN, value=each.validation, unit=each.hold_out, note=each.settings)
            for cell, choices in self.choices.items()
            for each in choices
        ]
        lacking = [line(*key[:2], why.kind, note=why.reason) for key, why in self.lacking.items()]
        return [*({**each, "note": ""} for each in super().measurements()), *chosen, *lacking]

    def more_files(self) -> dict[str, str | bytes]:
        """The figures and the page."""
        from fedshift.study.figures import draw_curve, draw_differences  # with matplotlib

        curves = [*self._curves()]
        png = draw_differences(self.by_column(), [each.title for each in self.columns], BASE)
        page = render(
            "benchmark.html.jinja",
            title=f"Benchmark, scale {self.plan.scale.name}",
            tables=[*self.tables(), *self.more_tables()],
            notes=self.notes(),
            figure=b64encode(png).decode(),
            base=BASE,
        )
        return {"png": png, "html": page, **({"curves.png": draw_curve(curves)} if curves else {})}

    def _curves(self) -> Iterator[Panel]:
        """FedAvg's accuracy by round on every column that was run here."""
        for scenario in self.columns:
            folder = self.plan.runs / scenario.name
            runs = [run for run in find(folder, least=0) if run.table["method"]["name"] == BASE and run.finished]
            if runs:
                points = Row(BASE, runs).curve(_accuracy_by_round)
                yield Panel(scenario.title, "round", "accuracy in %", [Line(BASE, points)])


def _accuracy_by_round(run: Run) -> Iterator[tuple[float, float]]:
    for record in run.records:
        if (score := mean_score(record, "test", ACCURACY)) is not None:
            yield record["position"], 100 * score


def _weighted(values: Sequence[tuple[float, float]]) -> float | None:
    weight = sum(each for each, _ in values)
    return sum(each * value for each, value in values) / weight if values else None


def _interval(found: Interval | None) -> str:
    return f"{found}{'*' if found.clear else ''}" if found else NONE
