"""Tables of images with the columns image, domain and label: Parquet files, and data sets of the Hugging Face hub.

Both are read a few rows at a time, so that of a large table only what is decoded stays in memory. Parquet is read from
where it lies; a data set of the hub is downloaded into the cache of the datasets library.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedshift import parquet
from fedshift.datasets.images import Encoded, Row
from fedshift.datasets.labelled import each_read, shown
from fedshift.datasets.listing import files_below, left_out
from fedshift.errors import FedshiftError, needs
from fedshift.federation.names import check_names
from fedshift.hub import answers, hub

BATCH = 256


class Columns(NamedTuple):
    """What the columns of a table of images are called.

    Attributes:
        image: the image's names; the first one that the table has is taken.
        label: the class's name; empty for a table without classes, whose class is then called "".
        domain: the domain's name; empty for a table that is a single domain, whose domain is then called "".
    """

    image: tuple[str, ...] = ("image",)
    label: str = "label"
    domain: str = "domain"

    def image_among(self, present: Sequence[str], where: str) -> str:
        """The image's column among those that are present.

        Raises:
            FedshiftError: a column is lacking; the message names it.
        """
        image = next((name for name in self.image if name in present), None)
        lacking = [] if image else [" or ".join(self.image)]
        lacking += [name for name in self.others() if name not in present]
        if image is None or lacking:
            needed = ", ".join((" or ".join(self.image), *self.others()))
            raise FedshiftError(
                f"'{where}' has no column {', '.join(lacking)}; it has {', '.join(present)} and needs {needed}."
            )
        return image

    def others(self) -> list[str]:
        """The columns of names: the domain's, where there is one, and the class's."""
        return [name for name in (self.domain, self.label) if name]


ONE_DOMAIN = Columns(domain="")


class ImageTable(NamedTuple):
    """A file, or a split of the hub.

    Attributes:
        where: the file or the hub id, for errors.
        features: what each column holds, as the datasets library has it.
        batches: gives some of the columns, a few rows at a time, as batches of Arrow.
    """

    where: str
    features: Mapping[str, Any]
    batches: Callable[[list[str]], Iterator[Any]]

    def known(self, column: str) -> list[str] | None:
        """The names behind the numbers of a column, where the hub's format keeps them."""
        return getattr(self.features[column], "names", None)

    def cells(self, column: str) -> Iterator[Any]:
        """The values of a column."""
        with _reading(self.where):
            for batch in self.batches([column]):
                yield from batch[column].to_pylist()

    def place(self, row: int) -> str:
        """Where a row is, for errors."""
        return f"in row {row} of {self.where}"


@dataclass(frozen=True)
class TableSource:
    """The rows of a table, whatever it is kept in.

    Attributes:
        path: where it lies, for errors too.
        columns: what its columns are called.
    """

    path: str
    columns: Columns = Columns()

    def domains(self) -> tuple[str, ...]:
        """The values of the domain column, without reading an image."""
        return tuple(sorted({name for names in self._names(self.columns.domain) for name in names}))

    def classes(self) -> tuple[str, ...]:
        """The names that the hub's format keeps of the label column, or else its values."""
        known = self._tables[0].known(self.columns.label)
        return tuple(known) if known is not None else tuple(sorted(self.sizes()))

    def sizes(self) -> Counter[str]:
        """How many images each class has."""
        return Counter(name for names in self._names(self.columns.label) for name in names)

    def notes(self) -> tuple[str, ...]:
        """Nothing lies beside the rows."""
        return ()

    def check_here(self) -> None:
        """Whether the tables are there and have the columns."""
        _ = self._tables

    def others(self) -> list[str]:
        """The columns that are not read."""
        known = [*self.columns.image, *self.columns.others()]
        return sorted({name for table in self._tables for name in table.features if name not in known})

    def rows(self) -> Iterator[Row]:
        """Every row of every table."""
        domains, labels = (
            self._names(column) if column else None for column in (self.columns.domain, self.columns.label)
        )
        for number, table in enumerate(self._tables):
            image = self.columns.image_among(list(table.features), self.path)
            for row, cell in enumerate(table.cells(image)):
                domain, label = (names[number][row] if names else "" for names in (domains, labels))
                yield table.place(row), _image(cell), domain, label

    def tables(self) -> list[ImageTable]:
        """What there is to read, in order; nothing but columns' names is read yet.

        Raises:
            FedshiftError: it is not there or cannot be read, or the datasets library is not installed.
        """
        raise NotImplementedError

    @cached_property
    def _tables(self) -> list[ImageTable]:
        """The tables, each of which has the columns."""
        tables = self.tables()
        for table in tables:
            self.columns.image_among(list(table.features), self.path)
        return tables

    def _names(self, column: str) -> list[list[str]]:
        """The names in a column, of every row of each table."""
        if column not in self._read:
            self._read[column] = [self._names_in(table, column) for table in self._tables]
            places = dict.fromkeys(
                self._tables[0].known(column) or (), f"a name of the column '{column}' of {self.path}"
            )
            for table, names in zip(self._tables, self._read[column], strict=True):
                for row, name in enumerate(names):
                    if name not in places:
                        places[name] = table.place(row)
            check_names("domain" if column == self.columns.domain else "class", places)
        return self._read[column]

    @cached_property
    def _read(self) -> dict[str, list[list[str]]]:
        return {}

    def _names_in(self, table: ImageTable, column: str) -> list[str]:
        known, whole = table.known(column), column == self.columns.label
        return each_read(
            lambda cell: _name(table.place(cell[0]), column, cell[1], known, whole=whole),
            enumerate(table.cells(column)),
            "cells hold no name that can be used",
        )


@dataclass(frozen=True)
class ParquetSource(TableSource):
    """The rows of a Parquet file, or of every Parquet file below a folder, in the order of their names."""

    def tables(self) -> list[ImageTable]:
        """The files."""
        path = Path(self.path).expanduser()
        files = parquet_files(path)
        if not files:
            what = "no file below it ends in .parquet" if path.exists() else "it does not exist"
            raise FedshiftError(f"data.path = '{self.path}': {what}; give a Parquet file or a folder of them.")
        return [_table_of(file) for file in files]

    def notes(self) -> tuple[str, ...]:
        """The files beside Parquet, counted by suffix."""
        path = Path(self.path).expanduser()
        note = left_out(path, parquet_files(path)) if path.is_dir() else ""
        return (note,) if note else ()


@dataclass(frozen=True)
class HubSource(TableSource):
    """A split of a hub id, or of a folder in the hub's layout.

    Attributes:
        split: a split, or several as in "train+test".
        configuration: which of the hub id's configurations, where it has several.
        given: the setting that asked for it, for the error.
        instead: what to do where the hub cannot be reached, for the error.
    """

    split: str = "train"
    configuration: str | None = None
    given: str = "data.path = 'hub'"
    instead: str = "give a Parquet file of it: --set data.name=parquet --set data.path=FILE"

    def check_here(self) -> None:
        """Whether the hub can be reached, or this machine holds a copy."""
        if not answers():
            super().check_here()

    def tables(self) -> list[ImageTable]:
        """The split, as a whole."""
        datasets = _library("A data set of the hub")
        try:
            with hub(self.path):
                table = datasets.load_dataset(self.path, self.configuration, split=self.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise FedshiftError(
                f"{self.given}: {self.path} could not be loaded from the hub ({error}). Where the hub cannot be "
                f"reached, {self.instead}"
            ) from error

        def batches(columns: list[str]) -> Iterator[Any]:
            return iter(table.select_columns(columns).with_format("arrow").iter(BATCH))

        return [ImageTable(self.path, table.features, batches)]


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or every Parquet file below a folder, sorted."""
    if path.is_file():
        return [path]
    return [file for file in files_below(path) if file.match("*.parquet")] if path.is_dir() else []


def _library(feature: str) -> Any:
    with needs("parquet", feature):
        import datasets
        import huggingface_hub  # noqa: F401  # reads hub ids for it
        import pyarrow  # noqa: F401  # reads files for it
    return datasets


def _table_of(file: Path) -> ImageTable:
    datasets = _library("Reading Parquet")
    with _reading(str(file)):
        opened = parquet.opened(file)
        features = datasets.Features.from_arrow_schema(opened.schema_arrow)

    def batches(columns: list[str]) -> Iterator[Any]:
        return iter(parquet.opened(file).iter_batches(BATCH, columns=columns))

    return ImageTable(str(file), features, batches)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, LookupError, NotImplementedError) as error:
        raise FedshiftError(f"'{where}' cannot be read as a table ({error}); write or download it again.") from error


def _image(image: Any) -> Encoded:
    """The encoded image of a row: bytes, or a struct with bytes, or with the path of a file that is there; or None."""
    data, path = (image.get("bytes"), image.get("path")) if isinstance(image, dict) else (image, None)
    if isinstance(data, bytes):
        return data
    return Path(path) if data is None and isinstance(path, str) and os.path.isfile(path) else None  # noqa: PTH113


def _name(where: str, column: str, value: Any, known: list[str] | None, *, whole: bool) -> str:
    """The name behind a value of the domain or label column.

    Args:
        where: the row.
        column: what its column is called.
        value: what it holds.
        known: the names behind numbers, where there are any.
        whole: whether numbers have to be whole, as those of classes do; 1.0 is then called "1".

    Raises:
        FedshiftError: it is missing, no name or whole number, or no number of a known name.
    """
    if isinstance(value, float) and (whole or known is not None) and value.is_integer():
        value = int(value)
    usable = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value) and not whole)
    if not usable or not str(value).strip():
        raise FedshiftError(
            f"The image {where} has {shown(value)} in the column '{column}'; a {column} is a name or a whole number: "
            "fill it in or remove the row."
        )
    if known is None or not isinstance(value, int):
        return str(value)
    if not 0 <= value < len(known):
        raise FedshiftError(f"The image {where} has the {column} {value}, but there are {len(known)} names for it.")
    return known[value]
