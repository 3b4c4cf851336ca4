"""RotatedMNIST: the same handwritten digits turned by several angles, one domain an angle.

Ghifary et al., ICCV 2015; in the version of FedSR (Sec. 4.1), 1,000 images (100 a digit) make every domain.

Choices: the images are drawn anew for each seed; rotation is counter-clockwise, about the centre, filled
with black; pixels are in 0..1. An image keeps to one side of a train/validation split in all domains.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.images import check_fits
from fedshift.datasets.mnist import MNIST_HELP, MNIST_WORDS, Labels, check_mnist_here, read_mnist
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Degrees, setting
from fedshift.streams import Streams


class RotatedMNIST(Dataset):
    """MNIST digits turned by each of several angles."""

    path: str = setting("shipped", help=MNIST_HELP, path=True, words=MNIST_WORDS)
    angles: tuple[Degrees, ...] = setting(
        (0, 15, 30, 45, 60, 75), help="degrees, counter-clockwise; one domain each", source="FedSR, Sec. 4.1"
    )
    images_per_class: Count = setting(100, help="images of each digit in a domain", source="FedSR, Sec. 4.1")
    interpolation: Literal["nearest", "bilinear", "bicubic"] = setting("bilinear", help="how pixels are turned")

    def domain_names(self) -> tuple[str, ...]:
        """The angles."""
        if not self.angles or len(set(self.angles)) < len(self.angles):
            raise FedshiftError(f"data.angles = {list(self.angles)}: give at least one angle, each once.")
        return tuple(f"{angle:g}" for angle in self.angles)

    def check_here(self) -> None:
        """Whether there are MNIST's images."""
        check_mnist_here(self.path)

    def load(self, streams: Streams) -> DomainData:
        """Draw the images and turn them."""
        domains = self.domain_names()
        images, labels = read_mnist(self.path)
        chosen = np.concatenate([self._draw(labels, digit, streams) for digit in range(10)])
        made = len(self.angles) * len(chosen)
        check_fits(
            made, images.shape[1], 6, "Give fewer data.angles or data.images_per_class."
        )  # bytes, twice, and floats
        resampling = Image.Resampling[self.interpolation.upper()]
        upright = [Image.fromarray(image) for image in images[chosen]]
        turned = [np.asarray(image.rotate(angle, resample=resampling)) for angle in self.angles for image in upright]
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
