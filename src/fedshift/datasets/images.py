"""Image files and bytes to tensors, once, when a data set is read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.datasets.labelled import Labelled, each_read, joined, names_of
from fedshift.datasets.listing import reading
from fedshift.errors import FedshiftError

REPLACE = "Replace or remove it."
Encoded = bytes | Path | np.ndarray[Any, Any] | None  # an array: gray or colour, decoded already


class ImageRows(NamedTuple):
    """Images of a folder, Parquet or the hub, none of which is read yet."""

    domains: Sequence[str]  # the domain of each image
    labels: Sequence[str]  # the class of each image
    classes: tuple[str, ...]  # the classes' names, in the order of their labels; images of other classes are excluded
    # gives every image in order, with where it is, for errors; None in its place: there are no bytes
    read: Callable[[], Iterator[tuple[str, Encoded]]]
    notes: tuple[str, ...] = ()  # what lies beside the images and is not read

    def decoded(self, size: int, channels: int) -> DomainData:
        """Decode the images.

        Args:
            size: height and width in pixels.
            channels: 1 or 3.
        """
        known = {*self.classes}
        kept = [label in known for label in self.labels]
        check_fits(sum(kept), size, channels)
        where = list[str]()

        def read() -> Iterator[tuple[str, Encoded]]:
            for place, image in compress(self.read(), kept):
                where.append(place)
                yield place, image

        x = decoded(read(), size, channels)
        y, domain = (
            names_of(np.array([*compress(names, kept)], object), "the images") for names in (self.labels, self.domains)
        )
        return joined([Labelled("", x, y, domain, rows=where)], self.classes, self.notes)


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


def decoded(images: Iterable[tuple[str, Encoded]], size: int, channels: int) -> Tensor:
    """Encoded images, each with where it is, as uint8 (N, channels, size, size); see :func:`picture`."""
    read = each_read(lambda image: decode(*image, size, channels), images, "images cannot be read")
    if not read:
        raise FedshiftError("The data set contains no image.")
    x = torch.empty(len(read), *read[0].shape, dtype=torch.uint8)
    for index in reversed(range(len(read))):
        x[index] = read.pop()  # given up once copied, so that they are not all in memory twice
    return x


def decode(where: str, image: Encoded, size: int, channels: int) -> Tensor:
    """An encoded image as uint8 (channels, size, size); see :func:`picture`."""
    with reading(f"The image {where}", REPLACE):
        converted = picture(where, image).convert("RGB" if channels == 3 else "L")
        return pixels(converted.resize((size, size), Image.Resampling.BILINEAR))


def pixels(image: Image.Image) -> Tensor:
    """A gray or colour image as uint8 (1 or 3, height, width)."""
    values = torch.from_numpy(np.array(image))
    return values.unsqueeze(0) if values.ndim == 2 else values.permute(2, 0, 1).contiguous()


def picture(where: str, image: Encoded) -> Image.Image:
    """A decoded image.

    It is turned upright according to its EXIF data, what is transparent becomes white, and 16 bits become 8.
    """
    if isinstance(image, np.ndarray):
        return Image.fromarray(image)
    if image is None:
        raise FedshiftError(f"The image {where} contains no bytes. Write the encoded image into its column.")
    with reading(f"The image {where}", REPLACE), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # since a small file may claim any size
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
            upright = _eight_bits(where, ImageOps.exif_transpose(opened))
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
