"""A reproduction as tables: under each row of ours the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.reporting.page import render
from fedshift.reporting.results import MeanStd, flat
from fedshift.reporting.table import Table, markdown, text
from fedshift.reporting.units import clock
from fedshift.reproduction.exhibits import Row
from fedshift.reproduction.panels import Panel
from fedshift.reproduction.plan import Plan
from fedshift.reproduction.reproduction import Beside, Reproduction
from fedshift.reproduction.scores import score
from fedshift.runs.cells import LACKING
from fedshift.settings.spec import shown

NONE = "-"
IN_THE_PAPER = "  the paper"
MOST_POINTS = 12  # of a curve in its table; the other files have all
WIDTH = 200
PAPER = "paper"
NO_SETTING = object()
NOT_SAID = frozenset({"name", "seed"})  # of settings in which scales differ


def tables(done: Reproduction) -> list[Table]:
    """A table for each panel."""
    return [_panel(done, panel) for panel in done.panels]


def _panel(done: Reproduction, panel: Panel) -> Table:
    exhibit = done.plan.exhibit
    columns = _few(done.columns(panel)) if exhibit.along else done.columns(panel)
    rows = []
    for row in exhibit.rows:
        cells = {column: done.beside(panel, row, column) for column in columns}
        ours = [_ours(done, panel, row, column, cells[column]) for column in columns]
        paper = [each.paper.text if each.paper else NONE for each in cells.values()]
        if row.method:
            rows.append([row.name, *ours])
            row_of_paper = IN_THE_PAPER
        else:
            row_of_paper = f"{row.name}, the paper"
        if any(each.paper for each in cells.values()):
            rows.append([row_of_paper, *paper])
    units = dict.fromkeys(score(its).unit for its in exhibit.scores(panel).values())
    title = f"{exhibit.title} of {exhibit.paper}: {panel.title}, in {' and '.join(units)}"
    return Table(title, [_along(done.plan), *columns], rows)


def _along(plan: Plan) -> str:
    """What the columns are, over the first."""
    return plan.exhibit.along if isinstance(plan.exhibit.along, str) else ""


def _few(points: Sequence[str]) -> list[str]:
    """So many points that a table has room for, the last among them."""
    apart = -(-len(points) // MOST_POINTS)
    return [*points[::-1][::apart]][::-1] if points else []


def _ours(done: Reproduction, panel: Panel, row: Row, column: str, cell: Beside) -> str:
    if cell.ours is None:
        why = done.outcome.lacking.get((panel.name, row.name, "")) or done.outcome.lacking.get(
            (panel.name, row.name, column)
        )
        return LACKING[why.kind] if why else NONE
    if cell.difference is None or not done.plan.scale.compared:
        return number(cell.ours)
    return f"{number(cell.ours)} ({cell.difference:+.1f}{'*' if cell.outside else ''})"


def number(found: MeanStd) -> str:
    """A mean with its standard deviation."""
    decimals = 1 if abs(found.mean) >= 1 else 3
    spread = f" ± {found.std:.{decimals}f}" if found.std is not None else ""
    return f"{found.mean:.{decimals}f}{spread}"


def notes(done: Reproduction) -> list[str]:
    """What a reader of the tables must know."""
    plan, outcome = done.plan, done.outcome
    words = [
        plan.exhibit.what,
        f"Scale {plan.scale.name}: {plan.scale.about}. {_over(plan)}",
        f"{outcome.finished} of {outcome.runs} runs are finished; they took {clock(outcome.seconds)} on this machine.",
        f"Made by: {plan.command}",
        *plan.exhibit.says,
    ]
    if plan.exhibit.kind == "curve" and not any(row.published for row in plan.exhibit.rows):
        words.append("The paper draws this figure and prints no numbers of it, so there is none to compare with.")
    for panel in done.panels:
        if panel.open:
            words.append(f"{panel.title}, open: {panel.open}.")
        if changes := beside_paper(plan, panel):
            words.append(f"{panel.title}, other than in the paper: {changes}.")
    for why in dict.fromkeys(row.why for row in plan.exhibit.rows if row.why):
        words.append(
            f"{', '.join(row.name for row in plan.exhibit.rows if row.why == why)}: not carried out here; {why}."
        )
    words += [
        f"{panel}, {row}{f', {point}' if point else ''}: {LACKING[why.kind]}. {why.reason}"
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


def beside_paper(plan: Plan, panel: Panel) -> str:
    """The settings of the federation in which a scale differs from the paper's, each with the paper's value."""
    if plan.scale.name == PAPER or PAPER not in panel.sizes:
        return ""
    ours, theirs = (_settled(plan, panel, scale) for scale in (plan.scale.name, PAPER))
    return ", ".join(
        f"{name} {shown(ours[name]) if name in ours else NONE} ({shown(theirs[name]) if name in theirs else NONE})"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, NO_SETTING) != theirs.get(name, NO_SETTING) and name not in NOT_SAID
    )


def _settled(plan: Plan, panel: Panel, scale: str) -> dict[str, Any]:
    """A panel's settings at a scale by dotted name, but for the method's and how it is run."""
    size = panel.sizes[scale]
    tables: Mapping[str, Any] = {
        name: value for name, value in size.experiment.items() if name not in ("method", "run", "search", "evaluate")
    }
    changed = {**flat(dict(tables)), **size.settings, **plan.exhibit.own(scale)}
    return {name: value for name, value in changed.items() if not name.startswith(("method.", "run.", "evaluate."))}


def as_markdown(done: Reproduction) -> str:
    """The tables and notes as Markdown."""
    return markdown(tables(done), notes(done))


def as_text(done: Reproduction) -> str:
    """The tables and notes as plain text."""
    return text(tables(done), notes(done), WIDTH)


def as_html(done: Reproduction) -> str:
    """The tables and notes as HTML, for a notebook."""
    return render("tables.html.jinja", tables=tables(done), notes=notes(done))
