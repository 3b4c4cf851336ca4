"""A user's own images as Parquet with the columns image, domain and label."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.images import domain_data
from fedshift.datasets.tables import ParquetSource
from fedshift.federation.domains import DomainData
from fedshift.settings.catalogue import setting
from fedshift.streams import Streams


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
