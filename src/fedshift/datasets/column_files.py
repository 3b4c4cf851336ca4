"""CSV and Parquet files: reading their columns, and what the data sets in them have in common.

pandas reads CSV and pyarrow Parquet; what they reject is raised again with the file's name.
"""

from __future__ import annotations

import codecs
import csv
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fedshift import parquet
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.labelled import (
    Array,
    Names,
    files_in,
    names_of,
    shown,
    sorted_names,
)
from fedshift.datasets.listing import reading
from fedshift.errors import FedshiftError, UnknownNameError, needs
from fedshift.spec import setting

SUFFIXES = (".csv", ".parquet")
SEPARATORS = ";\t|"  # that files have in the place of commas
USUAL = re.compile(r"(?!.{16})-?(0|[1-9]\d*)(\.0|\.\d*[1-9])?")  # a number of which a float keeps every digit
NUMBERS = "iuf"  # kinds of NumPy's types
ORIGIN = datetime(1970, 1, 1)  # from which days are counted
ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")


class Form(NamedTuple):
    """How CSV is written.

    Attributes:
        sep: what separates columns, a character.
        encoding: how text is encoded, as Python calls it.
    """

    sep: str = ","
    encoding: str = "utf-8-sig"  # with the mark that Excel writes, or without


CSV = Form()


class ColumnFiles(Dataset):
    """A file, or a folder of them, with a column of classes and, if a file is not a site, one of sites."""

    seeded: ClassVar[bool] = False
    kind: ClassVar[str] = "inputs"  # what columns without another use are, for messages
    apart: ClassVar[tuple[str, ...]] = ("domain",)  # settings beside the label's that name columns that are no inputs

    path: str = setting(help="a file that ends in .csv or .parquet, or a folder of them", path=True)
    label: str = setting("label", help="the column of the class")
    domain: str = setting("", help="the column of the domain (site); empty: a file is one domain, named like the file")
    sep: str = setting(",", help="separator of CSV columns: a character, or 'tab'", examples=(",", ";", "tab"))
    encoding: str = setting(
        "utf-8",
        help="how the text of CSV is encoded, such as cp1252 (Windows)",
        examples=("utf-8", "cp1252", "latin-1"),
    )

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _check_form(self.form)
        uses = [self.label, *self.inputs_named(), *self.named(*self.apart)]
        if not all(uses) or len({*uses}) < len(uses):
            raise FedshiftError(
                f"data.label = '{self.label}', and [data] names the columns {uses}: name the label's column, and each "
                "column once."
            )

    def inputs_named(self) -> tuple[str, ...]:
        return ()

    def domain_names(self) -> tuple[str, ...]:
        found = []
        for file in self.files():
            frame = self.read(file, (), self.named("domain")) if self.domain else ()
            found.append(self.domain_of(file, frame))
        return sorted_names("domain", found)

    @property
    def form(self) -> Form:
        sep = "\t" if self.sep in ("tab", r"\t") else self.sep
        encoding = CSV.encoding if self.encoding.lower() in ("utf-8", "utf8") else self.encoding
        return Form(sep, encoding)

    def files(self) -> list[Path]:
        return files_in(self.path, SUFFIXES)

    def suffixes(self) -> tuple[str, ...]:
        return SUFFIXES

    @property
    def other_columns(self) -> dict[str, str]:
        return self.named("label", *self.apart)

    def named(self, *uses: str) -> dict[str, str]:
        given = {use: getattr(self, use) for use in uses}
        columns = {use: (value,) if isinstance(value, str) else value for use, value in given.items()}
        return {name: f"data.{use}" for use, names in columns.items() for name in names if name}

    def read(self, file: Path, inputs: Sequence[str], named: Mapping[str, str], texts: Sequence[str] = ()) -> Any:
        """The columns of inputs and those that settings name, as a table of pandas; see :func:`read_columns`.

        Names of sites and similar are read as they are written: 01 is not 1.
        """
        present = column_names(file, self.form)
        check_present(file, present, {**named, **dict.fromkeys(inputs, "")}, self.kind, self.form)
        names = [name for name, setting in named.items() if setting in ("data.domain", "data.recording", "data.group")]
        read = [name for name, setting in named.items() if setting != "data.exclude"]
        return read_columns(file, [*inputs, *read], texts, names, self.form)

    def label_of(self, file: Path, frame: Any) -> Names:
        return names_in(frame, self.label, file, whole=True)

    def domain_of(self, file: Path, frame: Any) -> Names:
        """The domains of a file's rows, of which some columns are in a table of pandas."""
        return names_in(frame, self.domain, file) if self.domain else Names.all(file.stem, len(frame))


class InputColumns(ColumnFiles):
    """Files in which all columns that have no other use are inputs, unless they are named."""

    apart: ClassVar[tuple[str, ...]] = ("domain", "exclude")

    columns: tuple[str, ...] = setting((), help="the columns of the inputs, in order; none: all others")
    exclude: tuple[str, ...] = setting((), help="columns that are no inputs and are not read, such as a patient's id")

    def inputs_named(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.exclude)

    def input_columns(self) -> tuple[str, ...]:
        """The columns of the inputs: those that are named, or all others of the first file."""
        return self.inputs_named() or tuple(self.others(self.files()[0]))

    def others(self, file: Path) -> list[str]:
        """The columns of a file that have no other use."""
        present = column_names(file, self.form)
        check_present(file, present, self.other_columns, form=self.form)
        others = [name for name in present if name not in self.other_columns]
        if not others:
            raise FedshiftError(f"'{file}' has no column of {self.kind} beside {', '.join(self.other_columns)}.")
        index = next((name for name in others if not name.strip() or name.startswith("__index_level_")), None)
        if index is not None:
            raise FedshiftError(
                f"'{file}' has a column without a name ('{index}'), as pandas writes the index of its rows: write the "
                f"file with index=False, or name the {self.kind}: --set data.columns=..."
            )
        return others

    def check_same_columns(self, file: Path, inputs: Sequence[str]) -> None:
        """Raise an error if a file has other columns than the inputs, where these are not named."""
        more = [] if self.columns else [name for name in self.others(file) if name not in {*inputs}]
        if more:
            raise FedshiftError(
                f"'{file}' has the column '{more[0]}', which files before it lack; make them equal, or name the "
                f"{self.kind}: --set data.columns=..."
            )


# Columns of a file --------------------------------------------------------------------------------------


def column_names(file: Path, form: Form = CSV) -> list[str]:
    """The names of a file's columns, in order.

    Args:
        file: CSV (a first line of names) or Parquet.
        form: how CSV is written.
    """
    with _reading(file, form):
        if file.suffix.lower() == ".parquet":
            names = parquet.columns_of(file)
        else:
            with file.open(encoding=form.encoding, newline="") as opened:
                names = next(csv.reader(opened, delimiter=form.sep), [])
            parquet.check_width(file, len(names))
    if not names:
        raise FedshiftError(f"'{file}' is empty; its first line should name the columns.")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FedshiftError(f"'{file}' has two columns '{twice}'; give each a separate name.")
    return names


def check_present(
    file: Path, present: Sequence[str], named: Mapping[str, str], kind: str = "inputs", form: Form = CSV
) -> None:
    """Raise an error unless a file has some columns.

    Args:
        file: the file.
        present: its columns.
        named: the setting that names each column; empty where a column is one of inputs.
        kind: what inputs are called.
        form: how CSV is written.
    """
    there = {*present}
    for name, named_by in named.items():
        if name not in there:
            hint = f"Name it: --set {named_by}=COLUMN" if named_by else ""
            what = f"column ({named_by}) in '{file}'" if named_by else f"column of {kind} in '{file}'"
            hint = _other_separator(present[0], form) if len(present) == 1 else hint
            raise UnknownNameError(what, name, present, hint)


def _other_separator(line: str, form: Form) -> str:
    found = max((sep for sep in f",{SEPARATORS}" if sep != form.sep), key=line.count)
    if found in line:
        named = "tab" if found == "\t" else found
        return f"Its first line has '{named}' between names, and data.sep = '{form.sep}': --set 'data.sep={named}'"
    return f"Separate columns by '{form.sep}', or state what separates them: --set data.sep=..."


def _check_form(form: Form) -> None:
    """Refuse what separates no columns, and an encoding that there is not."""
    if len(form.sep) != 1 or form.sep in '"\r\n' or form.sep.isalnum():
        raise FedshiftError(
            f"data.sep = {form.sep!r}: give the character that separates columns, such as ',' or ';', or 'tab'."
        )
    try:
        "".encode(form.encoding)
        codecs.getincrementaldecoder(form.encoding)
    except (LookupError, ValueError) as error:
        raise FedshiftError(
            f"data.encoding = {form.encoding!r} is no encoding of text that Python knows; files of Windows are often "
            "cp1252, those of Excel's 'Unicode Text' utf-16."
        ) from error


def read_columns(
    file: Path, columns: Sequence[str], texts: Sequence[str] = (), names: Sequence[str] = (), form: Form = CSV
) -> Any:
    """Some columns of a file that has a row, as a table of pandas; empty cells of CSV are empty text.

    Args:
        file: CSV or Parquet.
        columns: which.
        texts: those of CSV that are text, also where digits are written in them.
        names: those of CSV that are text unless each cell is a number as it is usually written: 7, 7.0 or 7.5, and
            neither 07 nor 7.50.
        form: how CSV is written.
    """
    with needs("pandas", "Reading CSV and Parquet"):
        import pandas as pd
    with _reading(file, form), warnings.catch_warnings():
        if file.suffix.lower() == ".parquet":
            frame = parquet.read(file, columns).to_pandas(ignore_metadata=True)
        else:
            warnings.simplefilter("error", pd.errors.ParserWarning)  # that it drops what a row has too many
            frame = pd.read_csv(
                file,
                header=0,
                names=(present := column_names(file, form)),
                sep=form.sep,
                encoding=form.encoding,
                dtype=dict.fromkeys([*texts, *names], str),
                na_filter=False,
                low_memory=False,
                index_col=False,
                skip_blank_lines=len(present) > 1,  # of a single column, such a line is an empty cell
            )
            for name in names:
                if all(USUAL.fullmatch(cell.strip()) for cell in frame[name].unique()):
                    frame[name] = pd.to_numeric(frame[name].str.strip())
    if not len(frame):
        raise FedshiftError(f"'{file}' has no row; write one for each sample.")
    return frame[list(columns)]


@contextmanager
def _reading(file: Path, form: Form) -> Iterator[None]:
    fix = f"Write it again, with quotes around text that has {form.sep!r}."
    with reading(f"'{file}'", fix, " as a table"):
        try:
            yield
        except UnicodeError as error:
            encoding = "UTF-8" if form.encoding == CSV.encoding else form.encoding
            likely = "utf-16" if file.read_bytes()[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "cp1252"
            raise FedshiftError(
                f"'{file}' {_odd(error)}, which is no {encoding}: state how it is encoded, as in "
                f"--set data.encoding={likely}, or write it as UTF-8."
            ) from error


def _odd(error: UnicodeError) -> str:
    if not isinstance(error, UnicodeDecodeError):
        return f"begins otherwise ({error})"
    part = error.object[max(error.start - 20, 0) : error.end + 20]
    return f"contains the byte 0x{error.object[error.start]:02X} in {part!r}"


# Cells --------------------------------------------------------------------------------------------------


class Cells(NamedTuple):
    """A column of a file."""

    where: str  # the column and its file, for errors
    values: Array  # the cells, as pandas has them, (N,)
    numbers: Array  # their numbers (N,), float64; NaN for other cells
    missing: Array  # which cells contain nothing, (N,), bool

    @classmethod
    def of(cls, frame: Any, name: str, file: Path, missing: Sequence[str] = ()) -> Self:
        """A column of a table; a cell is empty if it is NaN, none, or one of some texts."""
        column = frame[name]
        values, nothing = column.to_numpy(), column.isna().to_numpy().copy()
        if values.dtype.kind in NUMBERS:
            numbers = values.astype(np.float64, copy=False)
        else:
            values = column.astype(object).to_numpy()
            nothing |= np.array([isinstance(value, str) and value.strip() in missing for value in values], bool)
            numbers = np.array([as_number(value) for value in values])
            numbers[nothing] = np.nan
        return cls(column_of(name, file), values, numbers, nothing)

    def first(self, where: Array) -> tuple[int, Any] | None:
        """The row and the value of the first of some cells (N,), bool; None: there is none."""
        rows = np.flatnonzero(where)
        return (int(rows[0]), self.values[rows[0]]) if len(rows) else None

    @property
    def words(self) -> Array:
        """Which cells contain something that is not a number, (N,), bool."""
        words: Array = np.isnan(self.numbers) & ~self.missing
        return words

    def dated(self) -> Self:
        """The column with its dates as numbers of days."""
        days = np.array([as_days(value) for value in self.values])
        days[self.missing] = np.nan
        wrong = self.first(np.isnan(days) & ~self.missing)
        if wrong is not None:
            raise FedshiftError(
                f"{self.where} (data.dates) contains {shown(wrong[1])} in row {wrong[0]}, and should contain dates "
                "that have one meaning only, 2020-01-31 or 2020-01-31 08:30 (ISO 8601): write it so, or state that it "
                "stands for nothing (--set data.missing=...)."
            )
        return self._replace(numbers=days)

    def check_whole(self, fix: str) -> None:
        """Raise an error that shows how to mend it if a cell is missing."""
        missing = self.first(self.missing)
        if missing is not None:
            raise FedshiftError(f"{self.where} is empty in row {missing[0]}; {fix}")

    def checked(self, more: str = "") -> Array:
        """The numbers of the cells (N,), float64; NaN where nothing is.

        Args:
            more: what else can be done about a cell that contains no number.
        """
        word = self.first(self.words)
        if word is not None:
            raise FedshiftError(
                f"{self.where} contains {shown(word[1])} in row {word[0]}, and should contain numbers; write one, "
                "state what stands for nothing (--set data.missing=...), or leave the column out (--set "
                "data.exclude=...)."
                f"{more}"
            )
        return self.numbers


def column_of(column: str, file: Path) -> str:
    return f"The column '{column}' of '{file}'"


def not_looked_at(file: Path, used: Collection[str], form: Form = CSV) -> tuple[str, ...]:
    others = [name for name in column_names(file, form) if name not in used]
    return (f"Columns that are ignored: {', '.join(others)} (of '{file}').",) if others else ()


def names_in(frame: Any, name: str, file: Path, *, whole: bool = False) -> Names:
    """A column of names or numbers, none of which is missing; see :func:`names_of`."""
    return names_of(frame[name].to_numpy(), column_of(name, file), whole=whole)


def as_number(cell: object) -> float:
    """The number that a cell contains, or that its text is; NaN: it contains none."""
    if isinstance(cell, str | int | float | np.number) and not isinstance(cell, bool) and "_" not in str(cell):
        with suppress(ValueError):
            return float(cell)
    return float("nan")


def as_days(cell: object) -> float:
    """The days from 1970-01-01 to a date or time, in UTC if it has an offset; NaN: not a date, or not in ISO 8601."""
    if isinstance(cell, str) and ISO.fullmatch(cell.strip()):
        with suppress(ValueError):
            cell = datetime.fromisoformat(cell.strip())
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime(cell.year, cell.month, cell.day)
    if not isinstance(cell, datetime):
        return float("nan")
    plain = cell if cell.tzinfo is None else cell.astimezone(UTC).replace(tzinfo=None)
    return (plain - ORIGIN).total_seconds() / 86400
