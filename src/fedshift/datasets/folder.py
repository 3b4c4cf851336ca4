"""A user's own images as folder/domain/class/file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedshift.datasets.dataset import SourceDataset
from fedshift.datasets.images import Row
from fedshift.datasets.listing import files_below, is_image, left_out, subfolders
from fedshift.errors import FedshiftError
from fedshift.federation.names import check_names
from fedshift.settings.spec import setting


@dataclass(frozen=True)
class FolderSource:
    """Images in root/domain/class/file, or deeper below the class; other files are counted, but not read.

    Attributes:
        path: the root.
        reads: whether a file is an image.
    """

    path: str
    reads: Callable[[Path], bool] = is_image

    def domains(self) -> tuple[str, ...]:
        """The names of the first-level folders."""
        folders = subfolders(self._root())
        check_names("domain", {folder.name: f"folder '{folder}'" for folder in folders})
        return tuple(folder.name for folder in folders)

    def classes(self) -> tuple[str, ...]:
        """The names of the second-level folders that hold an image."""
        return tuple(sorted(self.sizes()))

    def sizes(self) -> Counter[str]:
        """How many images each class has."""
        return Counter(label for _, _, label in self.found)

    def notes(self) -> tuple[str, ...]:
        """The files that are not read, counted by suffix."""
        note = left_out(self._root(), (file for file, _, _ in self.found), self.reads)
        return (note,) if note else ()

    def check_here(self) -> None:
        """Whether the folder is there and has domains."""
        self.domains()

    def rows(self) -> Iterator[Row]:
        """Every image file, domain by domain and class by class."""
        return ((str(file), file, domain, label) for file, domain, label in self.found)

    @cached_property
    def found(self) -> list[tuple[Path, str, str]]:
        """Every image file with its domain and class.

        Raises:
            FedshiftError: the folder is none, cannot be read, is laid out otherwise, or a domain in it has no image.
        """
        self.domains()
        found: list[tuple[Path, str, str]] = []
        places: dict[str, str] = {}
        for domain in subfolders(self._root()):
            before = len(found)
            for label in subfolders(domain):
                files = [file for file in files_below(label) if self.reads(file)]
                found += [(file, domain.name, label.name) for file in files]
                if files:
                    places.setdefault(label.name, f"folder '{label}'")
            if len(found) == before:
                beside = left_out(domain, reads=self.reads)
                raise FedshiftError(f"The folder '{domain}' holds no image (domain/class/file). {beside}".rstrip())
        check_names("class", places)
        return found

    def _root(self) -> Path:
        root = Path(self.path).expanduser()
        if not self.path or not root.is_dir():
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
