"""The tables of a benchmark, for a terminal, a page and Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift.benchmarking.columns import Column
from fedshift.benchmarking.published import published
from fedshift.benchmarking.rows import BASE
from fedshift.benchmarking.scores import Scores, sums
from fedshift.benchmarking.statistics import Interval
from fedshift.methods import METHODS
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.reproduction.exhibits import Printed
from fedshift.runs.cells import LACKING
from fedshift.settings.spec import shown

NONE = "-"


def tables(scores: Scores) -> list[Table]:
    """Accuracy with ranks, differences to FedAvg, cost, and the papers' rows beside ours."""
    found = [_accuracy(scores)]
    if BASE in scores.plan.methods and len(scores.plan.methods) > 1:
        found.append(_differences(scores))
    found.append(_cost(scores))
    return [*found, *_published(scores)]


def tables_and_settings(scores: Scores) -> list[Table]:
    """The tables, and what tuning chose, which is longer than they are."""
    return [*tables(scores), *_chosen(scores)]


def notes(scores: Scores) -> list[str]:
    """What a reader of the tables must know."""
    scale = scores.plan.scale
    tuned = ", ".join(map(str, scale.tuning_seeds))
    words = [
        f"Scale {scale.name}: {scale.about}. Every method was tuned on every column (each held-out domain apart) with "
        f"{scale.trials} trials, seed {tuned}, on validation data alone; the tables are of seeds "
        f"{', '.join(map(str, scale.seeds))}, on which nothing was chosen, and of the last round.",
        *(f"{column.title}: {column.score}." for column in scores.columns),
        "Mean rank: over the columns on which a method can run, so it is no comparison of methods with different "
        "columns. Equal means share a rank, and what diverged is last.",
        f"Differences to {BASE} are paired by seed, whose data and split are the same; intervals are Student's over "
        "seeds, 95 % each. 'overall' is the mean over the columns that both have: it is of these federations.",
    ]
    words += [
        f"{_title(scores, column)}, {method}: {LACKING[lacking.kind]}. {lacking.reason}"
        for (column, method), lacking in scores.outcome.lacking.items()
    ]
    return [*words, *scores.outcome.left_out.values()]


def _accuracy(scores: Scores) -> Table:
    ranks = {column.name: scores.ranks(column.name) for column in scores.columns}
    heads = [head for column in scores.columns for head in _heads(column)]
    rows = []
    for method in scores.by_rank():
        cells = [cell for column in scores.columns for cell in _cells(scores, column, method, ranks[column.name])]
        rank = scores.mean_rank(method)
        rows.append([method, METHODS.get(method).paper, *cells, f"{rank:.1f}" if rank is not None else NONE])
    title = f"Accuracy in %, mean ± standard deviation over {len(scores.plan.scale.seeds)} seeds (rank)"
    return Table(title, ["method", "paper", *heads, "mean rank"], rows)


def _heads(column: Column) -> list[str]:
    return [column.title, f"{column.title} worst"] if column.worst else [column.title]


def _cells(scores: Scores, column: Column, method: str, ranks: Mapping[str, float]) -> list[str]:
    accuracy, worst = scores.accuracy(column.name, method), scores.worst(column.name, method)
    lacking = scores.lacking(column.name, method)
    if accuracy is not None:
        cells = [f"{accuracy.percent()} ({ranks[method]:g})"]
    elif lacking is not None and lacking.kind != "refused":
        cells = [f"{LACKING[lacking.kind]} ({ranks[method]:g})" if method in ranks else LACKING[lacking.kind]]
    else:
        cells = [NONE]
    return [*cells, worst.percent() if worst else NONE] if column.worst else cells


def _differences(scores: Scores) -> Table:
    rows = []
    for method in (name for name in scores.by_rank() if name != BASE):
        cells = [_interval(scores.difference(column.name, method)) for column in scores.columns]
        rows.append([method, *cells, _interval(scores.overall(method))])
    title = f"Accuracy less {BASE}'s in points, paired by seed [95 % interval]; * where 0 is outside"
    return Table(title, ["method", *(column.title for column in scores.columns), "overall"], rows)


def _interval(found: Interval | None) -> str:
    if found is None:
        return NONE
    if found.half is None:
        return f"{100 * found.mean:+.1f}"
    low, high = 100 * (found.mean - found.half), 100 * (found.mean + found.half)
    return f"{100 * found.mean:+.1f} [{low:+.1f}, {high:+.1f}]{'*' if found.clear else ''}"


def _cost(scores: Scores) -> Table:
    rows = []
    for method in scores.by_rank():
        cells = []
        for column in scores.columns:
            there = scores.of(column.name, method)
            cells.append("{:.1f} s, {:.3g} MB".format(*sums(there)) if there else NONE)
        rows.append([method, *cells])
    title = "Seconds of training and megabytes in both directions, of one run"
    return Table(title, ["method", *(column.title for column in scores.columns)], rows)


def _chosen(scores: Scores) -> list[Table]:
    """The settings of each cell, and of what search they are; nothing where nothing was searched."""
    rows = [
        [
            method,
            column.title,
            found.hold_out or NONE,
            ", ".join(f"{name} = {_setting(value)}" for name, value in found.settings.items()),
            f"{100 * found.value:.1f}",
            str(found.trials),
            str(found.trials - found.pruned - found.failed),
            str(found.pruned),
            str(found.failed),
            str(found.repeated),
            ", ".join(map(str, found.seeds)),
            found.sampler,
        ]
        for method in scores.plan.methods
        for column in scores.columns
        for found in scores.outcome.chosen.get((column.name, method), ())
    ]
    counts = ["trials", "complete", "pruned", "failed", "repeated"]
    heads = ["method", "federation", "held out", "settings", "validation", *counts, "seeds", "sampler"]
    title = "Chosen settings, their validation accuracy in %, and how the trials they were chosen among ended"
    return [Table(title, heads, rows)] if rows else []


def _setting(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def _published(scores: Scores) -> list[Table]:
    """For each column that a paper has rows of, these beside ours."""
    titles = {column.name: column.title for column in scores.columns}
    found = []
    for paper in (each for each in published() if each.column in titles):
        means, worsts = paper.means(), paper.worsts()
        rows = [
            [method, *_beside(scores.accuracy(paper.column, method), means.get(method))]
            + (_beside(scores.worst(paper.column, method), worsts.get(method)) if worsts else [])
            for method in scores.by_rank()
            if method in means
        ]
        heads = ["method", "ours", "paper", *(["ours, worst", "paper, worst"] if worsts else [])]
        title = f"{titles[paper.column]} beside {paper.source}. {paper.caution(scores.plan.scale.name)}"
        if rows:
            found.append(Table(title, heads, rows))
    return found


def _beside(ours: MeanStd | None, theirs: Printed | None) -> list[str]:
    return [ours.percent() if ours else NONE, theirs.text if theirs else NONE]


def _title(scores: Scores, column: str) -> str:
    return next(each.title for each in scores.plan.columns if each.name == column)
