"""The tables of a comparison, for a terminal, a text and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import rich.box
import rich.table
from rich.console import Console
from rich.markup import escape

from fedshift.reporting.results import Measured, Results


@dataclass(frozen=True)
class Table:
    """A table of strings; the first column labels the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def rich(self) -> rich.table.Table:
        """For a terminal."""
        table = rich.table.Table(title=escape(self.title), title_justify="left", box=rich.box.SIMPLE_HEAD)
        for number, column in enumerate(self.columns):
            # Headings and labels may wrap; a number is never cut.
            width = max((len(row[number]) for row in self.rows), default=0) if number else None
            table.add_column(escape(column), justify="right" if number else "left", overflow="fold", min_width=width)
        for row in self.rows:
            table.add_row(*(escape(cell) for cell in row))
        return table


def tables(results: Results) -> list[Table]:
    """The headline table, and accuracy on validation environments by domain."""
    seeds = ", ".join(str(seed) for seed in results.seeds)
    several = len(results.seeds) > 1
    over = f"mean ± standard deviation over seeds {seeds}" if several else f"seed {seeds}"
    return [_headline(results, over), _by_domain(results, over)]


def _headline(results: Results, over: str) -> Table:
    test, validation = results.label("test"), results.label("validation")
    environments = results.environments("test")
    columns = ["method", *(f"{test} {name}" for name in environments)]
    if len(environments) > 1:
        columns.append(f"{test} mean")
    columns += [f"{validation} mean", f"{test} at best {validation}", f"{test} best (oracle)"]
    rows = []
    for row in results.rows():
        cells = [row.accuracy("test", environment=name) for name in environments]
        if len(environments) > 1:
            cells.append(row.accuracy("test"))
        cells += [
            row.accuracy("validation"),
            row.accuracy("test", "source_validation"),
            row.accuracy("test", "target_best"),
        ]
        rows.append([row.label, *_percent(cells)])
    return Table(f"Accuracy in %, last round, {over}", columns, rows)


def _by_domain(results: Results, over: str) -> Table:
    environments = results.environments("validation")
    rows = [
        [row.label, *_percent([row.accuracy("validation", environment=name) for name in environments])]
        for row in results.rows()
    ]
    title = f"{results.label('validation').capitalize()} accuracy in % by domain, last round, {over}"
    return Table(title, ["method", *environments], rows)


def _percent(cells: Sequence[Measured | None]) -> list[str]:
    return [cell.percent() if cell else "" for cell in cells]


def as_text(results: Results, width: int = 120) -> str:
    """The tables and notes as plain text."""
    console = Console(file=StringIO(), width=width, force_terminal=False, color_system=None)
    for table in tables(results):
        console.print(table.rich())
    for note in results.notes:
        console.print(f"Note: {note}", markup=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO given above
    return text
