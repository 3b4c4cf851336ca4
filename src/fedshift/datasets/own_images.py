"""A user's own images: in folders, in Parquet, or as a data set of the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedshift.datasets.dataset import SourceDataset
from fedshift.datasets.image_tables import check_hub, hub_images, parquet_images
from fedshift.datasets.images import ImageRows
from fedshift.datasets.listing import files_below, is_image, left_out, subfolders
from fedshift.errors import FedshiftError
from fedshift.spec import setting


def images_in(path: str, reads: Callable[[Path], bool] = is_image) -> ImageRows:
    """The images in root/domain/class/file, or deeper below the class; other files are counted, but not read.

    Args:
        path: the root.
        reads: whether a file is an image.

    Raises:
        FedshiftError: the folder is none, cannot be read, is laid out otherwise, or a domain in it has no image.
    """
    root = Path(path).expanduser()
    if not path or not root.is_dir() or not any(subfolders(domain) for domain in subfolders(root)):
        raise FedshiftError(f"data.path = '{path}' is no folder that is laid out as folder/domain/class/file.")
    files, domains, labels = list[Path](), list[str](), list[str]()
    for domain in subfolders(root):
        before = len(files)
        for label in subfolders(domain):
            own = [file for file in files_below(label) if reads(file)]
            files += own
            domains += [domain.name] * len(own)
            labels += [label.name] * len(own)
        if len(files) == before:
            beside = " ".join(left_out(domain))
            raise FedshiftError(
                f"The folder '{domain}' holds no image in domain/class/file ('medical' reads DICOM). {beside}"
            )
    classes = tuple(sorted(set(labels)))
    return ImageRows(domains, labels, classes, lambda: ((str(file), file) for file in files), left_out(root, files))


class ImageFolder(SourceDataset):
    """Images in folder/domain/class/file: each first-level folder is a domain, each second a class."""

    path: str = setting(help="the folder that holds one folder a domain", path=True)

    def found(self) -> ImageRows:
        """The images of the folder."""
        return images_in(self.path)


class ParquetFile(SourceDataset):
    """Parquet with ``image`` (bytes, or a struct with bytes, as the hub writes), ``domain`` and ``label``."""

    path: str = setting(help="a Parquet file, or a folder of them", path=True)

    def found(self) -> ImageRows:
        """The images of the file or files."""
        return parquet_images(self.path)


class HubDataset(SourceDataset):
    """A hub id such as flwrlabs/pacs, or a local folder in the hub's layout, read by the datasets library."""

    path: str = setting(help="the hub id, or a folder that the datasets library reads", path=True)
    split: str = setting("train", help="which split; 'train+test' joins two")

    def found(self) -> ImageRows:
        """The images of the split."""
        return hub_images(self.path, split=self.split, given=f"data.path = '{self.path}'")

    def check_here(self) -> None:
        """Whether the hub can be reached, or this machine holds a copy."""
        self.frozen_network()
        check_hub(self.found)
