"""A user's own images as Parquet with the columns image, domain and label.

The rows are read a few at a time, so that of a large table only what is decoded stays in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.images import Row, domain_data
from fedshift.errors import FedshiftError, need
from fedshift.federation.domains import DomainData
from fedshift.settings.spec import setting
from fedshift.streams import Streams


class Columns(NamedTuple):
    """What the columns of a table of images are called.

    Attributes:
        image: the image's names; the first one that the table has is taken.
        label: the class's name.
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


@dataclass(frozen=True)
class ParquetSource:
    """The rows of a Parquet file, or of every Parquet file below a folder, in the order of their names."""

    path: str
    columns: Columns = Columns()

    def domains(self) -> tuple[str, ...]:
        """The values of the domain column, without reading an image."""
        return self._values(self.columns.domain)

    def classes(self) -> tuple[str, ...]:
        """The names that the hub's format keeps of the label column, or else its values."""
        names = _hub_names(self._files()[0].schema_arrow, self.columns.label)
        return tuple(names) if names is not None else self._values(self.columns.label)

    def rows(self) -> Iterator[Row]:
        """Every row of every file."""
        row = 0
        for file in self._files():
            image = self.columns.image_among(file.schema_arrow.names, self.path)
            names = {column: _hub_names(file.schema_arrow, column) for column in self.columns.others()}
            for part in _batches(file, [image, *names], self.path):
                for values in part.to_pylist():
                    where = f"in row {row} of {self.path}"
                    domain, label = (
                        class_name(where, column, values[column], names[column]) if column else ""
                        for column in (self.columns.domain, self.columns.label)
                    )
                    yield where, image_bytes(where, values[image]), domain, label
                    row += 1

    def _values(self, column: str) -> tuple[str, ...]:
        found: set[str] = set()
        for file in self._files():
            names = _hub_names(file.schema_arrow, column)
            for part in _batches(file, [column], self.path):
                found |= {class_name(f"in {self.path}", column, v, names) for v in part[column].unique().to_pylist()}
        return tuple(sorted(found))

    def _files(self) -> list[Any]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise need("parquet", "Reading Parquet", error) from error
        path = Path(self.path).expanduser()
        if not path.exists():
            raise FedshiftError(f"data.path = '{self.path}' does not exist; give a Parquet file or a folder of them.")
        files = parquet_files(path)
        if not files:
            raise FedshiftError(f"data.path = '{self.path}': no file below it ends in .parquet.")
        try:
            opened = [pyarrow.parquet.ParquetFile(file) for file in files]
        except (pyarrow.ArrowException, OSError) as error:
            raise FedshiftError(f"'{path}' cannot be read as Parquet ({error}).") from error
        for table in opened:
            self.columns.image_among(table.schema_arrow.names, self.path)
        return opened


@dataclass(frozen=True, kw_only=True)
class ParquetFile(ImageDataset):
    """Parquet with ``image`` (bytes, or a struct with bytes, as the hub writes), ``domain`` and ``label``."""

    path: str = setting(help="a Parquet file, or a folder of them", path=True)

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain column."""
        return ParquetSource(self.path).domains()

    def read(self, streams: Streams) -> DomainData:
        """Read every row."""
        source = ParquetSource(self.path)
        return domain_data(source.rows(), self.size, self.channels, source.classes())


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or every Parquet file below a folder, sorted."""
    return [path] if path.is_file() else sorted(path.rglob("*.parquet"))


def _batches(file: Any, columns: list[str], where: str) -> Iterator[Any]:
    import pyarrow

    try:
        yield from file.iter_batches(batch_size=256, columns=columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise FedshiftError(f"'{where}' cannot be read as Parquet ({error}).") from error


def image_bytes(where: str, image: Any) -> bytes:
    """The encoded image of one row: bytes, or a struct with a bytes field."""
    data = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(data, bytes):
        raise FedshiftError(f"The image {where} holds no bytes. Write the encoded image into its column.")
    return data


def _hub_names(schema: Any, column: str) -> list[str] | None:
    """Names that the hub's format keeps beside a whole-number column."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names: list[str] | None = metadata.get("info", {}).get("features", {}).get(column, {}).get("names")
    return names


def class_name(where: str, column: str, value: Any, names: list[str] | None) -> str:
    """The name behind one value of the domain or label column.

    Raises:
        FedshiftError: it is missing, or no number of a known name.
    """
    if value is None:
        raise FedshiftError(f"The image {where} has no {column}; fill it in or remove the row.")
    if names is None or not isinstance(value, int):
        return str(value)
    if not 0 <= value < len(names):
        raise FedshiftError(f"The image {where} has the {column} {value}, but there are {len(names)} names for it.")
    return names[value]
