"""Tables of images with the columns image, domain and label: Parquet files, and data sets of the Hugging Face hub.

Both are read by the datasets library, a few rows at a time, so that of a large table only what is decoded stays in
memory. Parquet is streamed from where it lies; a data set of the hub is downloaded into the library's cache.
"""

from __future__ import annotations

import glob
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fedshift import memory, parquet
from fedshift.datasets.cells import no_text
from fedshift.datasets.images import Encoded, Row, files_below, left_out
from fedshift.errors import FedshiftError, Problems, needs
from fedshift.federation.names import check_names
from fedshift.hub import answers, hub

BATCH = 256
LEAST = 1000  # bytes that the smallest image takes, with its tensor and its place


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


class Part(NamedTuple):
    """A file, or a split of the hub.

    Attributes:
        where: the file or the hub id, for errors.
        features: what each column holds.
        select: gives the library's data set of some of the columns.
    """

    where: str
    features: Mapping[str, Any]
    select: Callable[[list[str]], Any]

    def names(self, column: str) -> list[str] | None:
        """The names behind the numbers of a column, where the hub's format keeps them."""
        return getattr(self.features[column], "names", None)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Its rows, a few at a time, as tables of Arrow."""
        with _reading(self.where):
            batches = iter(self.select(columns).with_format("arrow").iter(BATCH))
        while True:
            with _reading(self.where):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def rows(self, columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Its rows: where each is, for errors, and its values."""
        row = 0
        for batch in self.batches(columns):
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError as error:
                raise no_text(batch, row, self.where) from error
            for values in rows:
                yield f"in row {row} of {self.where}", values
                row += 1


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
        return tuple(sorted(self._seen[self.columns.domain]))

    def classes(self) -> tuple[str, ...]:
        """The names that the hub's format keeps of the label column, or else its values."""
        names = self._checked[0].names(self.columns.label)
        return tuple(names) if names is not None else tuple(sorted(self.sizes()))

    def sizes(self) -> Counter[str]:
        """How many images each class has."""
        return self._seen[self.columns.label]

    def notes(self) -> tuple[str, ...]:
        """Nothing lies beside the rows."""
        return ()

    def check_here(self) -> None:
        """Whether the parts are there and have the columns."""
        _ = self._checked

    def others(self) -> list[str]:
        """The columns that are not read."""
        known = [*self.columns.image, *self.columns.others()]
        return sorted({name for part in self._checked for name in part.features if name not in known})

    def rows(self) -> Iterator[Row]:
        """Every row of every part."""
        _ = self._seen  # every name is checked before the first image is read
        for part in self._checked:
            image = self.columns.image_among(list(part.features), self.path)
            names = {column: part.names(column) for column in self.columns.others()}
            for where, values in part.rows([image, *names]):
                domain, label = (
                    _name(where, column, values[column], names[column], whole=column == self.columns.label)
                    if column
                    else ""
                    for column in (self.columns.domain, self.columns.label)
                )
                yield where, _image(values[image]), domain, label

    def parts(self) -> list[Part]:
        """What the table is made of, in order; nothing but its columns is read yet.

        Raises:
            FedshiftError: it is not there or cannot be read, or the datasets library is not installed.
        """
        raise NotImplementedError

    @cached_property
    def _checked(self) -> list[Part]:
        """The parts, each of which has the columns."""
        parts = self.parts()
        for part in parts:
            self.columns.image_among(list(part.features), self.path)
        return parts

    @cached_property
    def _seen(self) -> dict[str, Counter[str]]:
        """How often each name occurs in the columns of names, of which every cell is checked."""
        columns = self.columns.others()
        seen: dict[str, Counter[str]] = {column: Counter() for column in columns}
        places: dict[str, dict[str, str]] = {column: {} for column in columns}
        problems = Problems("cells hold no name that can be used")
        for part in self._checked if columns else []:
            names = {column: part.names(column) for column in columns}
            for where, values in part.rows(columns):
                for column, value in values.items():
                    with problems.gathered():
                        name = _name(where, column, value, names[column], whole=column == self.columns.label)
                        seen[column][name] += 1
                        places[column].setdefault(name, where)
        problems.check()
        for column in columns:
            kept = self._checked[0].names(column) or ()
            everywhere = dict.fromkeys(kept, f"a name of the column '{column}' of {self.path}")
            check_names("domain" if column == self.columns.domain else "class", everywhere | places[column])
        return seen


@dataclass(frozen=True)
class ParquetSource(TableSource):
    """The rows of a Parquet file, or of every Parquet file below a folder, in the order of their names."""

    def parts(self) -> list[Part]:
        """The files."""
        path = Path(self.path).expanduser()
        if not path.exists():
            raise FedshiftError(f"data.path = '{self.path}' does not exist; give a Parquet file or a folder of them.")
        files = parquet_files(path)
        if not files:
            raise FedshiftError(f"data.path = '{self.path}': no file below it ends in .parquet.")
        parts = [Part(str(file), _streamed(file).features, partial(_streamed, file)) for file in files]
        rows = sum(parquet.rows(file) for file in files)
        memory.check(rows * LEAST, f"The data set '{self.path}' of {rows:,} rows", "Give fewer rows.")
        return parts

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

    def parts(self) -> list[Part]:
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
        return [Part(self.path, table.features, table.select_columns)]


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


def _streamed(file: Path, columns: list[str] | None = None) -> Any:
    """A Parquet file as the library's iterable data set; no copy of it is made.

    ``load_dataset`` would do the same, but asks a server on the internet to count it. By default a group of rows, which
    may be the whole file, would be read ahead.
    """
    datasets = _library("Reading Parquet")
    from pyarrow.dataset import ParquetFragmentScanOptions

    # The library locks a folder of its cache even where it keeps nothing there.
    with TemporaryDirectory(prefix="fedshift-") as folder, _reading(str(file)):
        return datasets.IterableDataset.from_parquet(
            glob.escape(str(file)),
            columns=columns,
            batch_size=BATCH,
            cache_dir=folder,
            fragment_scan_options=ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False),
        )


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns the library's errors into ours; what it also logs of them would be said twice."""
    import pyarrow

    log = logging.getLogger("datasets.packaged_modules.parquet.parquet")
    silent, log.disabled = log.disabled, True
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise FedshiftError(f"'{where}' cannot be read as a table ({error}); write or download it again.") from error
    finally:
        log.disabled = silent


def _image(image: Any) -> Encoded:
    """The encoded image of a row: bytes, or a struct with bytes, or with the path of a file that is there; or None."""
    data, path = (image.get("bytes"), image.get("path")) if isinstance(image, dict) else (image, None)
    if isinstance(data, bytes):
        return data
    return Path(path) if data is None and isinstance(path, str) and os.path.isfile(path) else None  # noqa: PTH113


def _name(where: str, column: str, value: Any, names: list[str] | None, *, whole: bool) -> str:
    """The name behind a value of the domain or label column.

    A whole number that is kept as a float, as pandas does, is that number: 1.0 in a label column is the class "1".

    Args:
        where: the row.
        column: what its column is called.
        value: what it holds.
        names: the names behind numbers, where there are any.
        whole: whether numbers have to be whole, as those of classes do.

    Raises:
        FedshiftError: it is missing, no name or whole number, or no number of a known name.
    """
    number = isinstance(value, float | Decimal)
    if value is None or value == "" or (number and not math.isfinite(value)):
        shown = "" if value is None else f" (it is {str(value) or 'empty'} in the column '{column}')"
        raise FedshiftError(f"The image {where} has no {column}{shown}; fill it in or remove the row.")
    if number and (whole or names is not None):
        if value != int(value):
            raise FedshiftError(
                f"The image {where} has {value} in the column '{column}'; a {column} is a name or a whole number."
            )
        value = int(value)
    if isinstance(value, bytes | list | dict):
        raise FedshiftError(
            f"The image {where} has a {type(value).__name__} in the column '{column}'; a {column} is text or a number."
        )
    if names is None or not isinstance(value, int):
        return str(value)
    if not 0 <= value < len(names):
        raise FedshiftError(f"The image {where} has the {column} {value}, but there are {len(names)} names for it.")
    return names[value]
