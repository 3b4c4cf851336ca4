"""The tables of a comparison, and what their reader must know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from fedshift.core.metrics import Metric
from fedshift.reporting.results import MeanStd, Row
from fedshift.reporting.table import Table
from fedshift.runs.run import Run
from fedshift.runs.selection import endings, mean_score, selects, value_of

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_INLINE = 6  # test environments that the headline table has room for
MOST_ENVIRONMENTS = 48  # environments of a role that are shown one by one
MOST_ACROSS = 14  # columns of a table without standard deviations; half as many with them
MOST_NAMED = 4  # environments, or metrics, that a note names
MOMENTS = (("last",), ("first scored round", "last"), ("first scored round", "half-way", "last"))
ROLES = ("test", "validation")


def tables(comparison: Comparison) -> list[Table]:
    """The headline table, scores by environment (of the tests where they are many, and of validation), then metrics."""
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    several = len(comparison.seeds) > 1
    over = f"mean ± standard deviation over seeds {seeds}" if several else f"seed {seeds}"
    apart = [] if len(comparison.environments("test")) <= MOST_INLINE else _by_environment(comparison, "test", over)
    by_environment = [*apart, *_by_environment(comparison, "validation", over)]
    return [_headline(comparison, over), *by_environment, *_metrics(comparison, over), *_terms(comparison)]


def _headline(comparison: Comparison, over: str) -> Table:
    """Worst and mean over the test environments, each of them where they are few, and what selections give."""
    test, validation = comparison.label("test"), comparison.label("validation")
    environments = comparison.environments("test")
    inline = environments if len(environments) <= MOST_INLINE else []
    summarised = [f"{test} worst", f"{test} mean"] if len(environments) > 1 else []
    columns = ["method", *summarised, *(comparison.heading("test", name) for name in inline)]
    columns += [f"{validation} mean", f"{test} at best {validation}", f"{test} best (oracle)"]
    rows = []
    for row in comparison.rows():
        cells = [row.worst("test"), row.score("test")] if summarised else []
        cells += [row.score("test", environment=name) for name in inline]
        cells += [
            row.score("validation"),
            row.score("test", "source_validation"),
            row.score("test", "target_best"),
        ]
        rows.append([row.label, *_percent(cells)])
    rows += [[name, *["-"] * (len(columns) - 1)] for name in comparison.lacking]
    return Table(f"{comparison.metric.heading} in %{comparison.metric.remark}, last round, {over}", columns, rows)


def _by_environment(comparison: Comparison, role: str, over: str) -> list[Table]:
    """The score on each environment, in tables narrow enough to read; none of a single one, nor of too many."""
    environments = comparison.environments(role)
    if not 1 < len(environments) <= MOST_ENVIRONMENTS:
        return []
    across = MOST_ACROSS if len(comparison.seeds) == 1 else MOST_ACROSS // 2
    what = f"{comparison.metric.title} in % by environment"
    title = f"{comparison.label(role).capitalize()} {what}, last round, {over}"
    by_name = {name: partial(Row.score, role=role, environment=name) for name in environments}
    return _narrow(comparison, title, by_name, across)


def _metrics(comparison: Comparison, over: str) -> list[Table]:
    """Every metric, the means over test environments, in tables narrow enough to read; none of accuracy alone."""
    title = f"{comparison.label('test').capitalize()} metrics in %, mean over environments, last round, {over}"
    by_title = {f"{m.title}{m.remark}": partial(Row.score, role="test", metric=m.name) for m in comparison.metrics}
    return _narrow(comparison, title, by_title, MOST_INLINE) if len(by_title) > 1 else []


def _narrow(
    comparison: Comparison, title: str, columns: Mapping[str, Callable[[Row], MeanStd | None]], most: int
) -> list[Table]:
    """The columns in as few tables of at most ``most`` of them as there can be, of about equal size."""
    names, rows = [*columns], comparison.rows()
    size = -(-len(names) // -(-len(names) // most))
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    return [
        Table(
            title, ["method", *group], [[row.label, *_percent([columns[name](row) for name in group])] for row in rows]
        )
        for group in groups
    ]


def _terms(comparison: Comparison) -> list[Table]:
    """What part of the clients' loss each term makes up, of the methods that have several; none if no method has."""
    rows = [[f"{row.label}: {name}", *cells] for row in comparison.rows() for name, cells in _shares(row.runs).items()]
    title = "What part of the clients' loss each term makes up, in %"
    most = max((len(cells) for _, *cells in rows), default=0)  # a run may have fewer evaluations than another
    padded = [[name, *cells[:-1], *[""] * (most - len(cells)), cells[-1]] for name, *cells in rows]
    return [Table(title, ["method: term", *MOMENTS[most - 1]], padded)] if rows else []


def _shares(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Each loss term's share in % at three evaluations or those there are, the mean over runs, by term as declared.

    Empty of methods with a single term.
    """
    by_run = [[*run.shares.values()] for run in runs]
    least = min(map(len, by_run))
    moments = [[found[at] for at in _moments(len(found), least)] for found in by_run]
    names = dict.fromkeys(name for found in moments for shares in found for name in shares)
    if len(names) < 2:
        return {}
    return {
        name: [_share(mean(shares.get(name, 0.0) for shares in at)) for at in zip(*moments, strict=True)]
        for name in names
    }


def _moments(count: int, least: int) -> list[int]:
    """Which of so many evaluations are shown: the first, the middle and the last, where ``least`` are there."""
    return [*dict.fromkeys([0, (count - 1) // 2, count - 1])] if least > 2 else [0, count - 1][-least:]


def _share(share: float) -> str:
    """In %, to a tenth, so that columns can be compared."""
    return "<0.1" if 0 < share < 0.0005 else f"{100 * share:.1f}"


def _percent(cells: Sequence[MeanStd | None]) -> list[str]:
    return [cell.text(100) if cell else "" for cell in cells]


# Notes -----------------------------------------------------------------------------------------------


def notes(comparison: Comparison) -> list[str]:
    """What a reader of the tables must know, once each; unfinished runs among it."""
    found = [*(f"{name}: {reason}" for name, reason in comparison.lacking.items()), *comparison.missing]
    found += [note for run in comparison.runs for note in run.notes]
    return [*dict.fromkeys([*found, *_of_runs(comparison), *_of_metrics(comparison), *_of_many(comparison)])]


def _of_runs(comparison: Comparison) -> Iterator[str]:
    runs = comparison.runs
    for run in (each for each in runs if not each.finished):
        last, rounds = run.records[-1], run.table["train"]["rounds"]
        yield (
            f"{run.path.name} is not finished: it was last scored after round {last['round']} of its "
            f"stage '{last['stage']}' (train.rounds = {rounds})."
        )
    for row in comparison.rows():
        if lacking := sorted(_cases(runs) - _cases(row.runs)):
            words = (f"seed {seed}" + (f" with {domain} held out" if domain else "") for seed, domain in lacking)
            yield f"{row.label} has no run for {', '.join(words)}; its means are over fewer runs than others."
    early = [found for run in runs if (found := endings(run.records))]
    if len(runs) == 1:
        yield from (f"The stage '{stage}' ended early {why}." for found in early for stage, why in found.items())
    elif early:
        yield (
            f"{len(early)} of {len(runs)} runs ended a stage early, as train.patience asks; their records say "
            "where and why."
        )
    if missing := sum(len(record.get("missing", ())) for run in runs for record in run.records):
        yield f"{missing} answers of clients are missing from rounds; records.jsonl says whose, and why."
    if any(record.get("only_in_simulation") for run in runs for record in run.records):
        yield (
            "The model of a client that never trained is made from what other clients keep, which only a "
            "simulation can see."
        )
    if any(row["models"] > 1 for run in runs for row in run.records[-1]["environments"]):
        yield "A domain that no client has seen is scored with each client's own model; the mean is shown."


def _cases(runs: Sequence[Run]) -> set[tuple[int, str]]:
    """Which seeds and held-out domains were run."""
    return {(run.table["seed"], str(run.table["protocol"].get("hold_out", ""))) for run in runs}


def _of_metrics(comparison: Comparison) -> Iterator[str]:
    """By what runs select where that is not the same, and which means leave environments out."""
    selecting = dict.fromkeys(selects(run.records[-1]).title for run in comparison.runs)
    if len(selecting) > 1:
        yield f"The runs select by different metrics ({', '.join(selecting)}); {comparison.metric.title} is shown."
    for metric in dict.fromkeys(selects(run.records[-1]) for run in comparison.runs if _chooses_nothing(run)):
        yield (
            f"{metric.heading} is undefined on every validation environment ({metric.lacks}), so no round is "
            "chosen by it: the last one stands in its place."
        )
    for role in ROLES:
        lacking: dict[tuple[str, ...], list[Metric]] = {}
        for metric in comparison.metrics:
            lacking.setdefault(_without(comparison, role, metric), []).append(metric)
        lacking.pop((), None)
        for places, metrics in lacking.items():
            named = ", ".join(places[:MOST_NAMED]) + ", ..." * (len(places) > MOST_NAMED)
            why = [f"{metric.title} ({metric.lacks})" for metric in metrics]
            more = f" and {len(why) - MOST_NAMED} more" if len(why) > MOST_NAMED else ""
            yield (
                f"Means leave out {len(places)} of {len(comparison.environments(role))} {role} environments ({named}) "
                f"where a metric is undefined: {', '.join(why[:MOST_NAMED])}{more}."
            )


def _without(comparison: Comparison, role: str, metric: Metric) -> tuple[str, ...]:
    """The environments of a role on which a metric is undefined for some model or all, at the last round."""
    rows = (row for run in comparison.runs for row in run.records[-1]["environments"] if row["role"] == role)
    return tuple(dict.fromkeys(row["environment"] for row in rows if value_of(row, metric.name) is None))


def _chooses_nothing(run: Run) -> bool:
    """Whether a run has validation environments, and what selects is defined on none of them in the last stage."""
    of_stage = [record for record in run.records if record["stage"] == run.records[-1]["stage"]]
    validated = any(row["role"] == "validation" for record in of_stage for row in record["environments"])
    return validated and all(mean_score(record, "validation") is None for record in of_stage)


def _of_many(comparison: Comparison) -> Iterator[str]:
    for role in ROLES:
        if (count := len(comparison.environments(role))) > MOST_ENVIRONMENTS:
            yield f"The {count} {role} environments are not shown one by one; records.jsonl holds them."
