"""A reproduction as tables: under each row of ours the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.reporting.table import Table
from fedshift.reporting.units import clock
from fedshift.study.beside import NONE, Beside, PaperNumbers, differences_from_paper
from fedshift.study.execute import LACKING
from fedshift.study.papers import PaperRow
from fedshift.study.quantities import quantity
from fedshift.study.scenarios import Scenario
from fedshift.study.table_plan import TablePlan

IN_THE_PAPER = "  the paper"
MOST_POINTS = 12  # of a curve in its table; the other files have all


def tables(done: PaperNumbers) -> list[Table]:
    """A table for each scenario."""
    return [_table(done, scenario) for scenario in done.plan.known]


def _table(done: PaperNumbers, scenario: Scenario) -> Table:
    exhibit = done.plan.exhibit
    columns = _few(done.columns(scenario)) if exhibit.along else done.columns(scenario)
    rows = []
    for row in exhibit.rows:
        cells = {column: done.beside(scenario, row, column) for column in columns}
        paper = [each.paper.text if each.paper else NONE for each in cells.values()]
        name = f"{row.name}, the paper"
        if row.method:
            rows.append([row.name, *(_ours(done, scenario, row, column, cells[column]) for column in columns)])
            same = scenario.has_its_data(done.plan.scale.name)
            name = IN_THE_PAPER if same else f"{IN_THE_PAPER}, {scenario.title}"
        if any(each.paper for each in cells.values()):
            rows.append([name, *paper])
    units = dict.fromkeys(quantity(text).unit for text in exhibit.quantities(scenario).values())
    title = f"{exhibit.title} of {exhibit.paper}: {done.plan.title(scenario)}, in {' and '.join(units)}"
    return Table(title, [exhibit.across, *columns], rows)


def _few(points: Sequence[str]) -> list[str]:
    """So many points that a table has room for, the last among them."""
    apart = -(-len(points) // MOST_POINTS)
    return [*points[::-1][::apart]][::-1] if points else []


def _ours(done: PaperNumbers, scenario: Scenario, row: PaperRow, column: str, cell: Beside) -> str:
    if cell.ours is None:
        keys = ((scenario.name, row.name, point) for point in ("", column))
        why = next((found for key in keys if (found := done.findings.lacking.get(key))), None)
        return LACKING[why.kind] if why else NONE
    number = cell.ours.text(decimals=1 if abs(cell.ours.mean) >= 1 else 3)
    if cell.difference is None:
        return number
    return f"{number} ({cell.difference:+.1f}{'*' if cell.outside else ''})"


def notes(done: PaperNumbers) -> list[str]:
    """What a reader of the tables must know."""
    plan, findings = done.plan, done.findings
    words = [
        plan.exhibit.what,
        f"Scale {plan.scale.name}: {plan.scale.about}. {_over(plan)}",
        f"{findings.count}; they took {clock(findings.count.seconds)} on this machine.",
        f"Made by: {plan.command}",
        *plan.exhibit.says,
    ]
    if not any(row.published for row in plan.exhibit.rows):
        words.append("The paper draws this figure and prints no numbers of it, so there is none to compare with.")
    for scenario in plan.known:
        if scenario.open:
            words.append(f"{scenario.title}, open: {scenario.open}.")
        words += _changes(plan, scenario)
    for why in dict.fromkeys(row.why for row in plan.exhibit.rows if row.why):
        names = ", ".join(row.name for row in plan.exhibit.rows if row.why == why)
        words.append(f"{names}: not carried out here; {why}.")
    titles = {scenario.name: plan.title(scenario) for scenario in plan.known}
    words += [
        f"{titles[scenario]}, {row}{f', {point}' if point else ''}: {LACKING[why.kind]}. {why.reason}"
        for (scenario, row, point), why in findings.lacking.items()
    ]
    return [*words, *findings.left_out.values()]


def _over(plan: TablePlan) -> str:
    """What a cell of the tables is."""
    seeds = ", ".join(map(str, plan.scale.seeds))
    mean = f"Mean ± standard deviation over seeds {seeds}" if len(plan.scale.seeds) > 1 else f"Seed {seeds}"
    if not plan.scale.compared:
        return f"{mean}."
    return (
        f"{mean}; in brackets the difference to the paper's number, with * where that lies outside our mean ± 2 "
        "standard deviations."
    )


def _changes(plan: TablePlan, scenario: Scenario) -> list[str]:
    """The settings that differ from the paper's in words, together where they are of the same rows."""
    every = [row for row in plan.exhibit.carried_out if plan.exhibit.asks_for(scenario, row, "")]
    by_rows: dict[tuple[str, ...], list[str]] = {}
    for change, rows in differences_from_paper(plan, scenario).items():
        by_rows.setdefault(tuple(rows), []).append(change)
    found = []
    for names, changes in by_rows.items():
        methods = dict.fromkeys(row.method for row in every if row.name in names)
        whole = {row.name for row in every if row.method in methods} == {*names}
        of_methods = ", ".join(f"rows of {method}" for method in methods)
        where = "" if len(names) == len(every) else of_methods if whole else "; ".join(names)
        title = ", ".join(filter(None, [plan.title(scenario), where]))
        found.append(f"{title}, other than in the paper: {', '.join(changes)}.")
    return found
