"""Tables of images with the columns image, domain and label: Parquet files, and data sets of the Hugging Face hub.

Both are read a few rows at a time, so that of a large table only what is decoded stays in memory. Parquet is read from
where it lies; a data set of the hub is downloaded into the cache of the datasets library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedshift import parquet
from fedshift.datasets.images import Encoded, ImageRows
from fedshift.datasets.labelled import names_of
from fedshift.datasets.listing import files_below, left_out
from fedshift.errors import FedshiftError, needs
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


COLUMNS, ONE_DOMAIN = Columns(), Columns(domain="")


class ImageTable(NamedTuple):
    """A file, or a split of the hub.

    Attributes:
        where: the file or the hub id, for errors.
        rows: how many it has.
        features: what each column holds, as the datasets library has it.
        batches: gives some of the columns, a few rows at a time, as batches of Arrow.
    """

    where: str
    rows: int
    features: Mapping[str, Any]
    batches: Callable[[list[str]], Iterator[Any]]

    def known(self, column: str) -> list[str] | None:
        """The names behind the numbers of a column, where the hub's format keeps them."""
        return getattr(self.features[column], "names", None) if column else None

    def columns(self, name: str) -> Iterator[Any]:
        """A column, some rows at a time, as Arrow has it."""
        with _reading(self.where):
            for batch in self.batches([name]):
                yield batch[name]

    def names(self, column: str, *, whole: bool) -> list[str]:
        """The names in a column."""
        if not column or not self.rows:
            return [""] * self.rows
        known, where = self.known(column), f"The column '{column}' of '{self.where}'"
        cells = np.concatenate([some.to_numpy(zero_copy_only=False) for some in self.columns(column)])
        found, names = names_of(cells, where, whole=whole or known is not None), list[str]()
        for value, row in zip(found.values, found.rows, strict=True):
            if known is None or isinstance(value, str):
                names.append(str(value))
            elif 0 <= value < len(known):
                names.append(known[int(value)])
            else:
                raise FedshiftError(f"{where} holds {value} in row {row}, but there are {len(known)} names for it.")
        return [names[place] for place in found.which]


def parquet_images(path: str, columns: Columns = COLUMNS) -> ImageRows:
    """The images of a Parquet file, or of every Parquet file below a folder, in the order of their names.

    Raises:
        FedshiftError: there is none, it cannot be read, lacks a column, or has names that cannot be used.
    """
    root = Path(path).expanduser()
    files = parquet_files(root)
    if not files:
        what = "no file below it ends in .parquet" if root.exists() else "it does not exist"
        raise FedshiftError(f"data.path = '{path}': {what}; give a Parquet file or a folder of them.")
    notes = left_out(root, files) if root.is_dir() else ()
    return _images([_table_of(file) for file in files], columns, path, notes)


def hub_images(
    path: str,
    columns: Columns = COLUMNS,
    split: str = "train",
    *,
    configuration: str | None = None,
    given: str = "data.path = 'hub'",
    instead: str = "give a Parquet file of it: --set data.name=parquet --set data.path=FILE",
) -> ImageRows:
    """The images of a split of a hub id, or of a folder in the hub's layout.

    Args:
        path: the id or the folder.
        columns: what its columns are called.
        split: a split, or several as in "train+test".
        configuration: which of the hub id's configurations, where it has several.
        given: the setting that asked for it, for the error.
        instead: what to do where the hub cannot be reached, for the error.

    Raises:
        FedshiftError: it cannot be loaded, lacks a column, or has names that cannot be used.
    """
    datasets = _library("A data set of the hub")
    try:
        with hub(path):
            table = datasets.load_dataset(path, configuration, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise FedshiftError(
            f"{given}: {path} could not be loaded from the hub ({error}). Where the hub cannot be reached, {instead}"
        ) from error

    def batches(names: list[str]) -> Iterator[Any]:
        return iter(table.select_columns(names).with_format("arrow").iter(BATCH))

    return _images([ImageTable(path, len(table), table.features, batches)], columns, path)


def check_hub(images: Callable[[], ImageRows]) -> None:
    """Raise an error if a data set of the hub cannot be had: the hub does not answer, and there is no copy here."""
    if not answers():
        images()


def _images(tables: Sequence[ImageTable], columns: Columns, path: str, notes: tuple[str, ...] = ()) -> ImageRows:
    """The images of tables, whose columns of names are read."""
    found = [columns.image_among(list(table.features), path) for table in tables]
    domains, labels = (
        [name for table in tables for name in table.names(column, whole=column == columns.label)]
        for column in (columns.domain, columns.label)
    )

    def read() -> Iterator[tuple[str, Encoded]]:
        for table, image in zip(tables, found, strict=True):
            cells = (cell for some in table.columns(image) for cell in some.to_pylist())
            for row, cell in enumerate(cells):
                yield f"in row {row} of {table.where}", _image(cell)

    classes = tables[0].known(columns.label)
    return ImageRows(domains, labels, tuple(sorted(set(labels)) if classes is None else classes), read, notes)


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

    return ImageTable(str(file), opened.metadata.num_rows, features, batches)


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
