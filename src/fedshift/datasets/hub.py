"""An image data set of the Hugging Face hub with the columns image, domain and label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.catalogue import setting
from fedshift.data.dataset import DomainData, ImageDataset
from fedshift.data.images import Row, domain_data
from fedshift.datasets.parquet import COLUMNS, class_name, image_bytes
from fedshift.errors import FedshiftError, need


@dataclass(frozen=True, kw_only=True)
class HubDataset(ImageDataset):
    """A hub id such as flwrlabs/pacs, or a local folder in the hub's layout, read by the datasets library."""

    path: str = setting(help="the hub id, or a folder that the datasets library reads")
    split: str = setting("train", help="which split")

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain column."""
        rows = self._load()
        names = self._names(rows, "domain")
        return tuple(sorted(class_name(f"in {self.path}", "domain", value, names) for value in set(rows["domain"])))

    def read(self) -> DomainData:
        """Read every row of the split."""
        rows = self._load()
        return domain_data(self._rows(rows), self.size, self.channels, self._names(rows, "label"))

    def _load(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise need("hub", "A data set of the hub", error) from error
        try:
            rows = datasets.load_dataset(self.path, split=self.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise FedshiftError(
                f"data.path = '{self.path}': the hub's data set could not be loaded ({error}). Where the hub cannot be "
                "reached, give a Parquet file of it instead: --set data.name=parquet --set data.path=FILE"
            ) from error
        lacking = [name for name in COLUMNS if name not in rows.column_names]
        if lacking:
            raise FedshiftError(
                f"'{self.path}' has no column {', '.join(lacking)}; it has {', '.join(rows.column_names)}."
            )
        return rows.cast_column("image", datasets.Image(decode=False))

    def _rows(self, rows: Any) -> Iterator[Row]:
        for index, row in enumerate(rows):
            where = f"in row {index} of {self.path}"
            image = row["image"]
            source = image_bytes(where, image) if image["bytes"] is not None else Path(image["path"])
            domain, label = (
                class_name(where, column, row[column], self._names(rows, column)) for column in COLUMNS[1:]
            )
            yield where, source, domain, label

    def _names(self, rows: Any, column: str) -> list[str] | None:
        return getattr(rows.features[column], "names", None)
