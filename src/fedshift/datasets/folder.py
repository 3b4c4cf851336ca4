"""A user's own images as folder/domain/class/file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fedshift.catalogue import setting
from fedshift.data.dataset import DomainData, ImageDataset
from fedshift.data.images import Row, domain_data
from fedshift.errors import FedshiftError


@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageDataset):
    """Images in folder/domain/class/file: each first-level folder is a domain, each second a class."""

    path: str = setting(help="the folder that holds one folder a domain")

    def domain_names(self) -> tuple[str, ...]:
        """The names of the first-level folders."""
        return tuple(folder.name for folder in _folders(self._root()))

    def read(self) -> DomainData:
        """Read every image file; other files are left alone."""
        data = domain_data(self._rows(), self.size, self.channels)
        empty = sorted(set(self.domain_names()) - set(data.domains))
        if empty:
            raise FedshiftError(f"The domain folder '{self._root() / empty[0]}' holds no image (domain/class/file).")
        return data

    def _root(self) -> Path:
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise FedshiftError(
                f"data.path = '{self.path}' is no folder; give one laid out as folder/domain/class/file."
            )
        if not any(_folders(domain) for domain in _folders(root)):
            raise FedshiftError(
                f"'{root}' has no folder in a folder; it should be laid out as folder/domain/class/file."
            )
        return root

    def _rows(self) -> Iterator[Row]:
        known = Image.registered_extensions()
        for domain in _folders(self._root()):
            for label in _folders(domain):
                for file in sorted(label.rglob("*")):
                    if file.suffix.lower() in known and file.is_file() and not file.name.startswith("."):
                        yield str(file), file, domain.name, label.name


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
