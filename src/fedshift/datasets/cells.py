"""Columns of CSV and Parquet files, as numbers, names or times; errors name file, column, row and value."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift.datasets.parts import Array, Names, check_each, names_of
from fedshift.datasets.tables import no_text
from fedshift.errors import FedshiftError, UnknownNameError, need

SUFFIXES = (".csv", ".parquet")
ENCODING = "utf-8-sig"  # with the mark that Excel writes, or without
NUMBERS = "iuf"  # kinds of NumPy's types
FLOAT32 = float(np.finfo(np.float32).max)


def column_names(file: Path) -> list[str]:
    """The names of a file's columns, in order.

    Args:
        file: CSV (commas, UTF-8, a first line of names) or Parquet.

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


def check_named(file: Path, present: Sequence[str], named: Mapping[str, str]) -> None:
    """Raise an error unless a file has some columns, each given with the setting that names it."""
    for name, named_by in named.items():
        if name not in present:
            hint = "Separate columns by commas." if len(present) == 1 else f"Name it: --set {named_by}=COLUMN"
            raise UnknownNameError(f"column ({named_by}) in '{file}'", name, present, hint)


def read_columns(file: Path, columns: Sequence[str], texts: Sequence[str] = ()) -> Any:
    """Some columns of a file, as a table of pandas; empty cells of CSV are empty text.

    Args:
        file: CSV or Parquet.
        columns: which.
        texts: those of CSV that are text, also where digits are written in them.

    Raises:
        FedshiftError: it cannot be read, or a row has more values than there are columns.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise need("pandas", "Reading CSV and Parquet", error) from error
    with _reading(file), warnings.catch_warnings():
        if file.suffix.lower() == ".parquet":
            table = _parquet().read_table(file, columns=list(columns))
            try:
                table.validate(full=True)
            except ValueError as error:  # which does not say where
                raise no_text(table, 0, str(file)) from error
            return table.to_pandas(ignore_metadata=True)
        warnings.simplefilter("error", pd.errors.ParserWarning)  # that it drops what a row has too many
        options = {"names": column_names(file), "na_filter": False, "low_memory": False, "index_col": False}
        kinds = dict.fromkeys(texts, str)
        return pd.read_csv(file, header=0, encoding=ENCODING, dtype=kinds, **options)[list(columns)]


def numbers(column: Any, where: str, missing: Sequence[str]) -> Array:
    """A column of numbers, (N,), float64; NaN where a cell holds nothing.

    Args:
        column: pandas' column.
        where: what errors call it, with its file.
        missing: the text of cells that hold nothing.

    Raises:
        FedshiftError: a cell holds other text, or a number that float32 does not hold; the message names the row.
    """
    if column.dtype.kind in NUMBERS:
        values: Array = column.to_numpy(np.float64, na_value=np.nan)
    else:
        cells = column.astype(object).to_numpy()
        values = np.full(len(cells), np.nan)
        for row in np.flatnonzero(~column.isna().to_numpy()):
            if not (isinstance(cells[row], str) and cells[row].strip() in missing):
                values[row] = _number(cells[row], int(row), where)
    check_each(
        np.where(np.isnan(values), 0, values),
        lambda some: ~(np.abs(some) <= FLOAT32),
        where,
        "a finite number of float32",
    )
    return values


def names(column: Any, where: str, *, whole: bool = False) -> Names:
    """A column of names or numbers, none of which is missing; see :func:`names_of`.

    Raises:
        FedshiftError: a cell holds none; the message names the row.
    """
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        raise FedshiftError(f"{where} holds nothing in row {missing[0]}; fill it in or remove the row.")
    if column.dtype.kind in NUMBERS:
        return names_of(column.to_numpy(), where, whole=whole)
    cells = column.astype(object).to_numpy()
    first: dict[str, int] = {}  # the row in which each name occurs first
    which = np.empty(len(cells), np.int64)
    for row, cell in enumerate(cells):
        if not isinstance(cell, str | bool):
            raise FedshiftError(
                f"{where} holds the {type(cell).__name__} {str(cell)!r:.100} in row {row}; give text or numbers."
            )
        which[row] = first.setdefault(str(cell), row)
    empty = [row for name, row in first.items() if not name.strip()]
    if empty:
        raise FedshiftError(f"{where} holds nothing in row {empty[0]}; fill it in or remove the row.")
    values = sorted(first)
    rows = [first[value] for value in values]
    place = np.empty(len(cells), np.int64)
    place[rows] = np.arange(len(rows))
    return Names(values, rows, torch.from_numpy(place[which]))


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


def _number(cell: object, row: int, where: str) -> float:
    """A number that pandas keeps as an object: a Decimal, a number of many digits, or text."""
    if isinstance(cell, str | int | float | Decimal) and not isinstance(cell, bool) and "_" not in str(cell):
        with suppress(ValueError, OverflowError):
            number = float(cell)
            if not isnan(number):
                return number
    raise FedshiftError(
        f"{where} holds {str(cell)!r:.100} ({type(cell).__name__}) in row {row}, and should hold numbers; write one, "
        "say what stands for nothing (--set data.missing=...), or name the columns to read (--set data.columns=...)."
    )


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
