"""The tables of a comparison, for a terminal, a text and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from statistics import mean
from typing import Literal

import rich.box
import rich.table
from rich.console import Console, Group
from rich.markup import escape
from rich.text import Text

from fedshift.reporting.results import MOST_ENVIRONMENTS, MeanStd, Results
from fedshift.reporting.units import printable
from fedshift.runs.run import Run

MOST_INLINE = 6  # test environments that the headline table has room for
MOMENTS = (("last",), ("first scored round", "last"), ("first scored round", "half-way", "last"))
MOST_ACROSS = 14  # columns of a table without standard deviations; half as many with them


@dataclass(frozen=True)
class Table:
    """A table of strings; the first column labels the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def rich(self) -> Group:
        """For a terminal, under its title, which may be wider than the table."""
        table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
        for number, column in enumerate(self.columns):
            # Headings and labels may wrap; a number is never cut.
            width = max((len(row[number]) for row in self.rows), default=0) if number else None
            side: Literal["left", "right"] = "right" if number else "left"
            table.add_column(_cell(column), justify=side, overflow="fold", min_width=width)
        for row in self.rows:
            table.add_row(*map(_cell, row))
        return Group(Text(printable(self.title), style="table.title"), table)

    def markdown(self) -> str:
        """As Markdown, under its title."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return f"**{marked(self.title)}**\n\n" + "\n".join(f"| {' | '.join(map(marked, line))} |" for line in lines)


def _cell(text: str) -> str:
    return escape(printable(text))


def marked(text: str) -> str:
    """A text as Markdown shows it, in a table as well."""
    return printable(text).replace("|", "\\|").replace("*", "\\*")


def markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables and notes as Markdown."""
    blocks = [table.markdown() for table in tables]
    return "\n\n".join([*blocks, "\n".join(f"- {marked(note)}" for note in notes)]) + "\n"


def text(tables: Sequence[Table], notes: Sequence[str], width: int) -> str:
    """Tables and notes as plain text; of the notes every word stands in one line."""
    file = StringIO()
    # In a notebook rich would otherwise show the tables there and leave the text empty.
    console = Console(file=file, width=width, force_terminal=False, force_jupyter=False, color_system=None)
    for table in tables:
        console.print(table.rich())
    for note in notes:
        console.print(f"Note: {printable(note)}", markup=False, soft_wrap=True)
    return file.getvalue()


def tables(results: Results) -> list[Table]:
    """The headline table, scores by environment (of the tests where they are many, and of validation), then metrics."""
    seeds = ", ".join(str(seed) for seed in results.seeds)
    several = len(results.seeds) > 1
    over = f"mean ± standard deviation over seeds {seeds}" if several else f"seed {seeds}"
    apart = [] if len(results.environments("test")) <= MOST_INLINE else _by_environment(results, "test", over)
    by_environment = [*apart, *_by_environment(results, "validation", over)]
    return [_headline(results, over), *by_environment, *_metrics(results, over), *_terms(results)]


def _headline(results: Results, over: str) -> Table:
    """Worst and mean over the test environments, each of them where they are few, and what selections give."""
    test, validation = results.label("test"), results.label("validation")
    environments = results.environments("test")
    inline = environments if len(environments) <= MOST_INLINE else []
    summarised = [f"{test} worst", f"{test} mean"] if len(environments) > 1 else []
    columns = ["method", *summarised, *(results.heading("test", name) for name in inline)]
    columns += [f"{validation} mean", f"{test} at best {validation}", f"{test} best (oracle)"]
    rows = []
    for row in results.rows():
        cells = [row.worst("test"), row.score("test")] if summarised else []
        cells += [row.score("test", environment=name) for name in inline]
        cells += [
            row.score("validation"),
            row.score("test", "source_validation"),
            row.score("test", "target_best"),
        ]
        rows.append([row.label, *_percent(cells)])
    rows += [[name, *["-"] * (len(columns) - 1)] for name in results.lacking]
    return Table(f"{results.metric.heading} in %{results.metric.remark}, last round, {over}", columns, rows)


def _by_environment(results: Results, role: str, over: str) -> list[Table]:
    """The score on each environment, in tables narrow enough to read; none of a single one, nor of too many."""
    environments = results.environments(role)
    if not 1 < len(environments) <= MOST_ENVIRONMENTS:
        return []
    across = MOST_ACROSS if len(results.seeds) == 1 else MOST_ACROSS // 2
    what = f"{results.metric.title} in % by environment"
    title = f"{results.label(role).capitalize()} {what}, last round, {over}"
    return [_of_environments(results, role, title, group) for group in _groups(environments, across)]


def _of_environments(results: Results, role: str, title: str, environments: Sequence[str]) -> Table:
    rows = [
        [row.label, *_percent([row.score(role, environment=name) for name in environments])] for row in results.rows()
    ]
    return Table(title, ["method", *environments], rows)


def _metrics(results: Results, over: str) -> list[Table]:
    """Every metric, the means over test environments, in tables narrow enough to read; none of accuracy alone."""
    metrics, rows = results.metrics, results.rows()
    if len(metrics) == 1:
        return []
    titles = {metric.name: f"{metric.title}{metric.remark}" for metric in metrics}
    title = f"{results.label('test').capitalize()} metrics in %, mean over environments, last round, {over}"
    return [
        Table(
            title,
            ["method", *(titles[name] for name in group)],
            [[row.label, *_percent([row.score("test", metric=name) for name in group])] for row in rows],
        )
        for group in _groups([*titles], MOST_INLINE)
    ]


def _terms(results: Results) -> list[Table]:
    """What part of the clients' loss each term makes up, of the methods that have several; none if no method has."""
    rows = [[f"{row.label}: {name}", *cells] for row in results.rows() for name, cells in _shares(row.runs).items()]
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


def _groups(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """The names in as few groups of at most ``most`` as there can be, of about equal size."""
    count = -(-len(names) // most)
    size = -(-len(names) // count)
    return [names[start : start + size] for start in range(0, len(names), size)]


def _percent(cells: Sequence[MeanStd | None]) -> list[str]:
    return [cell.percent() if cell else "" for cell in cells]
