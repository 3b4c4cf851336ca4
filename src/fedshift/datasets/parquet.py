"""A user's own images as Parquet with the columns image, domain and label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.catalogue import setting
from fedshift.data.dataset import DomainData, ImageDataset
from fedshift.data.images import Row, domain_data
from fedshift.errors import FedshiftError, need

COLUMNS = ("image", "domain", "label")


@dataclass(frozen=True, kw_only=True)
class ParquetFile(ImageDataset):
    """Parquet with ``image`` (bytes, or a struct with bytes, as the hub writes), ``domain`` and ``label``."""

    path: str = setting(help="a Parquet file, or a folder of them")

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain column."""
        table = self._table(["domain"])
        names = _class_names(table.schema)
        values = set(table["domain"].to_pylist())
        return tuple(sorted(class_name(f"in {self.path}", "domain", value, names["domain"]) for value in values))

    def read(self) -> DomainData:
        """Read every row."""
        table = self._table(list(COLUMNS))
        names = _class_names(table.schema)
        return domain_data(self._rows(table, names), self.size, self.channels, names["label"])

    def _table(self, columns: list[str]) -> Any:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise need("parquet", "Reading Parquet", error) from error
        path = Path(self.path).expanduser()
        if not path.exists():
            raise FedshiftError(f"data.path = '{self.path}' does not exist; give a Parquet file or a folder of them.")
        try:
            present = pyarrow.parquet.ParquetDataset(path).schema.names
            lacking = [name for name in COLUMNS if name not in present]
            if lacking:
                raise FedshiftError(
                    f"'{path}' has no column {', '.join(lacking)}; it has {', '.join(present)} "
                    f"and needs {', '.join(COLUMNS)}."
                )
            return pyarrow.parquet.read_table(path, columns=columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise FedshiftError(f"'{path}' cannot be read as Parquet ({error}).") from error

    def _rows(self, table: Any, names: dict[str, list[str] | None]) -> Iterator[Row]:
        row = 0
        for part in table.to_batches():
            for image, domain, label in zip(*(part[name].to_pylist() for name in COLUMNS), strict=True):
                where = f"in row {row} of {self.path}"
                yield (
                    where,
                    image_bytes(where, image),
                    class_name(where, "domain", domain, names["domain"]),
                    class_name(where, "label", label, names["label"]),
                )
                row += 1


def image_bytes(where: str, image: Any) -> bytes:
    """The encoded image of one row: bytes, or a struct with a bytes field."""
    data = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(data, bytes):
        raise FedshiftError(f"The image {where} holds no bytes. Write the encoded image into the column 'image'.")
    return data


def _class_names(schema: Any) -> dict[str, list[str] | None]:
    """Names that the hub's format keeps beside whole-number columns."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata.get("info", {}).get("features", {})
    return {column: features.get(column, {}).get("names") for column in ("domain", "label")}


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
