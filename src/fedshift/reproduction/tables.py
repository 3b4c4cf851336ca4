"""A reproduction as tables: under each row of ours the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedshift.reporting.results import MeanStd, flat
from fedshift.reporting.table import Table
from fedshift.reporting.units import clock
from fedshift.reproduction.exhibits import Row
from fedshift.reproduction.numbers import Beside, Numbers
from fedshift.reproduction.panels import AS_PRINTED, Panel, scale_of
from fedshift.reproduction.plan import Plan
from fedshift.reproduction.scores import score
from fedshift.runs.cells import LACKING
from fedshift.settings.spec import shown

NONE = "-"
IN_THE_PAPER = "  the paper"
MOST_POINTS = 12  # of a curve in its table; the other files have all
NOT_SAID = frozenset({"name", "seed", "run", "evaluate"})  # of settings in which scales differ


def tables(done: Numbers) -> list[Table]:
    """A table for each panel."""
    return [_panel(done, panel) for panel in done.panels]


def _panel(done: Numbers, panel: Panel) -> Table:
    exhibit = done.plan.exhibit
    columns = _few(done.columns(panel)) if exhibit.along else done.columns(panel)
    rows = []
    for row in exhibit.rows:
        cells = {column: done.beside(panel, row, column) for column in columns}
        ours = [_ours(done, panel, row, column, cells[column]) for column in columns]
        paper = [each.paper.text if each.paper else NONE for each in cells.values()]
        if row.method:
            rows.append([row.name, *ours])
            row_of_paper = (
                IN_THE_PAPER if panel.has_its_data(done.plan.scale.name) else f"{IN_THE_PAPER}, {panel.title}"
            )
        else:
            row_of_paper = f"{row.name}, the paper"
        if any(each.paper for each in cells.values()):
            rows.append([row_of_paper, *paper])
    units = dict.fromkeys(score(its).unit for its in exhibit.scores(panel).values())
    title = f"{exhibit.title} of {exhibit.paper}: {done.plan.title(panel)}, in {' and '.join(units)}"
    return Table(title, [exhibit.across, *columns], rows)


def unit_of(plan: Plan, panel: Panel, column: str) -> str:
    """The unit of a column, or of the points of a curve."""
    scores = plan.exhibit.scores(panel)
    return score(scores.get(column) or next(iter(scores.values()))).unit


def _few(points: Sequence[str]) -> list[str]:
    """So many points that a table has room for, the last among them."""
    apart = -(-len(points) // MOST_POINTS)
    return [*points[::-1][::apart]][::-1] if points else []


def _ours(done: Numbers, panel: Panel, row: Row, column: str, cell: Beside) -> str:
    if cell.ours is None:
        why = done.outcome.lacking.get((panel.name, row.name, "")) or done.outcome.lacking.get(
            (panel.name, row.name, column)
        )
        return LACKING[why.kind] if why else NONE
    if cell.difference is None:
        return number(cell.ours)
    return f"{number(cell.ours)} ({cell.difference:+.1f}{'*' if cell.outside else ''})"


def number(found: MeanStd) -> str:
    """A mean with its standard deviation."""
    decimals = 1 if abs(found.mean) >= 1 else 3
    spread = f" ± {found.std:.{decimals}f}" if found.std is not None else ""
    return f"{found.mean:.{decimals}f}{spread}"


def notes(done: Numbers) -> list[str]:
    """What a reader of the tables must know."""
    plan, outcome = done.plan, done.outcome
    words = [
        plan.exhibit.what,
        f"Scale {plan.scale.name}: {plan.scale.about}. {_over(plan)}",
        f"{outcome.count}; they took {clock(outcome.count.seconds)} on this machine.",
        f"Made by: {plan.command}",
        *plan.exhibit.says,
    ]
    if not any(row.published for row in plan.exhibit.rows):
        words.append("The paper draws this figure and prints no numbers of it, so there is none to compare with.")
    for panel in done.panels:
        if panel.open:
            words.append(f"{panel.title}, open: {panel.open}.")
        words += _changes(plan, panel)
    for why in dict.fromkeys(row.why for row in plan.exhibit.rows if row.why):
        words.append(
            f"{', '.join(row.name for row in plan.exhibit.rows if row.why == why)}: not carried out here; {why}."
        )
    titles = {panel.name: plan.title(panel) for panel in done.panels}
    words += [
        f"{titles[panel]}, {row}{f', {point}' if point else ''}: {LACKING[why.kind]}. {why.reason}"
        for (panel, row, point), why in outcome.lacking.items()
    ]
    return [*words, *outcome.left_out.values()]


def _over(plan: Plan) -> str:
    """What a cell of the tables is."""
    seeds = ", ".join(map(str, plan.scale.seeds))
    mean = f"Mean ± standard deviation over seeds {seeds}" if len(plan.scale.seeds) > 1 else f"Seed {seeds}"
    if not plan.scale.compared:
        return f"{mean}."
    return (
        f"{mean}; in brackets the difference to the paper's number, with * where that lies outside our mean ± 2 "
        "standard deviations."
    )


class Differs(NamedTuple):
    """A setting in which a scale differs from the paper's.

    Attributes:
        setting: by its dotted name.
        here: its value, as it is written.
        paper: the paper's.
        rows: where it does; empty: in all rows, as it is the federation's.
    """

    setting: str
    here: str
    paper: str
    rows: tuple[str, ...]


def beside_paper(plan: Plan, panel: Panel) -> list[Differs]:
    """The settings in which the runs of a panel differ from those at the paper's scale."""
    exhibit = plan.exhibit
    if plan.scale.name == AS_PRINTED or AS_PRINTED not in panel.sizes:
        return []
    ours, theirs = (replace(plan, scale=scale, data={}, run={}) for scale in (plan.scale, scale_of(AS_PRINTED)))
    rows = [row for row in exhibit.carried_out if exhibit.asks_for(panel, row, "")]
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        here, paper = (_settings(each, panel, row) for each in (ours, theirs))
        for name in sorted(here.keys() | paper.keys()):
            if (pair := (here.get(name, NONE), paper.get(name, NONE))) and pair[0] != pair[1]:
                found.setdefault((name, *pair), []).append(row.name)
    return [Differs(*key, () if len(where) == len(rows) else tuple(where)) for key, where in found.items()]


def _settings(plan: Plan, panel: Panel, row: Row) -> dict[str, str]:
    """The settings of a row's runs by dotted name, as they are written, but for those of the points."""
    of_points = {name for point in plan.exhibit.points(plan.scale.name).values() for name in point}
    table = flat({key: value for key, value in plan.first(panel, row).table().items() if key not in NOT_SAID})
    return {name: shown(value) for name, value in table.items() if name not in of_points}


def _changes(plan: Plan, panel: Panel) -> list[str]:
    """These settings in words, together where they are of the same rows."""
    by_rows: dict[tuple[str, ...], list[str]] = {}
    for each in beside_paper(plan, panel):
        by_rows.setdefault(each.rows, []).append(f"{each.setting} {each.here} ({each.paper})")
    return [
        f"{', '.join(filter(None, [plan.title(panel), _of_rows(plan, panel, rows)]))}, other than in the paper: "
        f"{', '.join(changes)}."
        for rows, changes in by_rows.items()
    ]


def _of_rows(plan: Plan, panel: Panel, names: tuple[str, ...]) -> str:
    """Rows by their methods, where they are all of a panel that have these."""
    rows = [row for row in plan.exhibit.carried_out if plan.exhibit.asks_for(panel, row, "")]
    methods = dict.fromkeys(row.method for row in rows if row.name in names)
    whole = [row.name for row in rows if row.method in methods]
    return ", ".join(f"rows of {method}" for method in methods) if {*whole} == {*names} else "; ".join(names)
