"""Image files and bytes to tensors, once, when a data set is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedshift import memory
from fedshift.errors import FedshiftError, Problems
from fedshift.federation.domains import DomainData

# What Pillow itself warns of, since a small file may claim any size: 268 MB in RGB, about 1.4 GB while it is prepared.
MOST_PIXELS = 89_478_485
BYTES_PER_PIXEL = 16  # an image of four channels, and the copies of it while transparency is made white
LARGE = 2**24  # pixels from which the memory is looked at before decoding; that takes as long as decoding a small image

DICOM, NIFTI = ("DICOM (data.name = 'medical' reads it)", "NIfTI (data.name = 'medical' reads it)")

T = TypeVar("T")
Encoded = bytes | Path | None
Row = tuple[str, Encoded, str, str]


class Source(Protocol):
    """Where images lie: a folder, Parquet or the hub. It reads no image before its row is asked for.

    All of these raise a FedshiftError where it is not there, cannot be read, or has names that cannot be used.
    """

    def domains(self) -> tuple[str, ...]:
        """The domains' names, sorted."""

    def classes(self) -> tuple[str, ...]:
        """The classes' names, in the order of their labels."""

    def sizes(self) -> Mapping[str, int]:
        """How many images each class has, by its name."""

    def notes(self) -> tuple[str, ...]:
        """What lies there and is not read."""

    def check_here(self) -> None:
        """Raise an error if it is not there, and not to be had from the hub either; little is read."""

    def rows(self) -> Iterator[Row]:
        """Every image, one after the other, as (where, image, domain, class); None: there are no bytes."""


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, but not the hidden ones.

    Raises:
        FedshiftError: the folder cannot be read, or holds a link that leads nowhere or back.
    """
    with _listed(folder):
        found = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        for entry in found:
            if entry.is_symlink() and not entry.exists():
                raise FedshiftError(f"The link '{entry}' leads nowhere; remove or mend it.")
            if entry.is_symlink() and folder.resolve().is_relative_to(entry.resolve()):
                raise FedshiftError(f"The link '{entry}' leads back to a folder that it lies in; remove it.")
        return [entry for entry in found if entry.is_dir()]


def files_below(folder: Path) -> list[Path]:
    """Everything below a folder but folders, sorted; links to folders are not followed.

    Raises:
        FedshiftError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        with _listed(Path(str(error.filename))):
            raise error

    return sorted(Path(above, name) for above, _, names in os.walk(folder, onerror=refuse) for name in names)


def image_files(folder: Path) -> list[Path]:
    """The image files anywhere below a folder, sorted, but not the hidden ones.

    Links that lead nowhere and files that may not be read are among them, so that reading them says so.
    """
    return [file for file in files_below(folder) if is_image(file)]


def suffixes() -> tuple[str, ...]:
    """What names of image files end in, in small letters, the usual ones first."""
    return tuple(dict.fromkeys([".png", ".jpg", ".jpeg", ".tif", ".tiff", *Image.registered_extensions()]))


def is_image(file: Path) -> bool:
    """Whether a file's name is that of an image, and not a hidden one's."""
    if file.name.startswith(".") or file.suffix.lower() not in Image.registered_extensions():
        return False
    return os.path.isfile(file) or not os.path.exists(file)  # noqa: PTH110, PTH113  # pathlib's raise errors


@contextmanager
def _listed(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedshiftError(
            f"The folder '{folder}' cannot be read ({error.strerror or error}). Allow reading it, or move it elsewhere."
        ) from error


def is_dicom(file: Path) -> bool:
    """Whether a file's name is that of DICOM, or the file has none and begins as DICOM does."""
    suffix = file.suffix.lower()
    bare = not suffix or suffix[1:].isdigit()  # names of DICOM files are often numbers between dots
    return not file.name.startswith(".") and (suffix in (".dcm", ".dicom") or (bare and _begins_as_dicom(file)))


def is_nifti(file: Path) -> bool:
    """Whether a file's name is that of NIfTI, and not a hidden one's."""
    return not file.name.startswith(".") and file.name.lower().endswith((".nii", ".nii.gz"))


def unread(root: Path, read: Iterable[Path] = (), reads: Callable[[Path], bool] = is_image) -> Counter[str]:
    """What lies below a folder beside the files that are read, counted by kind, without hidden files and folders."""
    known = set(read)
    return Counter(
        _kind(file, reads)
        for file in files_below(root)
        if file not in known and not any(part.startswith(".") for part in file.relative_to(root).parts)
    )


def left_out(root: Path, read: Iterable[Path] = (), reads: Callable[[Path], bool] = is_image) -> str:
    """What is :func:`unread`, as a sentence; empty if nothing is."""
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(unread(root, read, reads).items()))
    return f"Not read in '{root}': {words}." if words else ""


def _kind(file: Path, reads: Callable[[Path], bool]) -> str:
    """What a file that is not read is called when such files are counted."""
    suffix = file.suffix.lower()
    if reads(file):
        return f"{'DICOM' if is_dicom(file) else suffix} (images outside of a class's folder)"
    if is_dicom(file):
        return DICOM
    if is_nifti(file):
        return NIFTI
    return "without a suffix" if not suffix or suffix[1:].isdigit() else suffix


def _begins_as_dicom(file: Path) -> bool:
    """Whether a file begins as DICOM does: "DICM" after 128 bytes; such files often have no suffix."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:  # it is not read anyway
        return False


def domain_data(
    rows: Iterable[Row],
    size: int,
    channels: int,
    classes: Sequence[str] | None = None,
    count: int = 0,
    notes: tuple[str, ...] = (),
) -> DomainData:
    """Decode rows of (where, image, domain, class).

    Args:
        rows: ``where`` names the image in an error: its path, or its place in a table.
        size: height and width in pixels.
        channels: 1 or 3.
        classes: the classes' names in label order; by default the sorted names that occur.
        count: how many rows there will be, if known; what does not fit is then refused before it is decoded.
        notes: what a reader of the results must know.

    Raises:
        FedshiftError: there is no row, images cannot be read, or they do not fit into memory; the message names the
            images.
    """
    check_fits(count, size, channels)
    known = None if classes is None else frozenset(classes)
    domain_of, class_of, places = [], [], []

    def read(row: Row) -> Tensor:
        where, image, domain, label = row
        if known is not None and label not in known:
            names = ", ".join(sorted(known))
            raise FedshiftError(f"The image {where} has the label '{label}', which is not among {names}.")
        decoded = decode(where, image, size, channels)
        domain_of.append(domain)
        class_of.append(label)
        places.append(where)
        return decoded

    images = read_all(read, rows)
    if not images:
        raise FedshiftError("The data set holds no image.")
    domains = tuple(sorted(set(domain_of)))
    classes = tuple(classes or sorted(set(class_of)))
    domain_index = {name: i for i, name in enumerate(domains)}
    class_index = {name: i for i, name in enumerate(classes)}
    return DomainData(
        x=_stacked(images),
        y=torch.tensor([class_index[name] for name in class_of]),
        domain=torch.tensor([domain_index[name] for name in domain_of]),
        domains=domains,
        classes=classes,
        group=torch.arange(len(domain_of)),
        notes=notes,
        where=tuple(places),
    )


def read_all(read: Callable[[T], Tensor], items: Iterable[T]) -> list[Tensor]:
    """What is read of each item.

    Raises:
        FedshiftError: images cannot be read; the message names them.
    """
    images, problems = [], Problems("images cannot be read")
    for item in items:
        with problems.gathered():
            images.append(read(item))
    problems.check()
    return images


def check_fits(count: int, size: int, channels: int, fix: str = "") -> None:
    """Refuse images that do not fit into memory, before they are decoded.

    Args:
        count: how many.
        size: height and width that they are resized to, in pixels.
        channels: 1 or 3.
        fix: what to do instead; by default a smaller ``data.size``.
    """
    memory.check(
        count * channels * size * size,
        f"The data set, {count} images of {size} x {size} pixels in {channels} channels,",
        fix or "Choose a smaller data.size, one channel, or fewer images.",
    )


def _stacked(images: list[Tensor]) -> Tensor:
    """The images as one tensor; each is given up once copied, so that they are not all held twice."""
    x = torch.empty(len(images), *images[0].shape, dtype=images[0].dtype)
    for index in reversed(range(len(images))):
        x[index] = images.pop()
    return x


def decode(where: str, image: Encoded, size: int, channels: int) -> Tensor:
    """An encoded image as uint8 (channels, size, size); see :func:`picture`."""
    with _readable(where):
        return resized(picture(where, image), size, channels)


def resized(image: Image.Image, size: int, channels: int) -> Tensor:
    """An image as uint8 (channels, size, size)."""
    converted = image.convert("RGB" if channels == 3 else "L")
    return pixels(converted.resize((size, size), Image.Resampling.BILINEAR))


def pixels(image: Image.Image) -> Tensor:
    """A gray or colour image as uint8 (1 or 3, height, width)."""
    values = torch.from_numpy(np.array(image))
    return values.unsqueeze(0) if values.ndim == 2 else values.permute(2, 0, 1).contiguous()


def picture(where: str, image: Encoded) -> Image.Image:
    """A decoded image.

    It is turned upright if its EXIF data say so, what is transparent becomes white, and 16 bits become 8.

    Raises:
        FedshiftError: it cannot be read, or is too large; the message says where it is.
    """
    if image is None:
        raise FedshiftError(f"The image {where} holds no bytes. Write the encoded image into its column.")
    with _readable(where):
        with _opened(BytesIO(image) if isinstance(image, bytes) else image) as opened:
            _check_pixels(where, *opened.size)
            upright = _eight_bits(where, ImageOps.exif_transpose(opened))
        if not upright.has_transparency_data:
            return upright
        colours = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Names the image in whatever goes wrong: Pillow raises nearly anything on damaged bytes."""
    try:
        yield
    except FedshiftError:
        raise
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)  # which names an object in memory by its address
        reason = "it is in no known format" if unknown else str(error) or type(error).__name__
        raise FedshiftError(f"The image {where} cannot be read ({reason}). Replace or remove it.") from error


def _opened(file: BytesIO | Path) -> Image.Image:
    """An image of which only the size is read yet, whatever it is: Pillow would refuse a large one without its size."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return Image.open(file)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _check_pixels(where: str, width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise FedshiftError(
            f"The image {where} has {width} x {height} pixels, more than {MOST_PIXELS:,}: decoded, it may fill the "
            "memory. Scale it down or remove it."
        )
    if width * height > LARGE:
        memory.check(
            width * height * BYTES_PER_PIXEL,
            f"Reading the image {where} of {width} x {height} pixels",
            "Scale it down or remove it.",
        )


def _eight_bits(where: str, image: Image.Image) -> Image.Image:
    """Grayscale of 16 bits scaled to 8; other depths than 8 and 16 have no agreed range, so they are refused."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image.copy()
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise FedshiftError(f"The image {where} has pixels of mode {image.mode}; convert it to 8 or 16 bits.")
    return Image.fromarray((values // 257).astype(np.uint8))
