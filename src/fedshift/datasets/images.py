"""Image files and bytes to tensors, once, when a data set is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedshift.errors import FedshiftError
from fedshift.federation.domains import DomainData

Row = tuple[str, bytes | Path, str, str]


class Source(Protocol):
    """Where images lie: a folder, Parquet or the hub. It reads no image before its row is asked for."""

    def domains(self) -> tuple[str, ...]:
        """The domains' names, sorted."""

    def classes(self) -> tuple[str, ...]:
        """The classes' names, in the order of their labels."""

    def rows(self) -> Iterator[Row]:
        """Every image, one after the other, as (where, image, domain, class)."""


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, but not the hidden ones."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def image_files(folder: Path) -> list[Path]:
    """The image files anywhere below a folder, sorted, but not the hidden ones."""
    known = Image.registered_extensions()
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in known and file.is_file() and not file.name.startswith(".")
    ]


def domain_data(rows: Iterable[Row], size: int, channels: int, classes: Sequence[str] | None = None) -> DomainData:
    """Decode rows of (where, image, domain, class).

    Args:
        rows: ``where`` names the image in an error: its path, or its place in a table.
        size: height and width in pixels.
        channels: 1 or 3.
        classes: the classes' names in label order; by default the sorted names that occur.

    Raises:
        FedshiftError: there is no row, or an image cannot be read; the message names it.
    """
    images, domain_of, class_of = [], [], []
    for where, image, domain, label in rows:
        images.append(decode(where, image, size, channels))
        domain_of.append(domain)
        class_of.append(label)
    if not images:
        raise FedshiftError("The data set holds no image.")
    count = len(images)
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
        group=torch.arange(count),
    )


def _stacked(images: list[Tensor]) -> Tensor:
    """The images as one tensor; each is given up once copied, so that they are not all held twice."""
    x = torch.empty(len(images), *images[0].shape, dtype=images[0].dtype)
    for index in reversed(range(len(images))):
        x[index] = images.pop()
    return x


def decode(where: str, image: bytes | Path, size: int, channels: int) -> Tensor:
    """An encoded image as uint8 (channels, size, size); see :func:`picture`."""
    return resized(picture(where, image), size, channels)


def resized(image: Image.Image, size: int, channels: int) -> Tensor:
    """An image as uint8 (channels, size, size)."""
    converted = image.convert("RGB" if channels == 3 else "L")
    return pixels(converted.resize((size, size), Image.Resampling.BILINEAR))


def pixels(image: Image.Image) -> Tensor:
    """A gray or colour image as uint8 (1 or 3, height, width)."""
    values = torch.from_numpy(np.array(image))
    return values.unsqueeze(0) if values.ndim == 2 else values.permute(2, 0, 1).contiguous()


def picture(where: str, image: bytes | Path) -> Image.Image:
    """A decoded image.

    It is turned upright if its EXIF data say so, what is transparent becomes white, and 16 bits become 8.

    Raises:
        FedshiftError: it cannot be read; the message says where it is.
    """
    try:
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
            upright = _eight_bits(where, ImageOps.exif_transpose(opened))
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise FedshiftError(f"The image {where} cannot be read ({error}). Replace or remove it.") from error
    if not upright.has_transparency_data:
        return upright
    colours = upright.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)


def _eight_bits(where: str, image: Image.Image) -> Image.Image:
    """Grayscale of 16 bits scaled to 8; other depths than 8 and 16 have no agreed range, so they are refused."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image.copy()
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise FedshiftError(f"The image {where} has pixels of mode {image.mode}; convert it to 8 or 16 bits.")
    return Image.fromarray((values // 257).astype(np.uint8))
