"""An image data set of the Hugging Face hub with the columns image, domain and label."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.datasets.dataset import SourceDataset
from fedshift.datasets.image_tables import HubSource
from fedshift.settings.spec import setting


@dataclass(frozen=True, kw_only=True)
class HubDataset(SourceDataset):
    """A hub id such as flwrlabs/pacs, or a local folder in the hub's layout, read by the datasets library."""

    path: str = setting(help="the hub id, or a folder that the datasets library reads", path=True)
    split: str = setting("train", help="which split; 'train+test' joins two")

    def source(self) -> HubSource:
        """The split."""
        return HubSource(self.path, split=self.split, given=f"data.path = '{self.path}'")
