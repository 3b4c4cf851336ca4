"""Tables: one sample a row, whose columns may be prepared; and a user's own, as CSV or Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from fedshift.clients.domains import DomainData, Unlabelled
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import UNSEEN, Column, Preparation
from fedshift.datasets.column_files import NUMBERS, ORIGIN, Cells, InputColumns, as_number, column_of, not_looked_at
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.labelled import Array, Labelled, Names, beside, each_read, joined, names_of, shown, sorted_names
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.spec import FLOAT32, setting
from fedshift.streams import Streams

PREPARED = (
    " To have missing cells filled in, numbers standardised and text taken as categories: --set data.statistics=site "
    "(or pooled)"
)
DATED = " A column of dates becomes days: --set data.dates=NAME."
Bound = Annotated[float, Ge(-3e38), FLOAT32]
MOST_CATEGORIES = 1000  # of a column; one of more names its rows
# Numbers of another notation (1,5 or 1 000 or 10 %), dates and times: what is likely meant as a number.
NO_CATEGORY = re.compile(
    r"[-+]?[\d.,' \u00a0\u202f]*\d[.,]?\s*%?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"
)


class TableDataset(Dataset):
    """Rows, of which missing cells may be filled in, numbers standardised, and categories be one-hot."""

    seeded: ClassVar[bool] = False

    statistics: Literal["none", "site", "pooled", "combat"] = setting(
        "none",
        help="how rows are prepared: none: numbers stay as they are; site, pooled: by statistics of training rows, of "
        "each site or of all sites, from sums that each sends once; combat: pooled, and ComBat removes each site's "
        "differences in location and scale",
    )
    impute: Literal["mean", "median"] = setting(
        "mean", help="how a missing number is filled in; a missing category becomes the most frequent one"
    )
    indicate: tuple[str, ...] = setting(
        (), help="columns for which a further input indicates missing cells, such as a column that a site lacks"
    )
    pool: tuple[str, ...] = setting(
        (),
        help="with statistics = site: columns prepared by statistics of all sites, such as a column that a site lacks",
    )
    covariates: tuple[str, ...] = setting(
        (),
        help="with statistics = combat: covariates, which stay as they are and whose effects on other columns are kept",
    )

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        for name, fits in (
            ("indicate", self.prepared),
            ("pool", self.statistics == "site"),
            ("covariates", self._combat),
        ):
            if getattr(self, name) and not fits:
                instead = {"indicate": "site (or pooled, or combat)", "pool": "site", "covariates": "combat"}[name]
                raise FedshiftError(
                    f"data.{name} = {list(getattr(self, name))}, but data.statistics = '{self.statistics}', which does "
                    f"not prepare columns so: --set data.statistics={instead}"
                )
        if self.impute == "median" and (self.pool or self._combat or self.statistics == "pooled"):
            raise FedshiftError(
                "data.impute = 'median': the median of all sites' rows does not follow from what each can send of its "
                "own. Take the mean (--set data.impute=mean), or each site's own (--set data.statistics=site, and no "
                "data.pool)."
            )

    @property
    def _combat(self) -> bool:
        return self.statistics == "combat"

    @property
    def prepared(self) -> bool:
        return self.statistics != "none"

    def inputs(self) -> Inputs:
        """Rows as they are, or as they are prepared; the columns are known when the rows are read and divided."""
        if self.statistics == "none":
            return Inputs()
        preparation = Preparation(self.statistics, self.impute, covariates=self.covariates)
        return Inputs(preparation=replace(preparation, pool=self.pool, indicate=self.indicate))


class TableFile(InputColumns, TableDataset):
    """Columns of numbers or categories and one of classes, in CSV or Parquet; or one file a domain.

    *Choices.* Where every class of a CSV file is written as a number, "1" and "1.0" are the same class. A column in
    which no cell is a number contains categories; one of some numbers and some text is refused, and so is one of dates
    that ``dates`` does not name. Named, they are days since 1970-01-01 at every site; a time is a part of a day, and
    one with an offset is taken to UTC.
    The classes that ``label_above`` makes are called "num <= 0" and "num > 0", and come in this order.
    """

    label_above: Bound | None = setting(
        None,
        help="threshold that turns a numeric label into two classes, at most and above; none: the label is the class",
    )
    unlabelled: Literal["refused", "left-out"] = setting("refused", help="treatment of rows without a label")

    categories: tuple[str, ...] = setting(
        (), help="columns whose numbers are categories; columns of text are categories in any case"
    )
    dates: tuple[str, ...] = setting(
        (), help="columns of dates (2020-01-31 or 2020-01-31T08:30), which become days since 1970-01-01"
    )
    missing: tuple[str, ...] = setting(("",), help="texts that mean a missing cell, such as NA")

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.columns:
            self._check_uses(self.columns)
        if self.categories and not self.prepared:
            raise FedshiftError(
                f"data.categories = {list(self.categories)}, but data.statistics = 'none' takes every column as "
                "numbers: --set data.statistics=site (or pooled)"
            )

        if both := {*self.categories} & {*self.dates}:
            raise FedshiftError(f"The column '{min(both)}' is in data.categories and in data.dates: name it in one.")

    def _check_uses(self, columns: Sequence[str]) -> None:
        for use in ("categories", "dates"):
            for name in getattr(self, use):
                if name not in (*columns, *self.exclude):
                    raise UnknownNameError(f"column in data.{use}", name, columns)

    def load(self, streams: Streams) -> DomainData:
        """Read every row."""
        files = self.files()
        names = self.input_columns()
        self._check_uses(names)
        rows = each_read(lambda file: self._rows(file, names), files, f"things are wrong with the table '{self.path}'")
        cells = zip(*(read.cells for read in rows), strict=True)
        columns = tuple(self._column(name, own) for name, own in zip(names, cells, strict=True))
        parts = [read.labelled(self._numbers(read.cells, columns)) for read in rows]
        notes = [*_notes_on_dates(self.dates), *(_notes_on_reading(columns, parts) if self.prepared else ())]
        left_out = _notes_on_leaving_out(self.label, rows)
        return joined(parts, notes=(*beside(self.path, files), *left_out, *notes), columns=columns)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The columns that are requested, or that the settings, or the first file of the data, name."""
        columns = columns or [Column(name) for name in self.input_columns()]
        x, names = self.rows(file, columns), {column.name for column in columns}
        filled = _notes_on_filling(file, columns, x) if self.prepared else ()
        return Unlabelled(x, range(len(x)), (*not_looked_at(file, names, self.form), *filled))

    def rows(self, file: Path, columns: Sequence[Column]) -> Tensor:
        """The rows of a file, whose classes need not be known, as a model of some columns takes them.

        Args:
            file: the file.
            columns: the model's, as ``DomainData.columns`` or a run's blueprint has them.

        Returns:
            The rows (N, columns). Where they are prepared they are float64, with NaN where nothing is, and of
            categories the number, or -1 of one that the model does not know; else float32.
        """
        names = [column.name for column in columns]
        frame = self.read(file, names, {}, [column.name for column in columns if column.categories is not None])
        return torch.from_numpy(self._numbers(self._cells(frame, names, file), columns))

    def _cells(self, frame: Any, names: Sequence[str], file: Path) -> list[Cells]:
        cells = (Cells.of(frame, name, file, self.missing) for name in names)
        return [own.dated() if name in self.dates else own for name, own in zip(names, cells, strict=True)]

    def _rows(self, file: Path, names: Sequence[str]) -> _Rows:
        """A file, with the cells of its columns as they are, and the classes and domains of rows with a label."""
        frame = self.read(file, names, self.other_columns, self.categories)
        self.check_same_columns(file, names)
        cells = self._cells(frame, names, file)
        label, every = Cells.of(frame, self.label, file, self.missing), np.arange(len(frame))
        kept = every[~label.missing] if self.unlabelled == "left-out" else every
        if not len(kept):
            raise FedshiftError(f"{label.where} is empty in every row, and rows without a label are excluded.")
        with_label = frame.iloc[kept]
        return _Rows(str(file), cells, kept, self._classes(file, with_label, label), self.domain_of(file, with_label))

    def _classes(self, file: Path, frame: Any, label: Cells) -> Names:
        """The classes of rows: what the label states, or on which side of ``label_above`` it is."""
        if self.label_above is None and self.unlabelled == "refused":
            return self.label_of(file, frame)
        if self.unlabelled == "refused":
            label.check_whole("fill it in, or leave such rows out (--set data.unlabelled=left-out).")
        if self.label_above is None:  # with an empty cell, numbers of CSV are text
            cells = label.values if label.words.any() else label.numbers
            return names_of(cells[frame.index], label.where, whole=True)
        if (word := label.first(label.words)) is not None:
            raise FedshiftError(
                f"{label.where} contains {shown(word[1])} in row {word[0]}, but data.label_above = "
                f"{self.label_above:g} is for numbers: write one, state what stands for nothing (--set "
                "data.missing=...), or leave label_above out, and each text is a class."
            )
        above = label.numbers[frame.index] > self.label_above
        names = [f"{self.label} {sign} {self.label_above:g}" for sign in ("<=", ">")]
        return names_of(np.array(names, object)[above.astype(int)], label.where)

    def _column(self, name: str, cells: Sequence[Cells]) -> Column:
        """What a column contains in all files together."""
        words = [each for each in cells if each.words.any()]
        numbers = [each for each in cells if not np.isnan(each.numbers).all()]
        if not self.prepared or not (words or name in self.categories):
            return Column(name)
        if name not in self.categories:
            _check_categories(name, words, numbers)
        categories = sorted_names("category", [_categories(each, not words) for each in cells])
        if len(categories) > MOST_CATEGORIES:
            raise FedshiftError(
                f"{cells[0].where} has {len(categories)} categories, {MOST_CATEGORIES} at most can be inputs: leave it "
                f"out (--set data.exclude={name}), or write fewer."
            )
        return Column(name, categories)

    def _numbers(self, cells: Sequence[Cells], columns: Sequence[Column]) -> Array:
        """Numbers, or those of categories, (N, columns); of rows that are prepared float64, NaN where nothing is."""
        x = np.empty((len(cells[0].values), len(columns)), np.float64 if self.prepared else np.float32)
        for place, (column, own) in enumerate(zip(columns, cells, strict=True)):
            if not self.prepared:
                own.check_whole(f"fill it in or remove the row.{PREPARED}")
            if column.categories is not None:
                x[:, place] = _codes(own, column.categories)
            else:
                with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is refused
                    x[:, place] = own.checked(DATED if self.prepared else DATED + PREPARED)
        return x


class _Rows(NamedTuple):
    """What is read of a file."""

    where: str  # the file
    cells: list[Cells]  # the columns of inputs, each with every row
    kept: Array  # the rows that have a label, (N,)
    label: Names  # their classes
    domain: Names  # their domains

    def labelled(self, x: Array) -> Labelled:
        """The samples of the file, of the numbers x (rows, columns) of its cells."""
        rows = [f"row {row}" for row in self.kept] if len(self.kept) < len(x) else ()
        return Labelled(self.where, torch.from_numpy(x[self.kept]), self.label, self.domain, rows=rows)


def _check_categories(name: str, words: Sequence[Cells], numbers: Sequence[Cells]) -> None:
    """Refuse text beside numbers, and text that is likely meant as numbers."""
    row, value = words[0].first(words[0].words) or (0, "")
    if numbers:
        at, number = numbers[0].first(~np.isnan(numbers[0].numbers)) or (0, "")
        raise FedshiftError(
            f"{words[0].where} contains {shown(value)} in row {row}, but the number {number} in row {at} of "
            f"{numbers[0].where}: correct it, state that it stands for nothing (--set "
            f"data.missing={str(value)!r:.100}), or take all of the column as categories (--set "
            f"data.categories={name})."
        )
    if all(NO_CATEGORY.fullmatch(str(cell).strip()) for each in words for cell in each.values[each.words]):
        raise FedshiftError(
            f"{words[0].where} contains {shown(value)} in row {row}, and similar in every row: write numbers (1234.5 "
            f"for 1.234,5, 0.1 for 10 %), write dates as 2020-01-31 and name the column (--set data.dates={name}), "
            f"leave it out (--set data.exclude={name}), or take it as categories (--set data.categories={name})."
        )


def _categories(cells: Cells, numeric: bool) -> Names:
    rows = np.flatnonzero(~(np.isnan(cells.numbers) if numeric else cells.missing))
    values = cells.numbers if numeric and cells.values.dtype.kind not in NUMBERS else cells.values
    names = names_of(values[rows], cells.where)
    return names._replace(rows=rows[names.rows].tolist())


def _codes(cells: Cells, categories: Sequence[str]) -> Array:
    """The number of each cell's category, (N,), float64; of an unknown one UNSEEN."""
    numeric = not np.isnan([as_number(name) for name in categories]).any()
    found = _categories(cells, numeric)
    codes = {name: float(code) for code, name in enumerate(categories)}
    numbers = np.where(cells.missing, np.nan, UNSEEN)
    known = ~(np.isnan(cells.numbers) if numeric else cells.missing)
    numbers[known] = np.array([codes.get(str(value), UNSEEN) for value in found.values], float)[found.which.numpy()]
    return numbers


def _notes_on_dates(dates: Sequence[str]) -> Iterator[str]:
    if dates:
        yield f"Dates read as days since {ORIGIN:%Y-%m-%d}: {', '.join(map(repr, dates))}."


def _notes_on_reading(columns: Sequence[Column], parts: Sequence[Labelled]) -> Iterator[str]:
    named = [f"'{column.name}' ({len(column.categories)})" for column in columns if column.categories is not None]
    if named:
        yield f"Columns read as categories (how many): {', '.join(named)}."
    yield from _note_on_missing(columns, torch.stack([part.x.isnan().sum(dim=0) for part in parts]).sum(dim=0))


def _notes_on_leaving_out(label: str, rows: Sequence[_Rows]) -> Iterator[str]:
    every = sum(len(read.cells[0].values) for read in rows)
    kept = sum(len(read.kept) for read in rows)
    if kept < every:
        yield f"{every - kept} of {every} rows have no label ('{label}') and are excluded."


def _note_on_missing(columns: Sequence[Column], counts: Tensor, of: str = "") -> Iterator[str]:
    pairs = zip(columns, counts.tolist(), strict=True)
    listed = ", ".join(f"'{column.name}' ({count})" for column, count in pairs if count)
    if listed:
        yield f"Columns{of} with missing cells (how many), which are filled in: {listed}."


def _notes_on_filling(file: Path, columns: Sequence[Column], x: Tensor) -> Iterator[str]:
    """What stands for cells of rows x (N, columns) that are missing, or of categories that a model does not know."""
    yield from _note_on_missing(columns, x.isnan().sum(dim=0), f" of '{file}'")
    for place, column in enumerate(columns):
        rows = (x[:, place] == UNSEEN).nonzero().flatten().tolist()
        if column.categories is not None and rows:
            yield (
                f"{column_of(column.name, file)} contains categories that the model does not know in {len(rows)} rows, "
                f"the first in row {rows[0]}; they count as none of those that it knows: "
                f"{', '.join(column.categories)}."
            )
