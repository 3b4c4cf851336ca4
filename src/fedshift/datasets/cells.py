"""Columns of CSV and Parquet files, as numbers, names or times; errors name file, column, row and value."""

from __future__ import annotations

import csv
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

import numpy as np
import torch

from fedshift import parquet
from fedshift.datasets.parts import Array, Names, check_each, names_of
from fedshift.errors import FedshiftError, UnknownNameError, needs

SUFFIXES = (".csv", ".parquet")
ENCODING = "utf-8-sig"  # with the mark that Excel writes, or without
MOST_COLUMNS = 100_000
LONGEST_LINE = 16_000_000  # letters
COMMAS = "Separate columns by commas."
USUAL = re.compile(r"(?!.{16})-?(0|[1-9]\d*)(\.0|\.\d*[1-9])?")  # a number of which a float keeps every digit
NUMBERS = "iuf"  # kinds of NumPy's types
FLOAT32 = float(np.finfo(np.float32).max)


def column_names(file: Path) -> list[str]:
    """The names of a file's columns, in order.

    Args:
        file: CSV (commas, UTF-8, a first line of names) or Parquet.

    Raises:
        FedshiftError: it cannot be read, two have one name, or one has a name that cannot be written in a line.
    """
    with _reading(file):
        if file.suffix.lower() == ".parquet":
            names = parquet.columns_of(file)
        else:
            with file.open(encoding=ENCODING, newline="") as opened:
                names = next(csv.reader(lines(opened, file)), [])
    if not names:
        raise FedshiftError(f"'{file}' is empty; its first line should name the columns.")
    check_number(file, names)
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise FedshiftError(f"'{file}' has two columns '{twice}'; give each a name of its own.")
    unseen = next((name for name in names if any(unicodedata.category(letter) == "Cc" for letter in name)), None)
    if unseen is not None:
        raise FedshiftError(f"The name of the column {unseen!r} of '{file}' holds control characters; rename it.")
    return names


def check_number(file: Path, names: Sequence[str]) -> None:
    """Raise an error if a file has more columns than can be read."""
    if len(names) > MOST_COLUMNS:
        raise FedshiftError(
            f"'{file}' has {len(names):,} columns, and at most {MOST_COLUMNS:,} are read: write fewer, or turn columns "
            "into rows."
        )


def lines(opened: TextIO, file: Path) -> Iterator[str]:
    """The lines of a CSV file, none of which fills the memory.

    Args:
        opened: the file, opened as text.
        file: its path, for the error.

    Raises:
        FedshiftError: one is too long.
    """
    number = 1
    while line := opened.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise FedshiftError(
                f"Line {number} of '{file}' has more than {LONGEST_LINE:,} letters: end each row with a line break."
            )
        yield line
        number += 1


def check_named(file: Path, present: Sequence[str], named: Mapping[str, str]) -> None:
    """Raise an error unless a file has some columns, each given with the setting that names it."""
    for name, named_by in named.items():
        if name not in present:
            hint = COMMAS if len(present) == 1 else f"Name it: --set {named_by}=COLUMN"
            raise UnknownNameError(f"column ({named_by}) in '{file}'", name, present, hint)


def check_present(file: Path, present: Sequence[str], columns: Iterable[str], what: str) -> None:
    """Raise an error unless a file has some columns, which are of inputs, say."""
    there = {*present}
    for name in columns:
        if name not in there:
            raise UnknownNameError(f"column of {what} in '{file}'", name, present, COMMAS if len(present) == 1 else "")


def read_columns(file: Path, columns: Sequence[str], texts: Sequence[str] = (), names: Sequence[str] = ()) -> Any:
    """Some columns of a file, as a table of pandas; empty cells of CSV are empty text.

    Args:
        file: CSV or Parquet.
        columns: which.
        texts: those of CSV that are text, also where digits are written in them.
        names: those of CSV that are text unless each cell is a number as it is usually written: 7, 7.0 or 7.5, and
            neither 07 nor 7.50.

    Raises:
        FedshiftError: it cannot be read, or a row has more or fewer values than there are columns.
    """
    with needs("pandas", "Reading CSV and Parquet"):
        import pandas as pd
    with _reading(file), warnings.catch_warnings():
        if file.suffix.lower() == ".parquet":
            table = parquet.read(file, columns)
            try:
                table.validate(full=True)
            except ValueError as error:  # which does not say where
                raise no_text(table, 0, str(file)) from error
            return table.to_pandas(ignore_metadata=True)
        warnings.simplefilter("error", pd.errors.ParserWarning)  # that it drops what a row has too many
        present = column_names(file)
        _check_even(file, len(present))
        frame = _parsed(file, present, dict.fromkeys([*texts, *names], str))
        truths = [name for name in columns if frame[name].dtype.kind == "b"]  # of which True is TRUE or true as well
        if truths:
            frame = _parsed(file, present, dict.fromkeys([*texts, *names, *truths], str))
        for name in names:
            if all(USUAL.fullmatch(cell.strip()) for cell in frame[name].unique()):
                frame[name] = pd.to_numeric(frame[name].str.strip())
        return frame[list(columns)]


def _check_even(file: Path, columns: int) -> None:
    """Raise an error unless each row of a CSV file has a value, if an empty one, for each column."""
    with file.open(encoding=ENCODING, newline="") as opened, suppress(csv.Error):  # of what pandas may yet read
        rows, line = csv.reader(lines(opened, file)), 1
        for row in rows:
            if row and len(row) != columns:
                raise FedshiftError(
                    f"The row in line {line} of '{file}' has {len(row)} values, and there are {columns} columns; write "
                    "a value for each, empty ones too, and set quotes around text with commas."
                )
            line = rows.line_num + 1


def _parsed(file: Path, present: Sequence[str], kinds: Mapping[str, type]) -> Any:
    """A CSV file as a table of pandas; of a single column, a line without a character is an empty cell."""
    import pandas as pd

    options = {"na_filter": False, "low_memory": False, "index_col": False, "skip_blank_lines": len(present) > 1}
    return pd.read_csv(file, header=0, names=list(present), encoding=ENCODING, dtype=dict(kinds), **options)


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

    @classmethod
    def of(cls, column: Any, where: str, missing: Sequence[str] = ()) -> Self:
        """A column of pandas; a cell holds nothing if it is NaN, none, or one of some texts."""
        values: Array = column.to_numpy()
        nothing: Array = column.isna().to_numpy().copy()
        if values.dtype.kind not in NUMBERS:
            values = column.astype(object).to_numpy()
            nothing |= np.array([isinstance(value, str) and value.strip() in missing for value in values], bool)
        return cls(where, values, nothing)

    @property
    def present(self) -> Iterator[tuple[int, Any]]:
        """The row and the value of every cell that is not missing."""
        return ((int(row), self.values[row]) for row in np.flatnonzero(~self.missing))

    def odd(self, number: bool) -> tuple[int, Any] | None:
        """The first cell that is a number, or is none."""
        if self.values.dtype.kind in NUMBERS:
            return next(self.present, None) if number else None
        return next((cell for cell in self.present if (as_number(cell[1]) is not None) == number), None)

    def check_whole(self, fix: str) -> None:
        """Raise an error that says how to mend it if a cell is missing."""
        rows = np.flatnonzero(self.missing)
        if len(rows):
            value = self.values[rows[0]]
            written = f" ({value!r:.100})" if isinstance(value, str) and value.strip() else ""
            others = f", and in {len(rows) - 1} more" if len(rows) > 1 else ""
            raise FedshiftError(f"{self.where} holds nothing{written} in row {rows[0]}{others}; {fix}")

    def numbers(self, more: str = "") -> Array:
        """The numbers of the cells (N,), float64; NaN where nothing is.

        Args:
            more: what else can be done about a cell that holds no number.

        Raises:
            FedshiftError: a cell holds other text, or a number that float32 does not hold; the message names the row.
        """
        found = np.full(len(self.values), np.nan)
        if self.values.dtype.kind in NUMBERS:
            found[~self.missing] = self.values[~self.missing]
        else:
            for row, value in self.present:
                number = as_number(value)
                if number is None:
                    raise FedshiftError(
                        f"{self.where} holds {shown(value)} in row {row}, and should hold numbers; write one, say what "
                        "stands for nothing (--set data.missing=...), or name the columns to read (--set "
                        f"data.columns=...).{more}"
                    )
                found[row] = number
        check_each(found, lambda some: np.abs(some) > FLOAT32, self.where, "a finite number of float32")
        return found

    def names(self, *, whole: bool = False) -> Names:
        """What the cells that are not missing are called, numbers or text; see :func:`names_of`.

        Raises:
            FedshiftError: a cell holds neither; the message names the row.
        """
        rows = np.flatnonzero(~self.missing)
        values = self.values[rows]
        if values.dtype.kind not in NUMBERS and all(isinstance(value, Decimal) for value in values):
            values = _of_decimals(values, self.where)
        if values.dtype.kind in NUMBERS:
            names = names_of(values, self.where, whole=whole)
            return names._replace(rows=rows[names.rows].tolist())
        first: dict[str, int] = {}  # the row in which each name occurs first
        which = np.empty(len(rows), np.int64)
        for place, (row, value) in enumerate(self.present):
            if not isinstance(value, str | bool):
                raise FedshiftError(f"{self.where} holds {shown(value)} in row {row}; give text or numbers.")
            if not str(value).strip():
                raise FedshiftError(f"{self.where} holds nothing in row {row}; fill it in or remove the row.")
            which[place] = first.setdefault(str(value), row)
        found = sorted(first)
        at = np.empty(len(self.values), np.int64)
        at[[first[name] for name in found]] = np.arange(len(found))
        return Names(found, [first[name] for name in found], torch.from_numpy(at[which]))


def _of_decimals(values: Array, where: str) -> Array:
    """Decimals (N,) as whole numbers, or as floats where one is not whole.

    Raises:
        FedshiftError: a whole number has more digits than 64 bits hold.
    """
    whole = all(value.is_finite() and value == value.to_integral_value() for value in values)
    try:
        return np.array([int(value) for value in values], np.int64) if whole else values.astype(np.float64)
    except OverflowError as error:
        large = next(value for value in values if abs(value) >= 2**63)
        raise FedshiftError(f"{where} holds {large}, which is too large for a number; write it as text.") from error


def as_number(cell: object) -> float | None:
    """The number that a cell holds: one of Python's or NumPy's, a Decimal, or text; None: it holds none, or NaN."""
    if isinstance(cell, str | int | float | np.number | Decimal) and not isinstance(cell, bool):
        with suppress(ValueError, OverflowError):
            number = float(cell)
            return None if isnan(number) or "_" in str(cell) else number
    return None


def shown(cell: object) -> str:
    """A cell as errors show it, with its type."""
    return f"{str(cell)!r:.100} ({type(cell).__name__})"


def names_in(column: Any, where: str, *, whole: bool = False) -> Names:
    """A column of names or numbers, none of which is missing; see :func:`names_of`.

    Raises:
        FedshiftError: a cell holds none; the message names the row.
    """
    cells = Cells.of(column, where, ("",))
    cells.check_whole("fill it in or remove the row.")
    return cells.names(whole=whole)


def times(column: Any, where: str) -> Array:
    """A column of times, from the first of them on, (N,), float64.

    Args:
        column: numbers of any unit, or durations, dates and times (in text as ISO 8601), which become seconds.
        where: what errors call it, with its file.

    Raises:
        FedshiftError: a cell holds none of these; the message names the row.
    """
    import pandas as pd

    if column.dtype.kind in NUMBERS:
        values: Array = column.to_numpy()
        check_each(values, lambda some: ~np.isfinite(some), where, "a finite number")
        since: Array = (values - values.min()).astype(np.float64)  # it would not hold nanoseconds since 1970
        return since
    try:
        moments = column if column.dtype.kind == "m" else pd.to_datetime(column, "coerce", format="ISO8601", utc=True)
        wrong = np.flatnonzero(moments.isna().to_numpy())
    except (TypeError, ValueError):  # of what no moment can be made
        wrong = np.array([0])
    if len(wrong):
        raise FedshiftError(
            f"{where} holds {str(column.iloc[wrong[0]])!r:.100} in row {wrong[0]}; give numbers, or dates and times as "
            "ISO 8601 writes them (2024-01-31T12:00:00.5)."
        )
    seconds: Array = (moments - moments.min()).dt.total_seconds().to_numpy()
    return seconds


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Names the file in whatever goes wrong: pandas and Arrow raise errors of many kinds."""
    try:
        yield
    except (FedshiftError, MemoryError):
        raise
    except UnicodeDecodeError as error:
        raise _no_utf8(file) from error
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise FedshiftError(f"'{file}' cannot be read as a table ({reason}). Write it again.") from error


def _no_utf8(file: Path) -> FedshiftError:
    """The error for a CSV file that is no UTF-8, with the first line that is none."""
    with file.open("rb") as opened:
        for number, line in enumerate(opened):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                wrong = line[max(error.start - 20, 0) : error.end + 20]
                return FedshiftError(
                    f"Line {number + 1} of '{file}' has {wrong!r}, and {line[error.start : error.end]!r} is no UTF-8; "
                    "write the file as UTF-8."
                )
    raise AssertionError("every line can be read")


def no_text(batch: Any, start: int, where: str) -> FedshiftError:
    """The error for a batch with text that is no UTF-8, of which Arrow does not say where it is."""
    for column in batch.column_names:
        for row, cell in enumerate(batch[column]):
            try:
                cell.as_py()
            except UnicodeDecodeError as error:
                return FedshiftError(
                    f"Row {start + row} of {where} has {error.object!r} in the column '{column}', which is no UTF-8; "
                    "write it as UTF-8."
                )
    raise AssertionError("every cell can be read")
