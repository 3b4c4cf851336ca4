"""Image files and bytes to tensors, once, when a data set is read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.datasets.labelled import each_read
from fedshift.errors import FedshiftError

Encoded = bytes | Path | np.ndarray[Any, Any] | None  # an array: gray or colour, decoded already


class ImageRows(NamedTuple):
    """Images of a folder, Parquet or the hub, none of which is read yet.

    Attributes:
        domains: the domain of each image.
        labels: the class of each image.
        classes: the classes' names, in the order of their labels; images of other classes are left out.
        read: gives every image in order, with where it is, for errors; None in its place: there are no bytes.
        notes: what lies beside the images and is not read.
    """

    domains: Sequence[str]
    labels: Sequence[str]
    classes: tuple[str, ...]
    read: Callable[[], Iterator[tuple[str, Encoded]]]
    notes: tuple[str, ...] = ()

    def decoded(self, size: int, channels: int) -> DomainData:
        """Decode the images.

        Args:
            size: height and width in pixels.
            channels: 1 or 3.

        Raises:
            FedshiftError: there is none, images cannot be read, or they do not fit into memory; the message names the
                images.
        """
        number = {label: place for place, label in enumerate(self.classes)}
        kept = [label in number for label in self.labels]
        check_fits(sum(kept), size, channels)
        where = list[str]()

        def read(item: tuple[str, Encoded]) -> Tensor:
            where.append(item[0])
            return decode(*item, size, channels)

        images = each_read(read, compress(self.read(), kept), "images cannot be read")
        if not images:
            raise FedshiftError("The data set holds no image.")
        of_domain = list(compress(self.domains, kept))
        domains = tuple(sorted({*of_domain}))
        return DomainData(
            x=_stacked(images),
            y=torch.tensor([number[label] for label in compress(self.labels, kept)]),
            domain=torch.tensor([domains.index(name) for name in of_domain]),
            domains=domains,
            classes=self.classes,
            group=torch.arange(len(where)),
            notes=self.notes,
            where=tuple(where),
        )


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
        converted = picture(where, image).convert("RGB" if channels == 3 else "L")
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
    if isinstance(image, np.ndarray):
        return Image.fromarray(image)
    if image is None:
        raise FedshiftError(f"The image {where} holds no bytes. Write the encoded image into its column.")
    with _readable(where), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # since a small file may claim any size
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
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
    except (FedshiftError, MemoryError):
        raise
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)  # which names an object in memory by its address
        reason = "it is in no known format" if unknown else str(error) or type(error).__name__
        raise FedshiftError(f"The image {where} cannot be read ({reason}). Replace or remove it.") from error


def _eight_bits(where: str, image: Image.Image) -> Image.Image:
    """Grayscale of 16 bits scaled to 8; other depths than 8 and 16 have no agreed range, so they are refused."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image.copy()
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise FedshiftError(f"The image {where} has pixels of mode {image.mode}; convert it to 8 or 16 bits.")
    return Image.fromarray((values // 257).astype(np.uint8))
