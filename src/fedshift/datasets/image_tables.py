"""Where images lie: in folders, in Parquet files, or in a data set of the Hugging Face hub.

Tables have the columns image, domain and label. They are read a few rows at a time, so that of a large table only what
is decoded stays in memory. Parquet is read from where it lies; a data set of the hub is downloaded into the cache of
the datasets library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedshift import parquet
from fedshift.datasets.images import Encoded, ImageRows
from fedshift.datasets.labelled import names_of
from fedshift.datasets.listing import files_below, is_image, left_out, reading, subfolders
from fedshift.errors import FedshiftError, needs
from fedshift.hub import hub

BATCH = 256


class Columns(NamedTuple):
    """What the columns of a table of images are called."""

    image: tuple[str, ...] = ("image",)  # the image's names; the first one that the table has is taken
    label: str = "label"  # the class's name; empty for a table without classes, whose class is then called ""
    # the domain's name; empty for a table that is a single domain, whose domain is then called ""
    domain: str = "domain"

    def image_among(self, present: Sequence[str], where: str) -> str:
        """The image's column among those that are present."""
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
    """A file, or a split of the hub."""

    where: str  # the file or the hub id, for errors
    rows: int  # how many it has
    features: Mapping[str, Any]  # what each column contains, as the datasets library has it
    # gives some of the columns, a few rows at a time, as batches of Arrow
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
        if not column or not self.rows:
            return [""] * self.rows
        known, where = self.known(column), f"The column '{column}' of '{self.where}'"
        cells = np.concatenate([some.to_numpy(zero_copy_only=False) for some in self.columns(column)])
        found = names_of(cells, where, whole=whole or known is not None)
        for value, row in zip(found.values, found.rows, strict=True):
            if known is not None and (isinstance(value, str) or not 0 <= value < len(known)):
                raise FedshiftError(f"{where} contains {value} in row {row}, but there are {len(known)} names for it.")
        names = [str(value) if known is None else known[int(value)] for value in found.values]
        return [names[place] for place in found.which]


def images_at(path: str, columns: Columns = COLUMNS, levels: int = 2, given: str = "data.path") -> ImageRows:
    """The images of a Parquet file, of every Parquet file below a folder, or of folders of image files.

    Args:
        path: the file or the folder.
        columns: what a table's columns are called.
        levels: how many levels of folders there are, as for :func:`images_in`.
        given: the setting that requested it, for the error.
    """
    root = Path(path).expanduser()
    below = files_below(root) if path and root.is_dir() else []
    files = [root] if root.is_file() else [file for file in below if file.match("*.parquet")]
    if not files:
        return images_in(path, levels=levels, given=given)
    notes = left_out(root, files) if below else ()
    return _images([_table_of(file) for file in files], columns, path, notes)


def images_in(
    path: str, reads: Callable[[Path], bool] = is_image, levels: int = 2, given: str = "data.path"
) -> ImageRows:
    """The images in root/domain/class/file, or deeper below the class; other files are counted, but not read.

    Args:
        path: the root.
        reads: whether a file is an image.
        levels: 1: there are no folders of domains; 0: nor of classes.
        given: the setting that requested it, for the error.
    """
    root = Path(path).expanduser()
    folders = [root] if path and root.is_dir() else []
    for _ in range(levels):
        folders = [below for folder in folders for below in subfolders(folder)]
    if not folders:
        layout = "/".join(["folder", *("domain", "class")[2 - levels :], "file"])
        raise FedshiftError(f"{given} = '{path}': give a folder that is laid out as {layout}, or a Parquet file.")
    files, domains, labels = list[Path](), list[str](), list[str]()
    for folder in folders:
        own = [file for file in files_below(folder) if reads(file)]
        files += own
        domains += [folder.parent.name if levels == 2 else ""] * len(own)
        labels += [folder.name if levels else ""] * len(own)
    for domain in subfolders(root) if levels == 2 else ():
        if domain.name not in domains:
            beside = " ".join(left_out(domain))
            raise FedshiftError(
                f"The folder '{domain}' contains no image in domain/class/file ('medical' reads DICOM). {beside}"
            )
    classes = tuple(sorted({*labels}))
    return ImageRows(domains, labels, classes, lambda: ((str(file), file) for file in files), left_out(root, files))


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
        given: the setting that requested it, for the error.
        instead: what to do where the hub cannot be reached, for the error.
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


def _images(tables: Sequence[ImageTable], columns: Columns, path: str, notes: tuple[str, ...] = ()) -> ImageRows:
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

    classes = tuple(tables[0].known(columns.label) or sorted({*labels}))
    unknown = next((place for place, label in enumerate(labels) if label not in classes), None)
    if unknown is not None:
        where, _ = next(islice(read(), unknown, None))
        raise FedshiftError(
            f"The image {where} has the label '{labels[unknown]}', which is not among {', '.join(sorted(classes))}."
        )
    return ImageRows(domains, labels, classes, read, notes)


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


def _reading(where: str) -> AbstractContextManager[None]:
    return reading(f"'{where}'", "Write or download it again.", " as a table")


def _image(image: Any) -> Encoded:
    data, path = (image.get("bytes"), image.get("path")) if isinstance(image, dict) else (image, None)
    if isinstance(data, bytes):
        return data
    return Path(path) if data is None and isinstance(path, str) and os.path.isfile(path) else None  # noqa: PTH113
