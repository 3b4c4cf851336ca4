"""An image data set of the Hugging Face hub with the columns image, domain and label."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.images import domain_data
from fedshift.datasets.tables import HubSource
from fedshift.federation.domains import DomainData
from fedshift.settings.catalogue import setting
from fedshift.streams import Streams


@dataclass(frozen=True, kw_only=True)
class HubDataset(ImageDataset):
    """A hub id such as flwrlabs/pacs, or a local folder in the hub's layout, read by the datasets library."""

    path: str = setting(help="the hub id, or a folder that the datasets library reads", path=True)
    split: str = setting("train", help="which split; 'train+test' joins two")

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain column."""
        return self._source().domains()

    def read(self, streams: Streams) -> DomainData:
        """Read every row of the split."""
        source = self._source()
        return domain_data(source.rows(), self.size, self.channels, source.classes())

    def _source(self) -> HubSource:
        return HubSource(self.path, split=self.split, given=f"data.path = '{self.path}'")
