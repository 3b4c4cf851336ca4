"""Digits: the ten digits in four domains, MNIST, MNIST-M, USPS and SVHN.

As in FRAug (Chen et al., ICCV 2023, Sec. 5), where every client contains one domain, at 32 x 32 in colour, and 1 % of
it. MNIST-M (Ganin and Lempitsky, ICML 2015) is not downloaded but made as they made it: each digit becomes the absolute
difference between itself and a random crop of a photograph, channel by channel (theirs: BSDS500).

Choices:
- Training files only, where a source has training and test files. The part that is kept is the same of every digit, at
  least one image, and drawn by the seed. A part this small leaves few images to score on: to train on 1 % and score on
  many, keep all (fraction = 1) and let the protocol hand out 1 %.
- MNIST-M draws its digits from MNIST's by itself; an image that is in both keeps to one side of a split.
- MNIST-M is made at the final size: the digit is resized first, the photograph is not.
- ``augment`` is FRAug's public code's: crop, colour jitter and grayscale, and no flip, which would make other digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.datasets.dataset import Dataset, augmented
from fedshift.datasets.image_tables import ONE_DOMAIN, Columns, hub_images, images_at
from fedshift.datasets.images import Encoded, ImageRows, check_fits, decoded, picture, pixels
from fedshift.datasets.labelled import each_read
from fedshift.datasets.listing import reading
from fedshift.datasets.mnist import MNIST_WORDS, mnist_folder, read_mnist
from fedshift.errors import FedshiftError
from fedshift.hub import answers
from fedshift.spec import Fraction, Pixels, setting
from fedshift.streams import Streams

Domain = Literal["mnist", "mnist-m", "usps", "svhn"]

SOURCE_HELP = "'hub', a Parquet file (image, label) or a folder of them, or a folder digit/file"
TEN = tuple(str(digit) for digit in range(10))
HUB: dict[Domain, tuple[str, str | None]] = {
    "usps": ("flwrlabs/usps", None),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
}  # id and configuration
MADE_FROM: dict[Domain, int] = {"mnist": 0, "mnist-m": 0, "usps": 1, "svhn": 2}  # domains of one source share originals


class Digits(Dataset):
    """Handwritten digits, the same before photographs, digits on envelopes, and house numbers; one domain each."""

    domains: tuple[Domain, ...] = setting(
        ("mnist", "mnist-m", "usps", "svhn"), help="the domains, of four", source="FRAug, Sec. 5"
    )
    fraction: Fraction = setting(
        0.01, help="part of each domain's images of each digit that is kept", source="FRAug, Sec. 5"
    )
    size: Pixels = setting(32, help="height and width in pixels")
    augment: bool = setting(
        False, help="crop, colour jitter and grayscale in training, without flips", source="FRAug's public code: true"
    )
    mnist: str = setting(
        "shipped",
        help="'shipped' (5,000 of its images, part of fedshift), a folder of idx files, or 'hub'",
        path=True,
        words=MNIST_WORDS,
    )
    photographs: str = setting(
        "", help="MNIST-M's photographs: a folder of images, or a Parquet file (image)", path=True
    )
    usps: str = setting("hub", help=SOURCE_HELP, path=True, words=("hub",))
    svhn: str = setting("hub", help=f"{SOURCE_HELP}, or SVHN's train_32x32.mat", path=True, words=("hub",))

    def domain_names(self) -> tuple[str, ...]:
        """The domains that are requested."""
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise FedshiftError(f"data.domains = {list(self.domains)}: give at least one domain, each once.")
        return self.domains

    def check_here(self) -> None:
        """Whether there are the images of each domain, and MNIST-M's photographs."""
        for name in self.domains:
            if name in ("mnist", "mnist-m"):
                mnist_folder(self.mnist, setting="data.mnist")
            elif getattr(self, name) != "hub" or not answers():
                self._other(name)
        if "mnist-m" in self.domains:
            self._photograph_rows()

    def inputs(self) -> Inputs:
        """Scaling, and augmentation without flips if requested."""
        return augmented(Inputs(self.augment))

    def load(self, streams: Streams) -> DomainData:
        """Read the part of each domain that is kept; ``x`` is uint8 (N, 3, size, size)."""
        names = self.domain_names()
        images, labels, groups = [], [], []
        for name in self.domains:
            found, digits = self._originals(name)
            kept = self._kept(name, digits, streams)
            check_fits(len(kept), self.size, 3, "Choose a smaller data.size or data.fraction.")
            pictures = decoded((found[index] for index in kept.tolist()), self.size, 3)
            images.append(self._before_photographs(pictures, streams) if name == "mnist-m" else pictures)
            labels.append(digits[kept])
            groups.append(kept * len(MADE_FROM) + MADE_FROM[name])
        return DomainData(
            x=torch.cat(images),
            y=torch.cat(labels),
            domain=torch.arange(len(names)).repeat_interleave(torch.tensor([len(part) for part in labels])),
            domains=names,
            classes=TEN,
            group=torch.cat(groups),
        )

    def _kept(self, name: Domain, labels: Tensor, streams: Streams) -> Tensor:
        kept = []
        for digit in range(10):
            held = (labels == digit).nonzero().flatten()
            if len(held) == 0:
                raise FedshiftError(
                    f"The domain '{name}' contains no image of digit {digit}; complete it or leave it out."
                )
            order = streams.permutation(len(held), "digits", name, digit)
            kept.append(held[order[: max(1, round(self.fraction * len(held)))]])
        return torch.cat(kept)

    def _originals(self, name: Domain) -> tuple[list[tuple[str, Encoded]], Tensor]:
        """The images of a domain's source, and the digit of each, (N,), int64."""
        if name in ("mnist", "mnist-m"):
            images, digits = read_mnist(self.mnist, setting="data.mnist")
            return [(f"{number} of '{self.mnist}'", image) for number, image in enumerate(images)], torch.tensor(digits)
        source = self._other(name)
        found = list(source.read())
        for (where, _), label in zip(found, source.labels, strict=True):
            if label not in TEN:
                raise FedshiftError(f"The image {where} has the label '{label}'; a digit from 0 to 9 is needed.")
        return found, torch.tensor([int(label) for label in source.labels])

    def _other(self, name: Domain) -> ImageRows:
        """USPS or SVHN; no image is read yet."""
        path: str = getattr(self, name)
        if path.endswith(".mat"):
            return _matlab(Path(path).expanduser())
        if path != "hub":
            return images_at(path, ONE_DOMAIN, 1, f"data.{name}")
        hub_id, configuration = HUB[name]
        without = 'give a Parquet file of it, or leave it out: --set data.domains=["mnist","mnist-m"]'
        given = f"data.{name} = 'hub'"
        return hub_images(hub_id, ONE_DOMAIN, configuration=configuration, given=given, instead=without)

    def _before_photographs(self, digits: Tensor, streams: Streams) -> Tensor:
        """MNIST-M of digits (N, 3, size, size): a photograph and a place in it are drawn for each."""
        photographs = self._photographs()
        places = torch.rand(len(digits), 3, dtype=torch.float64, generator=streams.generator("mnist-m crops"))
        made = torch.empty_like(digits)
        for index, (which, down, right) in enumerate(places.tolist()):
            photograph = photographs[int(which * len(photographs))]
            top, left = (
                int(place * (extent - self.size + 1))
                for place, extent in zip((down, right), photograph.shape[1:], strict=True)
            )
            made[index] = difference(digits[index], photograph[:, top : top + self.size, left : left + self.size])
        return made

    def _photographs(self) -> list[Tensor]:
        """Every photograph at its own size, uint8 (3, height, width)."""
        found = self._photograph_rows()
        photographs = each_read(lambda item: pixels(picture(*item).convert("RGB")), found, "images cannot be read")
        for (where, _), photograph in zip(found, photographs, strict=True):
            if min(photograph.shape[1:]) < self.size:
                raise FedshiftError(f"The photograph {where} is smaller than {self.size} pixels; remove it.")
        return photographs

    def _photograph_rows(self) -> list[tuple[str, Encoded]]:
        found = []
        if self.photographs and Path(self.photographs).expanduser().exists():
            source = images_at(self.photographs, Columns(label="", domain=""), 0, "data.photographs")
            found = list(source.read())
        if not found:
            raise FedshiftError(
                f"data.photographs = '{self.photographs}' contains no image: MNIST-M is made from photographs such as "
                "BSDS500's; give a folder of images or a Parquet file, or leave it out: --set "
                'data.domains=["mnist","usps","svhn"]'
            )
        return found


def difference(digit: Tensor, crop: Tensor) -> Tensor:
    """MNIST-M's pixels: abs(digit - crop), all uint8 of one shape."""
    return (digit.short() - crop.short()).abs().to(torch.uint8)


def _matlab(path: Path) -> ImageRows:
    """SVHN's own file: X (32, 32, 3, N), and y (N, 1), where 10 stands for zero."""
    from scipy.io import matlab  # late: a list of data sets need not load it

    with reading(f"'{path}'", "Download it again.", " as SVHN's cropped digits"):
        stored = matlab.loadmat(path)
        images = np.moveaxis(stored["X"], 3, 0)
        labels = [TEN[digit % 10] for digit in stored["y"].reshape(len(images)).tolist()]
    return ImageRows([""] * len(labels), labels, TEN, lambda: ((f"of '{path}'", image) for image in images))
