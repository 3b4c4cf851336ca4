"""A user's own table of numbers, as CSV or Parquet: one sample a row."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift import memory
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.parts import Array, Names, Part, beside, check_each, domain_names, files_in, joined, names_of
from fedshift.errors import FedshiftError, Problems, UnknownNameError, need
from fedshift.federation.domains import DomainData, Unlabelled
from fedshift.settings.spec import setting
from fedshift.streams import Streams

SUFFIXES = (".csv", ".parquet")
ENCODING = "utf-8-sig"  # with the mark that Excel writes, or without
NUMBERS = "iuf"  # kinds of NumPy's types


@dataclass(frozen=True, kw_only=True)
class NumberTable(Dataset):
    """Columns of numbers and one of classes, in CSV (commas, UTF-8, a line of names) or Parquet; or one file a domain.

    *Choices.* Numbers are taken as they are, without scaling. Where every class of a CSV file is written as a number,
    "1" and "1.0" are the same class.
    """

    path: str = setting(help="a file that ends in .csv or .parquet, or a folder of them", path=True)
    label: str = setting("label", help="the column of the class")
    domain: str = setting("", help="the column of the domain; empty: a file is one domain, named like the file")
    columns: tuple[str, ...] = setting((), help="the columns of the inputs, in order; none: all others")

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

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain's column, or the files' names."""
        files = files_in(self.path, SUFFIXES)
        return domain_names([(str(file), self._domains(file)) for file in files])

    def load(self, streams: Streams) -> DomainData:
        """Read every row."""
        files = files_in(self.path, SUFFIXES)
        memory.check(sum(file.stat().st_size for file in files), f"The table '{self.path}'", "Give fewer rows.")
        columns: Sequence[str] = self.columns
        parts: list[Part] = []
        problems = Problems(f"things are wrong with the table '{self.path}'")
        for file in files:
            with problems.gathered():
                columns = columns or self._first(file)
                parts.append(self._part(file, columns))
        problems.check()
        return joined(parts, notes=beside(self.path, files))

    def suffixes(self) -> tuple[str, ...]:
        """CSV and Parquet."""
        return SUFFIXES

    def samples(self, file: Path) -> Unlabelled:
        """The columns that were trained on; the first file of these says which, where ``columns`` does not."""
        columns, present = list(self.columns or self._first(files_in(self.path, SUFFIXES)[0])), _columns(file)
        for name in columns:
            if name not in present:
                raise UnknownNameError(f"column of numbers in '{file}'", name, present)
        problems = Problems(f"columns of '{file}' cannot be used")
        x = self._inputs(file, _read(file, columns), columns, problems)
        problems.check()
        others = [name for name in present if name not in columns]
        note = f"Columns that are not looked at: {', '.join(others)} (of '{file}')."
        return Unlabelled(torch.from_numpy(x), range(len(x)), (note,) if others else ())

    def _part(self, file: Path, columns: Sequence[str]) -> Part:
        """The rows of a file."""
        present = _columns(file)
        self._check_columns(file, present, columns)
        frame = _read(file, [*columns, *self._named_apart])
        problems = Problems(f"columns of '{file}' cannot be used")
        x = self._inputs(file, frame, columns, problems)
        with problems.gathered():
            y = _names(frame[self.label], f"The column '{self.label}' of '{file}'", whole=True)
        with problems.gathered():
            domains = self._named(file, frame)
        problems.check()
        return Part(str(file), torch.from_numpy(x), y, domains)

    def _inputs(self, file: Path, frame: Any, columns: Sequence[str], problems: Problems) -> Array:
        """The columns of numbers, (N, columns), float32; what is wrong with some is gathered."""
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        x = np.empty((len(frame), len(columns)), np.float32)
        for number, name in enumerate(columns):
            with problems.gathered():
                x[:, number] = _numbers(frame[name], f"The column '{name}' of '{file}'")
        return x

    def _first(self, file: Path) -> list[str]:
        """The columns of numbers of the first file, where they are not named; others should have the same."""
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
        """Every column that is read is there; where those of numbers are not named, there is no other.

        Raises:
            FedshiftError: they are not.
        """
        self._check_named(file, present)
        for name in columns:
            if name not in present:
                raise UnknownNameError(f"column of numbers in '{file}'", name, present)
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


def _numbers(column: Any, where: str) -> Array:
    """A column of numbers as float32, (N,)."""
    values = _whole_column(column, where)
    if values.dtype.kind not in NUMBERS:
        values = np.array([_number(value, row, where) for row, value in enumerate(values)])
    limit = np.finfo(np.float32).max
    check_each(values, lambda some: ~(np.abs(some.astype(np.float64)) <= limit), where, "a finite number of float32")
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


def _whole_column(column: Any, where: str) -> Array:
    """A column of pandas, of which no cell is missing; numbers as they are, all else as Python's objects."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        more = f", and in {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FedshiftError(f"{where} holds nothing in row {missing[0]}{more}; fill it in or remove the row.")
    values: Array = column.to_numpy()
    return values if values.dtype.kind in NUMBERS else column.astype(object).to_numpy()


def _number(value: object, row: int, where: str) -> float:
    """A number that pandas keeps as an object: a Decimal, a number of many digits, or text."""
    if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool) and "_" not in str(value):
        with suppress(ValueError):
            return float(value)
    shown = f"{str(value)!r:.100} ({type(value).__name__})" if str(value).strip() else "nothing"
    raise FedshiftError(
        f"{where} holds {shown} in row {row}, and should hold numbers; write one, fill it in, or name the columns to "
        "read: --set data.columns=..."
    )


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
