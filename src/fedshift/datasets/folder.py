"""A user's own images as folder/domain/class/file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedshift.datasets.dataset import SourceDataset
from fedshift.datasets.images import Row, image_files, subfolders
from fedshift.errors import FedshiftError
from fedshift.settings.spec import setting


@dataclass(frozen=True)
class FolderSource:
    """Images in root/domain/class/file, or deeper below the class; other files are left alone."""

    path: str

    def domains(self) -> tuple[str, ...]:
        """The names of the first-level folders."""
        return tuple(folder.name for folder in subfolders(self._root()))

    def classes(self) -> tuple[str, ...]:
        """The names of the second-level folders that hold an image."""
        return tuple(sorted({label for _, _, _, label in self.rows()}))

    def rows(self) -> Iterator[Row]:
        """Every image file, domain by domain and class by class.

        Raises:
            FedshiftError: the folder is none, is laid out otherwise, or a domain in it has no image.
        """
        for domain in subfolders(self._root()):
            found = [(file, label.name) for label in subfolders(domain) for file in image_files(label)]
            if not found:
                raise FedshiftError(f"The domain folder '{domain}' holds no image (domain/class/file).")
            yield from ((str(file), file, domain.name, label) for file, label in found)

    def _root(self) -> Path:
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise FedshiftError(
                f"data.path = '{self.path}' is no folder; give one laid out as folder/domain/class/file."
            )
        if not any(subfolders(domain) for domain in subfolders(root)):
            raise FedshiftError(
                f"'{root}' has no folder in a folder; it should be laid out as folder/domain/class/file."
            )
        return root


@dataclass(frozen=True, kw_only=True)
class ImageFolder(SourceDataset):
    """Images in folder/domain/class/file: each first-level folder is a domain, each second a class."""

    path: str = setting(help="the folder that holds one folder a domain", path=True)

    def source(self) -> FolderSource:
        """The folder."""
        return FolderSource(self.path)
