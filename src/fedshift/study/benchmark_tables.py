"""The tables of a benchmark, for a terminal, a page and Markdown."""

from __future__ import annotations

from fedshift.methods import METHODS
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.settings.spec import shown
from fedshift.study.benchmark_plan import BASE
from fedshift.study.execute import LACKING
from fedshift.study.papers import Printed, published
from fedshift.study.ranking import Ranking
from fedshift.study.scenarios import Scenario
from fedshift.study.statistics import Interval

NONE = "-"


def tables(done: Ranking) -> list[Table]:
    """Accuracy with ranks, differences to FedAvg, cost, and the papers' rows beside ours."""
    found = [_accuracy(done)]
    if BASE in done.plan.methods and len(done.plan.methods) > 1:
        found.append(_differences(done))
    return [*found, _cost(done), *_published(done)]


def notes(done: Ranking) -> list[str]:
    """What a reader of the tables must know."""
    scale = done.plan.scale
    tuned = ", ".join(map(str, scale.tuning_seeds))
    titles = {scenario.name: scenario.title for scenario in done.plan.scenarios}
    words = [
        f"Scale {scale.name}: {scale.about}. Every method was tuned on every column (each held-out domain apart) with "
        f"{scale.trials} trials, seed {tuned}, on validation data alone; the tables are of seeds "
        f"{', '.join(map(str, scale.seeds))}, on which nothing was chosen, and of the last round.",
        *(f"{scenario.title}: {scenario.score}." for scenario in done.columns),
        "Mean rank: over the columns on which a method can run, so it is no comparison of methods with different "
        "columns. Equal means share a rank, and what diverged is last.",
        f"Differences to {BASE} are paired by seed, whose data and split are the same; intervals are Student's over "
        "seeds, 95 % each. 'overall' is the mean over the columns that both have: it is of these federations.",
    ]
    words += [
        f"{titles[scenario]}, {method}: {LACKING[lacking.kind]}. {lacking.reason}"
        for (scenario, method, _), lacking in done.findings.lacking.items()
    ]
    return [*words, *done.findings.left_out.values()]


def _accuracy(done: Ranking) -> Table:
    heads = [head for scenario in done.columns for head in _heads(scenario)]
    rows = []
    for method in done.by_rank():
        cells = [cell for scenario in done.columns for cell in _cells(done, scenario, method)]
        rank = done.mean_rank(method)
        rows.append([method, METHODS.get(method).paper, *cells, f"{rank:.1f}" if rank is not None else NONE])
    title = f"Accuracy in %, mean ± standard deviation over {len(done.plan.scale.seeds)} seeds (rank)"
    return Table(title, ["method", "paper", *heads, "mean rank"], rows)


def _heads(scenario: Scenario) -> list[str]:
    return [scenario.title, f"{scenario.title} worst"] if scenario.worst else [scenario.title]


def _cells(done: Ranking, scenario: Scenario, method: str) -> list[str]:
    accuracy, ranks = done.mean(scenario.name, method, "accuracy"), done.ranks(scenario.name)
    lacking = done.lacking(scenario.name, method)
    rank = f" ({ranks[method]:g})" if method in ranks else ""
    words = NONE if lacking is None or lacking.kind == "refused" else LACKING[lacking.kind]
    cells = [f"{accuracy.text() if accuracy else words}{rank}"]
    return [*cells, _text(done.mean(scenario.name, method, "worst"))] if scenario.worst else cells


def _text(found: MeanStd | None) -> str:
    return found.text() if found else NONE


def _differences(done: Ranking) -> Table:
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


def _cost(done: Ranking) -> Table:
    rows = []
    for method in done.by_rank():
        cells = []
        for scenario in done.columns:
            seconds, sent = (done.mean(scenario.name, method, name) for name in ("seconds", "megabytes"))
            cells.append(f"{seconds.mean:.1f} s, {sent.mean:.3g} MB" if seconds and sent else NONE)
        rows.append([method, *cells])
    title = "Seconds of training and megabytes in both directions, of one run"
    return Table(title, ["method", *(scenario.title for scenario in done.columns)], rows)


def chosen_settings(done: Ranking) -> list[Table]:
    """The settings of each cell, and of what search they are; nothing where nothing was searched."""
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
        for method in done.plan.methods
        for scenario in done.columns
        for found in done.chosen.get((scenario.name, method), ())
    ]
    counts = ["trials", "pruned", "failed", "repeated"]
    heads = ["method", "federation", "held out", "settings", "validation", *counts, "seeds", "sampler"]
    title = "Chosen settings, their validation accuracy in %, and how the trials they were chosen among ended"
    return [Table(title, heads, rows)] if rows else []


def _setting(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def _published(done: Ranking) -> list[Table]:
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
