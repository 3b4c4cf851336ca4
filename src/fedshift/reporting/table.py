"""Tables of strings with notes: in a terminal, a text, a notebook, Markdown and a page."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import rich.box
import rich.table
from rich.console import Console, Group
from rich.markup import escape
from rich.text import Text

from fedshift.errors import FedshiftError, needs
from fedshift.files import make_folder, write
from fedshift.runs.schema import Record
from fedshift.written import bytes_text, printable

if TYPE_CHECKING:
    import pandas as pd

LONGEST_WORD = 24  # letters of a label that are not cut


@dataclass(frozen=True)
class Table:
    """A table of strings; the first column labels the rows."""

    title: str  # what it shows
    columns: list[str]  # headings
    rows: list[list[str]]  # the cells
    # the number of the column whose cells may wrap; up to it, columns are no numbers and stand on the left
    words: int = 0

    def rich(self) -> Group:
        """For a terminal, under its title, which may be wider than the table."""
        table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
        for number, column in enumerate(self.columns):
            # Headings and labels may wrap between words; a number is never cut.
            lengths = (len(part) for row in self.rows for part in self._unbroken(row, number))
            width = max(lengths, default=0)
            side: Literal["left", "right"] = "right" if number > self.words else "left"
            table.add_column(escape(printable(column)), justify=side, overflow="fold", min_width=width)
        for row in self.rows:
            table.add_row(*(escape(printable(cell)) for cell in row))
        return Group(Text(printable(self.title), style="table.title"), table)

    def _unbroken(self, row: Sequence[str], number: int) -> list[str]:
        return [word[:LONGEST_WORD] for word in row[number].split()] if number == self.words else [row[number]]

    def latex(self) -> str:
        """As LaTeX with the package booktabs, under its title as a caption."""
        head, *rows = (" & ".join(map(in_latex, line)) + r" \\" for line in (self.columns, *self.rows))
        inner = [r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
        columns = "l" + "r" * (len(self.columns) - 1)
        lines = [
            r"\begin{table}",
            f"  \\caption{{{in_latex(self.title)}}}",
            f"  \\begin{{tabular}}{{{columns}}}",
            *(f"    {line}" for line in inner),
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        file = StringIO()
        csv.writer(file, lineterminator="\n").writerows([*map(printable, line)] for line in (self.columns, *self.rows))
        return file.getvalue()

    def markdown(self) -> str:
        lines = [
            self.columns,
            ["---:" if number > self.words else "---" for number in range(len(self.columns))],
            *self.rows,
        ]
        return f"**{marked(self.title)}**\n\n" + "\n".join(f"| {' | '.join(map(marked, line))} |" for line in lines)


def marked(text: str) -> str:
    """A text as Markdown shows it, in a table as well."""
    return printable(text).replace("|", "\\|").replace("*", "\\*")


IN_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "[": "{[}",  # after a line's end it would be a length
    "]": "{]}",
}


def in_latex(text: str) -> str:
    return "".join(IN_LATEX.get(letter, letter) for letter in printable(text))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    file = StringIO()
    writer = csv.DictWriter(file, [*dict.fromkeys(name for row in rows for name in row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: printable(x) if isinstance(x, str) else x for name, x in row.items()} for row in rows)
    return file.getvalue()


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


class Tabled:
    """Tables with notes, and the numbers in them: plain in a text, HTML in a notebook, Markdown by :meth:`table`.

    A data class of these sets ``repr=False``.
    """

    WIDTH: ClassVar[int] = 120  # of a text, in characters

    def tables(self) -> list[Table]:
        raise NotImplementedError

    def notes(self) -> list[str]:
        raise NotImplementedError

    def more_tables(self) -> list[Table]:
        return []

    def measurements(self) -> list[Record]:
        """Every number, with what it is of; none where there are tables alone."""
        return []

    def frame(self) -> pd.DataFrame:
        """The :meth:`measurements` as a pandas table, a row for each."""
        with needs("pandas", "A pandas table (measurements() gives the same as a list)"):
            import pandas as pd
        return pd.DataFrame(self.measurements())

    def table(self) -> str:
        blocks = [table.markdown() for table in (*self.tables(), *self.more_tables())]
        return "\n\n".join([*blocks, "\n".join(f"- {marked(note)}" for note in self.notes())]) + "\n"

    def latex(self) -> str:
        """The tables as LaTeX with the package booktabs."""
        return "\n".join(table.latex() for table in (*self.tables(), *self.more_tables()))

    def csv(self) -> str:
        """The :meth:`measurements` as CSV."""
        return as_csv(self.measurements())

    def __str__(self) -> str:
        return text(self.tables(), self.notes(), self.WIDTH)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return render("tables.html.jinja", tables=self.tables(), notes=self.notes())


def render(template: str, **values: Any) -> str:
    """A page of the templates here."""
    import jinja2

    def safe(value: Any) -> Any:
        """A text without what no page may contain, such as control characters; line feeds and mark-up stay."""
        if not isinstance(value, str) or hasattr(value, "__html__"):
            return value
        return "\n".join(printable(line) for line in value.split("\n"))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedshift", "reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=safe,
    )
    environment.filters["bytes"] = bytes_text
    return environment.get_template(template).render(values)


def write_page_to(path: Path, name: str, text: str) -> Path:
    """Write a page to a file, or to one of this name in a folder, and return its path."""
    try:
        path = path / name if path.is_dir() else path
        make_folder(path.parent)
        write(path, text)
    except (FedshiftError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        in_a_file = isinstance(cause, FileExistsError | NotADirectoryError)
        reason = "its folder would be a file" if in_a_file else getattr(cause, "strerror", None) or error
        raise FedshiftError(
            f"The report cannot be written to '{path}': {reason}. Write it elsewhere: `fedshift report RUNS --to FILE`."
        ) from error
    return path
