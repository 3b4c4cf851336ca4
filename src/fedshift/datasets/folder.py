"""A user's own images as folder/domain/class/file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.images import Row, domain_data
from fedshift.errors import FedshiftError
from fedshift.federation.domains import DomainData
from fedshift.settings.spec import setting
from fedshift.streams import Streams


@dataclass(frozen=True)
class FolderSource:
    """Images in root/domain/class/file, or deeper below the class; other files are left alone."""

    path: str

    def domains(self) -> tuple[str, ...]:
        """The names of the first-level folders."""
        return tuple(folder.name for folder in _folders(self._root()))

    def classes(self) -> tuple[str, ...]:
        """The names of the second-level folders that hold an image."""
        return tuple(sorted({label for _, _, _, label in self.rows()}))

    def rows(self) -> Iterator[Row]:
        """Every image file, domain by domain and class by class.

        Raises:
            FedshiftError: the folder is none, is laid out otherwise, or a domain in it has no image.
        """
        known = Image.registered_extensions()
        for domain in _folders(self._root()):
            empty = True
            for label in _folders(domain):
                for file in sorted(label.rglob("*")):
                    if file.suffix.lower() in known and file.is_file() and not file.name.startswith("."):
                        empty = False
                        yield str(file), file, domain.name, label.name
            if empty:
                raise FedshiftError(f"The domain folder '{domain}' holds no image (domain/class/file).")

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


@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageDataset):
    """Images in folder/domain/class/file: each first-level folder is a domain, each second a class."""

    path: str = setting(help="the folder that holds one folder a domain", path=True)

    def domain_names(self) -> tuple[str, ...]:
        """The names of the first-level folders."""
        return FolderSource(self.path).domains()

    def read(self, streams: Streams) -> DomainData:
        """Read every image file; other files are left alone."""
        return domain_data(FolderSource(self.path).rows(), self.size, self.channels)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
