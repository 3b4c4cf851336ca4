"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from fedshift.reporting.comparison_notes import MOST_ENVIRONMENTS, ROLES
from fedshift.reporting.intervals import Interval
from fedshift.reporting.results import MeanStd, Row
from fedshift.reporting.table import Table
from fedshift.runs.run import Run
from fedshift.runs.selection import by_environment, last

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_INLINE = 6  # test environments that the headline table has room for
MOST_ACROSS = 14  # columns of a table without standard deviations; half as many with them
MOST_CLIENTS, MOST_CLASSES = 100, 50  # whose training samples are shown by class
MOMENTS = (("last",), ("first scored round", "last"), ("first scored round", "half-way", "last"))
BASE = "fedavg"  # what others are compared with, if it is there
MODELS = {
    "global": "the global model",
    "own": "each client's own model",
    "unseen": "the model of a client that never trained",
}
Values = Callable[[Sequence[float]], float]


def tables(comparison: Comparison) -> list[Table]:
    """The headline table, scores by environment (of the tests where they are many, and of validation), then metrics."""
    apart = [] if len(comparison.environments("test")) <= MOST_INLINE else _by_environment(comparison, "test")
    by_environment = [*apart, *_by_environment(comparison, "validation")]
    return [headline(comparison), *by_environment, *metrics(comparison), *terms(comparison)]


def more_tables(comparison: Comparison) -> list[Table]:
    """Differences paired by seed, environments with their samples and intervals, and which model is scored on each."""
    return [*differences(comparison), *environments(comparison), *within(comparison), scored_models(comparison)]


def _over(comparison: Comparison) -> str:
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    return f"mean ± standard deviation over seeds {seeds}" if len(comparison.seeds) > 1 else f"seed {seeds}"


def headline(comparison: Comparison) -> Table:
    """Worst and mean over the test environments, each of them where they are few, and what selections give."""
    test, validation = comparison.label("test"), comparison.label("validation")
    environments = comparison.environments("test")
    inline = environments if len(environments) <= MOST_INLINE else []
    summarised = [f"{test} worst", f"{test} mean"] if len(environments) > 1 else []
    columns = ["method", *summarised, *(comparison.heading("test", name) for name in inline)]
    columns += [f"{validation} mean", f"{test} at best {validation}", f"{test} best (oracle)"]
    spreads = {row.label: row.spread() for row in comparison.rows()}
    if moves := any(spreads.values()):
        columns += [f"{test} sd over evaluations"]
    rows = []
    for row in comparison.rows():
        cells = [row.worst("test"), row.score("test")] if summarised else []
        cells += [row.score("test", environment=name) for name in inline]
        cells += [
            row.score("validation"),
            row.score("test", "source_validation"),
            row.score("test", "target_best"),
            *([spreads[row.label]] if moves else []),
        ]
        rows.append([row.title, *_percent(cells)])
    rows += [[name, *["-"] * (len(columns) - 1)] for name in comparison.lacking]
    return Table(
        f"{comparison.metric.heading} in %{comparison.metric.remark}, {comparison.moment}, {_over(comparison)}",
        columns,
        rows,
    )


def _by_environment(comparison: Comparison, role: str) -> list[Table]:
    """The score on each environment, in tables narrow enough to read; none of a single one, nor of too many."""
    environments = comparison.environments(role)
    if not 1 < len(environments) <= MOST_ENVIRONMENTS:
        return []
    across = MOST_ACROSS if len(comparison.seeds) == 1 else MOST_ACROSS // 2
    what = f"{comparison.metric.title} in % by environment"
    title = f"{comparison.label(role).capitalize()} {what}, {comparison.moment}, {_over(comparison)}"
    by_name = {name: partial(Row.score, role=role, environment=name) for name in environments}
    return _narrow(comparison, title, by_name, across)


def metrics(comparison: Comparison) -> list[Table]:
    """Every metric, the means over test environments, in tables narrow enough to read; none of accuracy alone."""
    over = f"mean over environments, {comparison.moment}, {_over(comparison)}"
    title = f"{comparison.label('test').capitalize()} metrics in %, {over}"
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


def terms(comparison: Comparison) -> list[Table]:
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
    return [*dict.fromkeys([0, (count - 1) // 2, count - 1])] if least > 2 else [0, count - 1][-least:]


def _share(share: float) -> str:
    return "<0.1" if 0 < share < 0.0005 else f"{100 * share:.1f}"


def _percent(cells: Sequence[MeanStd | None]) -> list[str]:
    return [cell.text(100) if cell else "" for cell in cells]


# Differences -----------------------------------------------------------------------------------------


def differences(comparison: Comparison) -> list[Table]:
    """How far every row is from FedAvg's, or from the first, paired by seed; none of a single row.

    Of each seed both rows count the environments that both have.
    """
    rows = comparison.rows()
    base = next((row for row in rows if row.runs[0].table["method"]["name"] == BASE), rows[0])
    if len(rows) < 2:
        return []
    ways: dict[str, Values] = {"mean": mean}
    if len(comparison.environments("test")) > 1:
        ways["worst"] = comparison.metric.worst
    return [_differences(comparison, base, what, of_seed) for what, of_seed in ways.items()]


def _differences(comparison: Comparison, base: Row, what: str, of_seed: Values) -> Table:
    metric, rows = comparison.metric, []
    for row in comparison.rows():
        if row is base or row.label == base.label:
            continue
        found = Interval.of([100 * value for value in paired_scores(row, base, of_seed).values()])
        rows.append([row.title, *_difference(found, metric.merit)])
    title = (
        f"{comparison.label('test').capitalize()} {what} {metric.title}{metric.remark} minus {base.label}'s, "
        f"{comparison.moment}, in points, paired by seed"
    )
    return Table(title, ["method", "difference", "95 % interval", "seeds", "in a word"], rows)


def paired_scores(row: Row, base: Row, of_seed: Values) -> dict[int, float]:
    """By seed, a row's score minus the base's, each over the test environments that both have in that seed."""
    ours, theirs = _scores(row), _scores(base)
    found = {}
    for seed in sorted(ours.keys() & theirs.keys()):
        if both := sorted(ours[seed].keys() & theirs[seed].keys()):
            found[seed] = of_seed([ours[seed][one] for one in both]) - of_seed([theirs[seed][one] for one in both])
    return found


def _scores(row: Row) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for run in row.runs:
        found.setdefault(run.table["seed"], {}).update(by_environment(last(run.records), "test", row.metric.name))
    return found


def _difference(found: Interval | None, merit: Callable[[float], float]) -> list[str]:
    if found is None:
        return ["", "", "0", "no seed in common"]
    cells = [f"{found.mean:+.1f}"]
    if found.half is None:
        return [*cells, "none of one seed", "1", "not clear"]
    word = "not clear" if not found.clear else "better" if merit(found.mean) > 0 else "worse"
    return [*cells, f"{found.mean - found.half:+.1f} to {found.mean + found.half:+.1f}", str(found.count), word]


# Environments ----------------------------------------------------------------------------------------


def environments(comparison: Comparison) -> list[Table]:
    """For each role every environment with its samples, their classes, and every row's score."""
    return [_of_role(comparison, role) for role in ROLES if len(comparison.environments(role)) <= MOST_ENVIRONMENTS]


def _of_role(comparison: Comparison, role: str) -> Table:
    rows, metric = comparison.rows(), comparison.metric
    cells = [
        [
            name,
            spanned(scored_samples(run, role, name) for run in comparison.runs),
            class_support(comparison.runs, role, name),
            *_percent([row.score(role, environment=name) for row in rows]),
        ]
        for name in comparison.environments(role)
    ]
    what = f"{comparison.label(role).capitalize()} {metric.title} in %{metric.remark}"
    title = f"{what}, {comparison.moment}, {_over(comparison)}"
    return Table(title, ["environment", "n", "n of a class", *(row.label for row in rows)], cells)


def within(comparison: Comparison) -> list[Table]:
    """How far each score is from certain for its environment's samples alone; none where no run has intervals."""
    rows, names = comparison.rows(), comparison.environments("test")
    cells = [[name, *(_within(row, name) for row in rows)] for name in names] if len(names) <= MOST_ENVIRONMENTS else []
    known = [each for each in cells if any(each[1:])]
    what = f"{comparison.label('test')} {comparison.metric.title} in % within an environment"
    over = ", mean of its ends over seeds" if len(comparison.seeds) > 1 else ""
    title = f"95 % interval of {what}, last round{over}"
    return [Table(title, ["environment", *(row.label for row in rows)], known)] if known else []


def _within(row: Row, environment: str) -> str:
    return " to ".join(f"{100 * end:.1f}" for end in ends_within(row, "test", row.metric.name, environment))


def ends_within(row: Row, role: str, metric: str, environment: str) -> list[float]:
    """The mean ends of the intervals of runs in each of which one model is scored on an environment; none of no run.

    Args:
        row: whose runs.
        role: "test" or "validation".
        metric: its name.
        environment: its name.
    """
    found = []
    for run in row.runs:
        its = [e for e in run.records[-1]["environments"] if (e["environment"], e["role"]) == (environment, role)]
        found += [ends for each in its if len(its) == 1 and (ends := each.get("intervals", {}).get(metric))]
    return [mean(ends) for ends in zip(*found, strict=True)]


def scored_samples(run: Run, role: str, environment: str | None = None) -> int:
    rows = run.records[-1]["environments"]
    its = (row for row in rows if row["role"] == role and environment in (None, row["environment"]))
    return sum(row.get("n") or 0 for row in its)


def class_support(runs: Sequence[Run], role: str, environment: str) -> str:
    """The least and the greatest number of samples of a class in an environment; empty where only sites know."""
    known = [run.data_facts.get("scored_classes", {}).get(role, {}).get(environment, ()) for run in runs]
    return spanned(count for counts in known for count in counts)


def class_counts(comparison: Comparison, role: str) -> Table | None:
    """How many samples of each class every environment of a role has; None where only sites know."""
    found: dict[str, list[str]] = {}
    classes: Sequence[str] = ()
    for run in comparison.runs:
        for name, counts in run.data_facts.get("scored_classes", {}).get(role, {}).items():
            classes = run.data_facts["classes"]
            found.setdefault(name, [f"{count:,}" for count in counts])
    if len(classes) > MOST_CLASSES:
        return None
    alike = {name: counts for name, counts in found.items() if len(counts) == len(classes)}
    title = f"Samples of each class, {comparison.label(role)}"
    return (
        Table(title, ["environment", *classes], [[name, *counts] for name, counts in alike.items()]) if alike else None
    )


def trained_classes(comparison: Comparison) -> Table | None:
    """How many training samples of each class every client of the first run has; None where they are very many."""
    facts = comparison.runs[0].data_facts
    counts, classes = facts.get("trained_classes", {}), facts.get("classes", ())
    if not 0 < len(counts) <= MOST_CLIENTS or len(classes) > MOST_CLASSES:
        return None
    name = comparison.runs[0].path.name
    cells = [[facts["clients"][id], *(f"{count:,}" for count in its)] for id, its in counts.items()]
    return Table(f"Training samples of each class, by client, of {name}", ["client", *classes], cells)


def spanned(numbers: Iterable[int]) -> str:
    """Numbers as their least and greatest; 0 is one that no client knows."""
    known = [number for number in numbers if number]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def scored_models(comparison: Comparison) -> Table:
    rows = [[row.label, *(_models(row, role) for role in ROLES)] for row in comparison.rows()]
    return Table("Models", ["method", *(comparison.label(role) for role in ROLES)], rows)


def _models(row: Row, role: str) -> str:
    scored = [each for run in row.runs for each in run.records[-1]["environments"] if each["role"] == role]
    kinds = dict.fromkeys(MODELS[each["model"]] for each in scored)
    several = max((each["models"] for each in scored), default=1)
    return ", or ".join(kinds) + (f" (the mean of {several} models)" if several > 1 else "")
