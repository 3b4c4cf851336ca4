"""Digits: the ten digits in four domains, MNIST, MNIST-M, USPS and SVHN.

As in FRAug (Chen et al., ICCV 2023, Sec. 5), where every client holds one domain, at 32 x 32 in colour, and 1 % of it.
MNIST-M (Ganin and Lempitsky, ICML 2015) is not downloaded but made as they made it: each digit becomes the absolute
difference between itself and a random crop of a photograph, channel by channel (theirs: BSDS500).

Choices:
- Training files only, where a source has training and test files. The part that is kept is the same of every digit, at
  least one image, and drawn by the seed. A part this small leaves few images to score on: to train on 1 % and score on
  many, keep all (fraction = 1) and let the protocol hand out 1 %.
- MNIST-M draws its digits from MNIST's on its own; an image that is in both keeps to one side of a split.
- MNIST-M is made at the final size: the digit is resized first, the photograph is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.image_tables import ONE_DOMAIN, Columns, check_hub, hub_images, parquet_files, parquet_images
from fedshift.datasets.images import Encoded, ImageRows, check_fits, decode, picture, pixels, resized
from fedshift.datasets.labelled import each_read
from fedshift.datasets.listing import image_files, subfolders
from fedshift.datasets.mnist import MNIST_WORDS, check_mnist_here, read_mnist
from fedshift.errors import FedshiftError, needs
from fedshift.spec import Fraction, Pixels, setting
from fedshift.streams import Streams

Domain = Literal["mnist", "mnist-m", "usps", "svhn"]
Digit = tuple[str, Encoded, int]  # where it is, for an error; the image; its digit

SOURCE_HELP = "'hub', a Parquet file (image, label), or a folder digit/file"
HUB: dict[Domain, tuple[str, str | None]] = {
    "usps": ("flwrlabs/usps", None),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
}  # id and configuration
MADE_FROM: dict[Domain, int] = {"mnist": 0, "mnist-m": 0, "usps": 1, "svhn": 2}  # domains of one source share originals


class Pictures(NamedTuple):
    """A source: its labels (N,), int64, and how image i is read, uint8 (3, size, size)."""

    labels: Tensor
    read: Callable[[int], Tensor]


class Digits(Dataset):
    """Handwritten digits, the same before photographs, digits on envelopes, and house numbers; one domain each."""

    domains: tuple[Domain, ...] = setting(
        ("mnist", "mnist-m", "usps", "svhn"), help="which of the four", source="FRAug, Sec. 5"
    )
    fraction: Fraction = setting(0.01, help="part of each digit of each domain that is kept", source="FRAug, Sec. 5")
    size: Pixels = setting(32, help="height and width in pixels")
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
        """The domains that are asked for.

        Raises:
            FedshiftError: none is, or one twice.
        """
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise FedshiftError(f"data.domains = {list(self.domains)}: give at least one domain, each once.")
        return self.domains

    def check_here(self) -> None:
        """Whether there are the images of each domain, and MNIST-M's photographs."""
        for name in self.domains:
            if name in ("mnist", "mnist-m"):
                check_mnist_here(self.mnist, setting="data.mnist")
            elif self._path_of(name) == "hub":
                check_hub(partial(_on_hub, name))
        if "mnist-m" in self.domains:
            self._photograph_path()

    def load(self, streams: Streams) -> DomainData:
        """Read the part of each domain that is kept; ``x`` is uint8 (N, 3, size, size)."""
        names = self.domain_names()
        images, labels, groups = [], [], []
        for name in self.domains:
            source = self._mnist() if name in ("mnist", "mnist-m") else self._other(name)
            kept = self._kept(name, source.labels, streams)
            check_fits(len(kept), self.size, 3, "Choose a smaller data.size or data.fraction.")
            pictures = torch.stack(each_read(source.read, kept.tolist(), "images cannot be read"))
            images.append(self._before_photographs(pictures, streams) if name == "mnist-m" else pictures)
            labels.append(source.labels[kept])
            groups.append(kept * len(MADE_FROM) + MADE_FROM[name])
        return DomainData(
            x=torch.cat(images),
            y=torch.cat(labels),
            domain=torch.arange(len(names)).repeat_interleave(torch.tensor([len(part) for part in labels])),
            domains=names,
            classes=tuple(str(digit) for digit in range(10)),
            group=torch.cat(groups),
        )

    def _kept(self, name: Domain, labels: Tensor, streams: Streams) -> Tensor:
        """The images that are kept, digit by digit."""
        kept = []
        for digit in range(10):
            held = (labels == digit).nonzero().flatten()
            if len(held) == 0:
                raise FedshiftError(
                    f"The domain '{name}' holds no image of digit {digit}; complete it or leave it out."
                )
            order = streams.permutation(len(held), "digits", name, digit)
            kept.append(held[order[: max(1, round(self.fraction * len(held)))]])
        return torch.cat(kept)

    def _mnist(self) -> Pictures:
        images, labels = read_mnist(self.mnist, setting="data.mnist")
        return Pictures(torch.from_numpy(labels), lambda index: resized(Image.fromarray(images[index]), self.size, 3))

    def _other(self, name: Domain) -> Pictures:
        path = self._path_of(name)
        if path == "hub":
            rows = _table_rows(_on_hub(name))
        elif path.endswith(".mat"):
            return _matlab(Path(path).expanduser(), self.size)
        else:
            rows = _local_rows(Path(path).expanduser())
        labels = torch.tensor([digit for _, _, digit in rows], dtype=torch.int64)
        return Pictures(labels, lambda index: decode(rows[index][0], rows[index][1], self.size, 3))

    def _path_of(self, name: Domain) -> str:
        """Where USPS or SVHN is."""
        path: str = getattr(self, name)
        if path != "hub" and not (path and Path(path).expanduser().exists()):
            raise FedshiftError(f"data.{name} = '{path}' does not exist; give {SOURCE_HELP}.")
        return path

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
        path = self._photograph_path()
        parquet = path.is_file() or parquet_files(path)
        found = _parquet_photographs(self.photographs) if parquet else [(str(file), file) for file in image_files(path)]
        photographs = each_read(lambda item: pixels(picture(*item).convert("RGB")), found, "images cannot be read")
        if not photographs:
            raise FedshiftError(f"data.photographs = '{self.photographs}' holds no image.")
        for (where, _), photograph in zip(found, photographs, strict=True):
            if min(photograph.shape[1:]) < self.size:
                raise FedshiftError(f"The photograph {where} is smaller than {self.size} pixels; remove it.")
        return photographs

    def _photograph_path(self) -> Path:
        """Where the photographs are."""
        path = Path(self.photographs).expanduser()
        if not self.photographs or not path.exists():
            raise FedshiftError(
                f"data.photographs = '{self.photographs}': MNIST-M is made from photographs such as BSDS500's; give a "
                'folder of images or a Parquet file, or leave it out: --set data.domains=["mnist","usps","svhn"]'
            )
        return path


def difference(digit: Tensor, crop: Tensor) -> Tensor:
    """MNIST-M's pixels: abs(digit - crop), all uint8 of one shape."""
    return (digit.short() - crop.short()).abs().to(torch.uint8)


def _parquet_photographs(path: str) -> list[tuple[str, Encoded]]:
    columns = Columns(label="", domain="")
    return list(parquet_images(path, columns).read())


def _local_rows(path: Path) -> list[Digit]:
    """The images of a Parquet file or a folder of them, or else of a folder digit/file."""
    if path.is_file() or parquet_files(path):
        return _table_rows(parquet_images(str(path), ONE_DOMAIN))
    return [
        (str(file), file, _digit(str(file), folder.name)) for folder in subfolders(path) for file in image_files(folder)
    ]


def _on_hub(name: Domain) -> ImageRows:
    hub_id, configuration = HUB[name]
    without = 'give a Parquet file of it, or leave it out: --set data.domains=["mnist","mnist-m"]'
    return hub_images(hub_id, ONE_DOMAIN, configuration=configuration, given=f"data.{name} = 'hub'", instead=without)


def _table_rows(source: ImageRows) -> list[Digit]:
    return [(where, image, _digit(where, label)) for where, image, _, label in source.rows()]


def _matlab(path: Path, size: int) -> Pictures:
    """SVHN's own file: X (32, 32, 3, N), and y (N, 1), where 10 stands for zero."""
    with needs("scipy", "SVHN's .mat file"):
        from scipy.io import matlab
    try:
        held = matlab.loadmat(path)
        images, labels = held["X"], held["y"].reshape(-1).astype(np.int64) % 10
    except MemoryError:
        raise
    except Exception as error:  # the reader raises nearly anything on damaged bytes
        raise FedshiftError(f"'{path}' cannot be read as SVHN's cropped digits ({error}).") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2:] != (3, len(labels)):
        raise FedshiftError(
            f"'{path}' does not hold SVHN's cropped digits: X is {images.dtype} of shape {images.shape}, not uint8 of "
            f"(32, 32, 3, {len(labels)})."
        )
    return Pictures(torch.from_numpy(labels), lambda index: resized(Image.fromarray(images[..., index]), size, 3))


def _digit(where: str, label: str) -> int:
    if label not in {str(digit) for digit in range(10)}:
        raise FedshiftError(f"The image {where} has the label '{label}'; a digit from 0 to 9 is needed.")
    return int(label)
