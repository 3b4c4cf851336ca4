"""A user's own table, as CSV or Parquet: one sample a row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift import memory
from fedshift.datasets.cells import (
    NUMBERS,
    SUFFIXES,
    Cells,
    as_number,
    check_present,
    column_names,
    names_in,
    read_columns,
    shown,
)
from fedshift.datasets.column_files import InputColumns, column_of, not_looked_at
from fedshift.datasets.parts import Array, Names, Part, beside, files_in, joined, sorted_names
from fedshift.datasets.table import TableDataset
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.federation.domains import DomainData, Unlabelled
from fedshift.federation.preparation import UNSEEN, Column
from fedshift.settings.spec import setting
from fedshift.streams import Streams

PREPARED = (
    " To have missing cells filled in, numbers standardised and text taken as categories: --set data.statistics=site "
    "(or pooled)"
)
MOST_CATEGORIES = 1000  # of a column; one of more names its rows
NEARLY = re.compile(r"[-+]?[\d.,' \u00a0\u202f]*\d[.,]?\s*%?")  # a number of another notation: 1,5 or 1 000 or 10 %
TIME = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]\.?m\.?)?"
MONTH = (
    r"(jan(uary|uar)?|feb(ruary|ruar)?|mar(ch)?|märz?|apr(il)?|may|mai|june?|juni|july?|juli|aug(ust)?|sept?(ember)?|"
    r"o[ck]t(ober)?|nov(ember)?|de[cz](ember)?)\.?"
)
DATES = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?",  # 2020-01-02T10:30
    r"\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})([T ].*)?",  # 02/01/2020
    rf"([^\W\d]{{2,}}\.?,? )?\d{{1,2}}(st|nd|rd|th|\.)?[ -]?{MONTH},?[ -]?(\d{{2}}|\d{{4}})( .*)?",  # Thu, 02 Jan 2020
    rf"([^\W\d]{{2,}}\.?,? )?{MONTH} \d{{1,2}}(st|nd|rd|th)?,? \d{{4}}( .*)?",  # January 2nd, 2020
    rf"{MONTH}[ -](\d{{2}}|\d{{4}})",  # Jan-20
)
DATE = re.compile("|".join(DATES), re.IGNORECASE)
MOMENT = re.compile(f"{TIME}|{DATE.pattern}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TableFile(InputColumns, TableDataset):
    """Columns of numbers or categories and one of classes, in CSV (commas, UTF-8) or Parquet; or one file a domain.

    *Choices.* Where every class of a CSV file is written as a number, "1" and "1.0" are the same class. A column in
    which no cell is a number holds categories; one of some numbers and some text is refused, and so is one of dates.
    """

    categories: tuple[str, ...] = setting(
        (), help="columns whose numbers are categories; columns of text are categories in any case"
    )
    missing: tuple[str, ...] = setting(("",), help="what is written in a cell that holds nothing, such as NA")

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: one is wrong, or a column has two uses.
        """
        super().__post_init__()
        used = [self.label, *self.columns, *([self.domain] if self.domain else [])]
        if not self.label or len(set(used)) < len(used):
            raise FedshiftError(
                f"data.label = '{self.label}', data.domain = '{self.domain}', data.columns = {list(self.columns)}: "
                "name the label's column, and each column once."
            )
        for name in self.categories if self.columns else ():
            if name not in self.columns:
                raise UnknownNameError("column in data.categories", name, self.columns)
        if self.categories and not self.prepared:
            raise FedshiftError(
                f"data.categories = {list(self.categories)}, but data.statistics = 'none' takes every column as "
                "numbers: --set data.statistics=site (or pooled)"
            )

    def load(self, streams: Streams) -> DomainData:
        """Read every row."""
        files = files_in(self.path, SUFFIXES)
        memory.check(sum(file.stat().st_size for file in files), f"The table '{self.path}'", "Give fewer rows.")
        names: Sequence[str] = self.columns
        rows: list[_Rows] = []
        problems = Problems(f"things are wrong with the table '{self.path}'")
        for file in files:
            with problems.gathered():
                names = names or self.others(file)
                rows.append(self._rows(file, names))
        problems.check()
        columns, notes = self._numbered(names, rows) if self.prepared else (_of_numbers(names), [])
        notes = [*beside(self.path, files), *notes, *_notes_on_rounding(columns, rows)]
        parts = [Part(each.where, torch.from_numpy(each.x), each.y, each.domain) for each in rows]
        rows.clear()  # a file's rows are given up once they are copied
        return joined(parts, notes=tuple(notes), columns=columns)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The columns that are asked for, or that the settings, or the first file of the data, name."""
        columns = columns or _of_numbers(self.input_columns())
        x, names = self.rows(file, columns), {column.name for column in columns}
        filled = _notes_on_filling(file, columns, x) if self.prepared else ()
        return Unlabelled(x, range(len(x)), (*not_looked_at(file, names), *filled))

    def rows(self, file: Path, columns: Sequence[Column]) -> Tensor:
        """The rows of a file, whose classes need not be known, as a model of some columns takes them.

        Args:
            file: the file.
            columns: the model's, as ``DomainData.columns`` or a run's blueprint has them.

        Returns:
            The rows (N, columns). Where they are prepared they are float64, with NaN where nothing is, and of
            categories the number, or -1 of one that the model does not know; else float32.

        Raises:
            FedshiftError: a column is not there, or holds what it cannot.
        """
        present = column_names(file)
        check_present(file, present, [column.name for column in columns], "inputs")
        text = [column.name for column in columns if column.categories is not None]
        frame = read_columns(file, [column.name for column in columns], text)
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        x = np.empty((len(frame), len(columns)), np.float64 if self.prepared else np.float32)
        problems = Problems(f"columns of '{file}' cannot be used")
        for place, column in enumerate(columns):
            where = column_of(column.name, file)
            with problems.gathered():
                cells = Cells.of(frame[column.name], where, self.missing)
                x[:, place] = _filled(cells, column) if self.prepared else _whole(cells)
        problems.check()
        return torch.from_numpy(x)

    # A file -------------------------------------------------------------------------------------

    def _rows(self, file: Path, names: Sequence[str]) -> _Rows:
        """The rows of a file; of columns that are to be prepared the cells as they are."""
        self.check_columns(file, names)
        text = [name for name in self.categories if name in names]
        frame = read_columns(file, [*names, *self.named_apart], text, self.as_written)
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        x = np.empty((len(frame), len(names)), np.float64 if self.prepared else np.float32)
        cells: list[Cells] = []
        problems = Problems(f"columns of '{file}' cannot be used")
        for number, name in enumerate(names):
            where = column_of(name, file)
            with problems.gathered():
                own = Cells.of(frame[name], where, self.missing)
                if self.prepared:
                    cells.append(own)
                else:
                    x[:, number] = _whole(own)
        with problems.gathered():
            y = names_in(frame[self.label], column_of(self.label, file), whole=True)
        with problems.gathered():
            domains = self.domain_of(file, frame)
        problems.check()
        return _Rows(str(file), x, cells, y, domains)

    def _numbered(self, names: Sequence[str], rows: Sequence[_Rows]) -> tuple[tuple[Column, ...], list[str]]:
        """Fill in every file's numbers and codes; what the columns are, and notes on how they were read."""
        for name in self.categories:
            if name not in names:
                raise UnknownNameError("column in data.categories", name, names)
        columns: list[Column] = []
        problems = Problems(f"columns of the table '{self.path}' cannot be used")
        for place, name in enumerate(names):
            with problems.gathered():
                column = _column(name, [each.cells[place] for each in rows], name in self.categories)
                for each in rows:
                    each.x[:, place] = _filled(each.cells[place], column)
                columns.append(column)
        problems.check()
        return tuple(columns), _notes_on_reading(columns, rows)


@dataclass(frozen=True)
class _Rows:
    """The rows of one file: inputs (N, columns), to be filled in from cells, classes and domains."""

    where: str
    x: Array
    cells: Sequence[Cells]
    y: Names
    domain: Names


# What a column is --------------------------------------------------------------------------------


def _of_numbers(names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


def _column(name: str, cells: Sequence[Cells], named: bool) -> Column:
    """What a column holds in all files together.

    Raises:
        FedshiftError: numbers and text, dates, too many categories, or names that are spelled twice.
    """
    numbers = next(((each, found) for each in cells if (found := each.odd(number=True))), None)
    words = next(((each, found) for each in cells if (found := each.odd(number=False))), None)
    if not named and words is None:
        return Column(name)
    if not named and numbers is not None and words is not None:
        (each, (row, value)), (other, (at, number)) = words, numbers
        raise FedshiftError(
            f"{each.where} holds {shown(value)} in row {row}, but the number {number} in row {at} of "
            f"{_lower(other.where)}: correct it, say that it stands for nothing (--set "
            f"data.missing={str(value)!r:.100}), or take all of the column as categories (--set "
            f"data.categories={name})."
        )
    if not named:
        _check_no_dates(name, cells)
        _check_no_notation(name, cells)
    categories = sorted_names(
        f"category of the column '{name}'", [(_lower(each.where), _categories(each, words is None)) for each in cells]
    )
    if len(categories) > MOST_CATEGORIES:
        raise FedshiftError(
            f"{cells[0].where} has {len(categories)} categories, {MOST_CATEGORIES} at most can be inputs: leave it out "
            "(--set data.columns=...), or write fewer."
        )
    return Column(name, categories)


def _lower(where: str) -> str:
    return f"{where[0].lower()}{where[1:]}"


def _check_no_dates(name: str, cells: Sequence[Cells]) -> None:
    present = [(each, row, value) for each in cells for row, value in each.present]
    dates = [(each, row, value) for each, row, value in present if DATE.fullmatch(str(value).strip())]
    if 2 * len(dates) > len(present) or all(MOMENT.fullmatch(str(value).strip()) for _, _, value in present):
        each, row, value = (dates or present)[0]
        raise FedshiftError(
            f"{each.where} holds the date or time {shown(value)} in row {row}, which is neither a number nor a "
            "category: write what matters of it as a number (days since some day, the month, the age), leave the "
            f"column out (--set data.columns=...), or take it as categories after all (--set data.categories={name})."
        )


def _check_no_notation(name: str, cells: Sequence[Cells]) -> None:
    present = [(each, row, value) for each in cells for row, value in each.present]
    if present and all(NEARLY.fullmatch(str(value).strip()) for _, _, value in present):
        each, row, value = present[0]
        raise FedshiftError(
            f"{each.where} holds {shown(value)} in row {row}, as numbers are written elsewhere: write 1234.5 for "
            f"1.234,5 and 0.1 for 10 %, or take the column as categories (--set data.categories={name})."
        )


def _categories(cells: Cells, numeric: bool) -> Names:
    """The categories of a file's column, of which "01" and "1.0" are "1" where all of the table's are numbers."""
    return (_numeric(cells) if numeric else cells).names()


def _filled(cells: Cells, column: Column) -> Array:
    """A column's numbers, or those of its categories (N,), float64; NaN where nothing is."""
    return cells.numbers() if column.categories is None else _codes(cells, column.categories)


def _codes(cells: Cells, categories: Sequence[str]) -> Array:
    numeric = all(as_number(name) is not None for name in categories)
    known = _numeric(cells) if numeric else cells
    found, codes = known.names(), {name: float(code) for code, name in enumerate(categories)}
    table = np.array([codes.get(str(value), UNSEEN) for value in found.values], float)
    numbers = np.where(cells.missing, np.nan, UNSEEN)
    numbers[~known.missing] = table[found.which.numpy()]
    return numbers


def _numeric(cells: Cells) -> Cells:
    """Cells as numbers; those that hold none are missing."""
    if cells.values.dtype.kind in NUMBERS:
        return cells
    values = np.full(len(cells.values), np.nan)
    for row, value in cells.present:
        number = as_number(value)
        values[row] = np.nan if number is None else number
    return Cells(cells.where, values, np.isnan(values))


def _whole(cells: Cells) -> Array:
    """A column's numbers (N,), of which none is missing."""
    cells.check_whole(f"fill it in or remove the row.{PREPARED}")
    return cells.numbers(PREPARED)


def _notes_on_reading(columns: Sequence[Column], rows: Sequence[_Rows]) -> list[str]:
    """What was read as categories, and how many cells are filled in."""
    named = [f"'{column.name}' ({len(column.categories)})" for column in columns if column.categories is not None]
    listed = _counted(columns, torch.from_numpy(np.concatenate([np.isnan(each.x) for each in rows])))
    return [
        *([f"Columns read as categories (how many): {', '.join(named)}."] if named else []),
        *([f"Columns with missing cells (how many), which are filled in: {listed}."] if listed else []),
    ]


def _counted(columns: Sequence[Column], cells: Tensor) -> str:
    """The columns that have some cells (N, columns), bool, and how many."""
    counts = zip(columns, cells.sum(dim=0).tolist(), strict=True)
    return ", ".join(f"'{column.name}' ({count})" for column, count in counts if count)


def _notes_on_filling(file: Path, columns: Sequence[Column], x: Tensor) -> Iterator[str]:
    """What stands for cells of new rows x (N, columns) that are missing, or of categories that a model does not know.

    Of the latter the first is shown as the file has it.
    """
    if listed := _counted(columns, x.isnan()):
        yield f"Columns of '{file}' with missing cells (how many), which are filled in as in training: {listed}."
    for place, column in enumerate(columns):
        unknown = (x[:, place] == UNSEEN).nonzero().flatten().tolist()
        if column.categories is not None and unknown:
            value = read_columns(file, [column.name], [column.name])[column.name].iloc[unknown[0]]
            yield (
                f"The column '{column.name}' of '{file}' holds categories that the model does not know in "
                f"{len(unknown)} rows, the first '{value}' in row {unknown[0]}; they count as none of those that "
                f"it knows: {', '.join(column.categories)}."
            )


def _notes_on_rounding(columns: Sequence[Column], rows: Sequence[_Rows]) -> list[str]:
    """A note on whole numbers that the type of the inputs cannot tell apart."""
    exact = 2 ** (53 if rows[0].x.dtype == np.float64 else 24)
    found = [
        column.name
        for place, column in enumerate(columns)
        if column.categories is None and any(np.nanmax(np.abs(each.x[:, place]), initial=0) >= exact for each in rows)
    ]
    if not found:
        return []
    names = ", ".join(f"'{name}'" for name in found)
    return [f"Columns with numbers of {exact:,} or more, where not every whole number is kept as it is: {names}."]
