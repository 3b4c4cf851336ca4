"""What lies in a folder: images, DICOM, NIfTI, and what is not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from fedshift import memory
from fedshift.errors import FedshiftError


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, but not the hidden ones."""
    with _listing(folder):
        return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def files_below(folder: Path) -> list[Path]:
    """Everything below a folder but folders, sorted; links to folders are not followed."""

    def refuse(error: OSError) -> None:
        with _listing(error.filename):
            raise error

    return sorted(Path(above, name) for above, _, names in os.walk(folder, onerror=refuse) for name in names)


@contextmanager
def reading(what: str, fix: str, kind: str = "") -> Iterator[None]:
    """Name a file in whatever goes wrong while it is read: libraries raise nearly anything on damaged bytes.

    Args:
        what: the file, as the subject of a sentence.
        fix: what to do about it, a sentence.
        kind: what it is read as, such as " as a table".
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FedshiftError) or memory.is_shortage(error):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # which names an object in memory by its address
            reason = "it is in no known format"
        raise FedshiftError(f"{what} cannot be read{kind} ({reason}). {fix}") from error


def _listing(folder: str | Path) -> AbstractContextManager[None]:
    return reading(f"The folder '{folder}'", "Allow reading it, or move it elsewhere.")


def image_files(folder: Path) -> list[Path]:
    """The image files anywhere below a folder, sorted, but not the hidden ones."""
    return [file for file in files_below(folder) if is_image(file)]


def image_suffixes() -> tuple[str, ...]:
    """What names of image files end in, in small letters, the usual ones first."""
    return tuple(dict.fromkeys([".png", ".jpg", ".jpeg", ".tif", ".tiff", *Image.registered_extensions()]))


def is_image(file: Path) -> bool:
    return not file.name.startswith(".") and file.suffix.lower() in Image.registered_extensions()


def is_dicom(file: Path) -> bool:
    suffix = file.suffix.lower()
    if file.name.startswith(".") or suffix in (".dcm", ".dicom"):
        return not file.name.startswith(".")
    if suffix and not suffix[1:].isdigit():  # names of DICOM files are often numbers between dots
        return False
    try:
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:  # it is not read anyway
        return False


def is_nifti(file: Path) -> bool:
    """Whether a file's name is that of NIfTI, and not a hidden one's."""
    return not file.name.startswith(".") and file.name.lower().endswith((".nii", ".nii.gz"))


def left_out(root: Path, read: Iterable[Path] = ()) -> tuple[str, ...]:
    """A note on what lies below a folder beside the files that are read, counted by suffix; none if nothing does."""
    known = set(read)
    kinds = Counter(
        "without a suffix" if file.suffix[1:].isdigit() else file.suffix.lower() or "without a suffix"
        for file in files_below(root)
        if file not in known and not any(part.startswith(".") for part in file.relative_to(root).parts)
    )
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return (f"Not read in '{root}': {words}.",) if words else ()
