"""An image data set of the Hugging Face hub with the columns image, domain and label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.images import Row, domain_data
from fedshift.datasets.parquet import Columns, class_name, image_bytes
from fedshift.errors import FedshiftError, need
from fedshift.federation.domains import DomainData
from fedshift.settings.spec import setting
from fedshift.streams import Streams

PARQUET_INSTEAD = "give a Parquet file of it instead: --set data.name=parquet --set data.path=FILE"


@dataclass(frozen=True)
class HubSource:
    """A split of a hub id, or of a folder in the hub's layout, read by the datasets library.

    Attributes:
        path: the hub id or the folder.
        split: a split, or several as in "train+test".
        columns: what the columns are called.
        instead: what to do where the hub cannot be reached, for the error.
    """

    path: str
    split: str = "train"
    columns: Columns = Columns()
    instead: str = PARQUET_INSTEAD

    def domains(self) -> tuple[str, ...]:
        """The values of the domain column, without reading an image."""
        return self._values(self.columns.domain)

    def classes(self) -> tuple[str, ...]:
        """The names of the label column, or else its values."""
        names = self._names(self.columns.label)
        return tuple(names) if names is not None else self._values(self.columns.label)

    def rows(self) -> Iterator[Row]:
        """Every row of the split."""
        image = self._image
        for index, row in enumerate(self._table):
            where = f"in row {index} of {self.path}"
            encoded = row[image]
            source = image_bytes(where, encoded) if encoded["bytes"] is not None else Path(encoded["path"])
            domain, label = (
                class_name(where, column, row[column], self._names(column)) if column else ""
                for column in (self.columns.domain, self.columns.label)
            )
            yield where, source, domain, label

    @cached_property
    def _table(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise need("hub", "A data set of the hub", error) from error
        try:
            rows = datasets.load_dataset(self.path, split=self.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise FedshiftError(
                f"data.path = '{self.path}': the hub's data set could not be loaded ({error}). Where the hub cannot be "
                f"reached, {self.instead}"
            ) from error
        image = self.columns.image_among(rows.column_names, self.path)
        return rows.cast_column(image, datasets.Image(decode=False))

    @property
    def _image(self) -> str:
        return self.columns.image_among(self._table.column_names, self.path)

    def _values(self, column: str) -> tuple[str, ...]:
        names = self._names(column)
        values = self._table.unique(column)
        return tuple(sorted(class_name(f"in {self.path}", column, value, names) for value in values))

    def _names(self, column: str) -> list[str] | None:
        return getattr(self._table.features[column], "names", None)


@dataclass(frozen=True, kw_only=True)
class HubDataset(ImageDataset):
    """A hub id such as flwrlabs/pacs, or a local folder in the hub's layout, read by the datasets library."""

    path: str = setting(help="the hub id, or a folder that the datasets library reads", path=True)
    split: str = setting("train", help="which split; 'train+test' joins two")

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain column."""
        return HubSource(self.path, self.split).domains()

    def read(self, streams: Streams) -> DomainData:
        """Read every row of the split."""
        source = HubSource(self.path, self.split)
        return domain_data(source.rows(), self.size, self.channels, source.classes())
