"""A user's own images as Parquet with the columns image, domain and label."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.datasets.dataset import SourceDataset
from fedshift.datasets.image_tables import ParquetSource
from fedshift.settings.spec import setting


@dataclass(frozen=True, kw_only=True)
class ParquetFile(SourceDataset):
    """Parquet with ``image`` (bytes, or a struct with bytes, as the hub writes), ``domain`` and ``label``."""

    path: str = setting(help="a Parquet file, or a folder of them", path=True)

    def source(self) -> ParquetSource:
        """The file or files."""
        return ParquetSource(self.path)
