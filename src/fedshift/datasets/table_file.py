"""A user's own table, as CSV or Parquet: one sample a row."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedshift import memory
from fedshift.datasets.parts import (
    Array,
    Names,
    Part,
    beside,
    check_each,
    domain_names,
    files_in,
    joined,
    names_of,
    sorted_names,
)
from fedshift.datasets.table import TableDataset
from fedshift.errors import FedshiftError, Problems, UnknownNameError, need
from fedshift.federation.domains import DomainData, Unlabelled
from fedshift.federation.preparation import UNSEEN, Column
from fedshift.settings.spec import setting
from fedshift.streams import Streams

SUFFIXES = (".csv", ".parquet")
ENCODING = "utf-8-sig"  # with the mark that Excel writes, or without
NUMBERS = "iuf"  # kinds of NumPy's types
LARGEST = float(np.finfo(np.float32).max)
MOST_CATEGORIES = 1000  # of a column; one of more names its rows
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})([T ].*)?")


class Cells(NamedTuple):
    """A column of a file.

    Attributes:
        where: the column and its file, for errors.
        values: numbers, or Python's objects, (N,).
        missing: which cells hold nothing, (N,), bool.
    """

    where: str
    values: Array
    missing: Array

    @property
    def present(self) -> Iterator[tuple[int, Any]]:
        """The row and the value of every cell that is not missing."""
        return ((int(row), self.values[row]) for row in np.flatnonzero(~self.missing))

    def odd(self, number: bool) -> tuple[int, Any] | None:
        """The first cell that is a number, or is none."""
        if self.values.dtype.kind in NUMBERS:
            return next(self.present, None) if number else None
        return next((cell for cell in self.present if (_as_number(cell[1]) is not None) == number), None)


@dataclass(frozen=True, kw_only=True)
class TableFile(TableDataset):
    """Columns of numbers or categories and one of classes, in CSV (commas, UTF-8) or Parquet; or one file a domain.

    *Choices.* Where every class of a CSV file is written as a number, "1" and "1.0" are the same class. A column in
    which no cell is a number holds categories; one of some numbers and some text is refused, and so is one of dates.
    """

    path: str = setting(help="a file that ends in .csv or .parquet, or a folder of them", path=True)
    label: str = setting("label", help="the column of the class")
    domain: str = setting("", help="the column of the domain (site); empty: a file is one domain, named like the file")
    columns: tuple[str, ...] = setting((), help="the columns of the inputs, in order; none: all others")
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

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain's column, or the files' names."""
        files = files_in(self.path, SUFFIXES)
        return domain_names([(str(file), self._domains(file)) for file in files])

    def load(self, streams: Streams) -> DomainData:
        """Read every row."""
        files = files_in(self.path, SUFFIXES)
        memory.check(sum(file.stat().st_size for file in files), f"The table '{self.path}'", "Give fewer rows.")
        names: Sequence[str] = self.columns
        rows: list[_Rows] = []
        problems = Problems(f"things are wrong with the table '{self.path}'")
        for file in files:
            with problems.gathered():
                names = names or self._first(file)
                rows.append(self._rows(file, names))
        problems.check()
        columns, notes = self._numbered(names, rows) if self.prepared else (_of_numbers(names), [])
        notes = [*beside(self.path, files), *notes, *_notes_on_rounding(columns, rows)]
        parts = [Part(each.where, torch.from_numpy(each.x), each.y, each.domain) for each in rows]
        rows.clear()  # a file's rows are given up once they are copied
        return joined(parts, notes=tuple(notes), columns=columns)

    def suffixes(self) -> tuple[str, ...]:
        """CSV and Parquet."""
        return SUFFIXES

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The columns that are asked for, or that the settings, or the first file of the data, name."""
        columns = columns or _of_numbers(self.columns or self._first(files_in(self.path, SUFFIXES)[0]))
        x, names = self.rows(file, columns), {column.name for column in columns}
        others = [name for name in _columns(file) if name not in names]
        notes = [f"Columns that are not looked at: {', '.join(others)} (of '{file}')."] if others else []
        return Unlabelled(x, range(len(x)), (*notes, *(_notes_on_filling(file, columns, x) if self.prepared else ())))

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
        present = _columns(file)
        for column in columns:
            if column.name not in present:
                raise UnknownNameError(f"column of inputs in '{file}'", column.name, present)
        frame = _read(file, [column.name for column in columns])
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        x = np.empty((len(frame), len(columns)), np.float64 if self.prepared else np.float32)
        problems = Problems(f"columns of '{file}' cannot be used")
        for place, column in enumerate(columns):
            where = f"The column '{column.name}' of '{file}'"
            with problems.gathered():
                if not self.prepared:
                    x[:, place] = _numbers(frame[column.name], where)
                    continue
                cells = _cells(frame[column.name], where, self.missing)
                x[:, place] = _measures(cells) if column.categories is None else _codes(cells, column.categories)
        problems.check()
        return torch.from_numpy(x)

    # A file -------------------------------------------------------------------------------------

    def _rows(self, file: Path, names: Sequence[str]) -> _Rows:
        """The rows of a file; of columns that are to be prepared the cells as they are."""
        present = _columns(file)
        self._check_columns(file, present, names)
        frame = _read(file, [*names, *self._named_apart])
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        x = np.empty((len(frame), len(names)), np.float64 if self.prepared else np.float32)
        cells: list[Cells] = []
        problems = Problems(f"columns of '{file}' cannot be used")
        for number, name in enumerate(names):
            where = f"The column '{name}' of '{file}'"
            with problems.gathered():
                if self.prepared:
                    cells.append(_cells(frame[name], where, self.missing))
                else:
                    values = _numbers(frame[name], where)
                    x[:, number] = values
                    cells.append(Cells(where, values, np.zeros(len(values), bool)))
        with problems.gathered():
            y = _names(frame[self.label], f"The column '{self.label}' of '{file}'", whole=True)
        with problems.gathered():
            domains = self._named(file, frame)
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
                    cells = each.cells[place]
                    numbers = column.categories is None
                    each.x[:, place] = _measures(cells) if numbers else _codes(cells, column.categories or ())
                columns.append(column)
        problems.check()
        return tuple(columns), _notes_on_reading(columns, rows)

    def _first(self, file: Path) -> list[str]:
        """The columns of inputs of the first file, where they are not named; others should have the same."""
        present = _columns(file)
        self._check_named(file, present)
        return self._others(file, present)

    def _others(self, file: Path, present: Sequence[str]) -> list[str]:
        """The columns that are neither the label nor the domain."""
        others = [name for name in present if name not in self._named_apart]
        index = next((name for name in others if not name.strip() or name.startswith("__index_level_")), None)
        if index is not None:
            raise FedshiftError(
                f"'{file}' has a column without a name ('{index}'), as pandas writes the index of its rows: write the "
                "file with index=False, or name the columns to read: --set data.columns=..."
            )
        if not others:
            raise FedshiftError(f"'{file}' has the columns {', '.join(present)}, and none of numbers beside the label.")
        return others

    def _check_columns(self, file: Path, present: Sequence[str], columns: Sequence[str]) -> None:
        """Every column that is read is there; where those of inputs are not named, there is no other.

        Raises:
            FedshiftError: they are not.
        """
        self._check_named(file, present)
        for name in columns:
            if name not in present:
                raise UnknownNameError(f"column of inputs in '{file}'", name, present)
        more = [] if self.columns else [name for name in self._others(file, present) if name not in columns]
        if more:
            raise FedshiftError(
                f"'{file}' has the column '{more[0]}', which files before it lack; make them alike, or name those to "
                "read: --set data.columns=..."
            )

    def _check_named(self, file: Path, present: Sequence[str]) -> None:
        for name, named_by in self._named_apart.items():
            if name not in present:
                hint = "Separate columns by commas." if len(present) == 1 else f"Name it: --set {named_by}=COLUMN"
                raise UnknownNameError(f"column ({named_by}) in '{file}'", name, present, hint)

    @property
    def _named_apart(self) -> dict[str, str]:
        """The columns of names, and the setting that names each."""
        return {self.label: "data.label"} | ({self.domain: "data.domain"} if self.domain else {})

    def _domains(self, file: Path) -> Names:
        """What the rows' domains are called, read alone."""
        if not self.domain:
            return Names.all(file.stem, 0)
        self._check_named(file, _columns(file))
        return self._named(file, _read(file, [self.domain]))

    def _named(self, file: Path, frame: Any) -> Names:
        if not self.domain:
            return Names.all(file.stem, len(frame))
        return _names(frame[self.domain], f"The column '{self.domain}' of '{file}'")


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
            f"{each.where} holds {_shown(value)} in row {row}, but the number {number} in row {at} of "
            f"{other.where[0].lower()}{other.where[1:]}: correct it, say that it stands for nothing (--set "
            f"data.missing={str(value)!r:.100}), or take all of the column as categories (--set "
            f"data.categories={name})."
        )
    if not named:
        _check_no_dates(cells)
    categories = sorted_names(f"category of the column '{name}'", [(each.where, _categories(each)) for each in cells])
    if len(categories) > MOST_CATEGORIES:
        raise FedshiftError(
            f"{cells[0].where} has {len(categories)} categories, {MOST_CATEGORIES} at most can be inputs: leave it out "
            "(--set data.columns=...), or write fewer."
        )
    return Column(name, categories)


def _check_no_dates(cells: Sequence[Cells]) -> None:
    present = [(each, row, value) for each in cells for row, value in each.present]
    if all(DATE.fullmatch(str(value).strip()) for _, _, value in present):
        each, row, value = present[0]
        raise FedshiftError(
            f"{each.where} holds the date {_shown(value)} in row {row}, which is neither a number nor a category: "
            "write what matters of it as a number (days since some day, the month, the age), or leave the column out: "
            "--set data.columns=..."
        )


def _categories(cells: Cells) -> Names:
    """The categories of a file's column, and of each cell that is not missing which one it is."""
    values = cells.values[~cells.missing]
    if values.dtype.kind not in NUMBERS:
        for row, value in cells.present:
            if not isinstance(value, str | bool | int | float | Decimal):
                raise FedshiftError(f"{cells.where} holds {_shown(value)} in row {row}; give text or numbers.")
        numbers = [_as_number(value) for value in values]
        plain = all(number is not None for number in numbers) and len(numbers)
        values = np.array(numbers, float) if plain else values.astype(str)
    return names_of(values, cells.where)._replace(rows=[])


def _codes(cells: Cells, categories: Sequence[str]) -> Array:
    """The numbers of a column's categories (N,); NaN where nothing is."""
    names, codes = _categories(cells), {name: float(code) for code, name in enumerate(categories)}
    table = np.array([codes.get(str(value), UNSEEN) for value in names.values], float)
    found = np.full(len(cells.values), np.nan)
    found[~cells.missing] = table[names.which.numpy()] if len(table) else []
    return found


def _measures(cells: Cells) -> Array:
    """A column's numbers (N,), float64; NaN where nothing is.

    Raises:
        FedshiftError: a cell holds no number, or none that float32 has.
    """
    numbers = np.full(len(cells.values), np.nan)
    if cells.values.dtype.kind in NUMBERS:
        numbers[~cells.missing] = cells.values[~cells.missing]
    else:
        for row, value in cells.present:
            numbers[row] = _number(value, row, cells.where)
    check_each(numbers, lambda some: np.abs(some) > LARGEST, cells.where, "a finite number of float32, or nothing")
    return numbers


def _cells(column: Any, where: str, missing: Sequence[str]) -> Cells:
    """A column of pandas; a cell holds nothing if it is NaN, none, or one of some texts."""
    values: Array = column.to_numpy()
    nothing: Array = column.isna().to_numpy().copy()
    if values.dtype.kind not in NUMBERS:
        values = column.astype(object).to_numpy()
        nothing |= np.array([isinstance(value, str) and value.strip() in missing for value in values], bool)
    return Cells(where, values, nothing)


def _notes_on_reading(columns: Sequence[Column], rows: Sequence[_Rows]) -> list[str]:
    """What was read as categories, and how many cells are filled in."""
    named = [f"'{column.name}' ({len(column.categories)})" for column in columns if column.categories is not None]
    missing = {
        column.name: count
        for place, column in enumerate(columns)
        if (count := sum(int(each.cells[place].missing.sum()) for each in rows))
    }
    listed = ", ".join(f"'{name}' ({count})" for name, count in missing.items())
    return [
        *([f"Columns read as categories (how many): {', '.join(named)}."] if named else []),
        *([f"Columns with missing cells (how many), which are filled in: {listed}."] if missing else []),
    ]


def _notes_on_filling(file: Path, columns: Sequence[Column], x: Tensor) -> Iterator[str]:
    """What stands for cells of new rows x (N, columns) that are missing, or of categories that a model does not know.

    Of the latter the first is shown as the file has it.
    """
    missing = [(column.name, int(x[:, place].isnan().sum())) for place, column in enumerate(columns)]
    if listed := ", ".join(f"'{name}' ({count})" for name, count in missing if count):
        yield f"Columns of '{file}' with missing cells (how many), which are filled in as in training: {listed}."
    for place, column in enumerate(columns):
        unknown = (x[:, place] == UNSEEN).nonzero().flatten().tolist()
        if column.categories is not None and unknown:
            value = _read(file, [column.name])[column.name].iloc[unknown[0]]
            yield (
                f"The column '{column.name}' of '{file}' holds categories that the model does not know in "
                f"{len(unknown)} rows, the first {_shown(value)} in row {unknown[0]}; they count as none of those that "
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


# Cells -------------------------------------------------------------------------------------------


def _numbers(column: Any, where: str) -> Array:
    """A column of numbers as float32, (N,)."""
    values = _whole_column(column, where, PREPARED)
    if values.dtype.kind not in NUMBERS:
        values = np.array([_number(value, row, where, PREPARED) for row, value in enumerate(values)])
    check_each(values, lambda some: ~(np.abs(some.astype(np.float64)) <= LARGEST), where, "a finite number of float32")
    return values.astype(np.float32)


def _names(column: Any, where: str, *, whole: bool = False) -> Names:
    """A column of names or numbers."""
    values = _whole_column(column, where)
    if values.dtype.kind in NUMBERS:
        return names_of(values, where, whole=whole)
    if values.dtype.kind == "O":
        for row, value in enumerate(values):
            if not isinstance(value, str | bool):
                raise FedshiftError(
                    f"{where} holds the {type(value).__name__} {str(value)!r:.100} in row {row}; give text or numbers."
                )
            if not str(value).strip():
                raise FedshiftError(f"{where} holds nothing in row {row}; fill it in or remove the row.")
    return names_of(values.astype(str), where)


PREPARED = (
    " To have missing cells filled in, numbers standardised and text taken as categories: --set data.statistics=site "
    "(or pooled)"
)


def _whole_column(column: Any, where: str, more: str = "") -> Array:
    """A column of pandas, of which no cell is missing; numbers as they are, all else as Python's objects."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        others = f", and in {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FedshiftError(f"{where} holds nothing in row {missing[0]}{others}; fill it in or remove the row.{more}")
    values: Array = column.to_numpy()
    return values if values.dtype.kind in NUMBERS else column.astype(object).to_numpy()


def _as_number(value: object) -> float | None:
    """The number that a cell holds: one of Python's, of NumPy's, a Decimal, or text; None: it holds none."""
    if (
        isinstance(value, str | int | float | np.number | Decimal)
        and not isinstance(value, bool)
        and "_" not in str(value)
    ):
        with suppress(ValueError):
            return float(value)
    return None


def _number(value: object, row: int, where: str, more: str = "") -> float:
    number = _as_number(value)
    if number is None:
        shown = _shown(value) if str(value).strip() else "nothing"
        raise FedshiftError(
            f"{where} holds {shown} in row {row}, and should hold numbers; write one, fill it in, or name the columns "
            f"to read: --set data.columns=...{more}"
        )
    return number


def _shown(value: object) -> str:
    return f"{str(value)!r:.100} ({type(value).__name__})"


# Files -------------------------------------------------------------------------------------------


def _columns(file: Path) -> list[str]:
    """The names of a file's columns.

    Raises:
        FedshiftError: it cannot be read, or two have one name.
    """
    with _reading(file):
        if file.suffix.lower() == ".parquet":
            names: list[str] = _parquet().read_schema(file).names
        else:
            with file.open(encoding=ENCODING, newline="") as opened:
                names = next(csv.reader(opened), [])
    if not names:
        raise FedshiftError(f"'{file}' is empty; its first line should name the columns.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FedshiftError(f"'{file}' has two columns '{twice}'; give each a name of its own.")
    return names


def _read(file: Path, columns: list[str]) -> Any:
    """Some columns of a file, as a table of pandas.

    Raises:
        FedshiftError: it cannot be read, or a row has more values than there are columns.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise need("pandas", "A table of numbers", error) from error
    with _reading(file), warnings.catch_warnings():
        if file.suffix.lower() == ".parquet":
            return _parquet().read_table(file, columns=columns).to_pandas(ignore_metadata=True)
        warnings.simplefilter("error", pd.errors.ParserWarning)  # that it drops what a row has too many
        names, options = _columns(file), {"na_filter": False, "low_memory": False, "index_col": False}
        return pd.read_csv(file, header=0, names=names, encoding=ENCODING, **options)[columns]


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise need("parquet", "Reading Parquet", error) from error
    return parquet


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Names the file in whatever goes wrong: pandas and Arrow raise errors of many kinds."""
    try:
        yield
    except FedshiftError:
        raise
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise FedshiftError(f"'{file}' cannot be read as a table ({reason}). Write it again.") from error
