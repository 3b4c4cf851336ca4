"""Data sets, partitions and inputs: what is read is right, and what is held out stays out."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from conftest import Make
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD, Inputs
from fedshift.clients.partitions import split
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.digits import Digits
from fedshift.datasets.image_sets import HubDataset, ImageFolder, ParquetFile
from fedshift.datasets.images import decode
from fedshift.datasets.mnist import RotatedMNIST
from fedshift.runs.simulation import make_federated
from fedshift.streams import Streams
from refusal import refuses


def png(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(buffer, "png")
    return buffer.getvalue()


# RotatedMNIST -----------------------------------------------------------------------------------


def test_rotated_mnist_turns_the_same_digits_by_every_angle():
    data = RotatedMNIST(images_per_class=3).load(Streams(0))
    assert data.x.shape == (6 * 30, 1, 28, 28)
    assert data.domains == ("0", "15", "30", "45", "60", "75")
    assert data.x.min() == 0
    assert 0.9 < data.x.max() <= 1
    assert torch.bincount(data.y).tolist() == [18] * 10
    for angle in range(6):
        inside = data.domain == angle
        assert torch.equal(data.y[inside], data.y[data.domain == 0])
        assert data.group[inside].tolist() == list(range(30))


def test_each_angle_may_have_digits_of_its_own():
    """Three of 500 for each of six angles: 18 of each digit, none of them twice, so that no two have a group in common.

    The first angle, 0 degrees, has the originals that all share otherwise.
    """
    data, shared = (RotatedMNIST(images_per_class=3, draw=draw).load(Streams(0)) for draw in ("each", "shared"))
    first = data.domain == 0
    assert torch.equal(data.x[first], shared.x[first])
    assert torch.equal(data.y, shared.y)
    assert len(data.group.unique()) == 6 * 30
    upright = RotatedMNIST(angles=(0, 360), images_per_class=30, draw="each").load(Streams(0)).x
    assert len(upright.flatten(1).unique(dim=0)) == 600
    with refuses("images_per_class = 84 for each of 6 angles", "only 500 images", "83 at most", "draw = 'shared'"):
        RotatedMNIST(images_per_class=84, draw="each").load(Streams(0))


def test_rotation_is_counter_clockwise(tmp_path: Path):
    """A dot right of the centre goes to the top when turned by 90 degrees counter-clockwise."""
    image = np.zeros((10, 28, 28), np.uint8)
    image[:, 13:15, 22:24] = 255
    write_idx(tmp_path, image, np.arange(10))
    data = RotatedMNIST(path=str(tmp_path), angles=(0, 90), images_per_class=1).load(Streams(0))
    turned = data.x[10, 0]
    assert turned[4:6, 13:15].min() > 0.9
    assert turned.sum().item() == pytest.approx(data.x[0, 0].sum().item(), rel=0.05)


def write_idx(folder: Path, images: np.ndarray, labels: np.ndarray, suffix: str = "") -> None:
    folder.mkdir(exist_ok=True)
    opener = gzip.open if suffix else open
    with opener(folder / f"train-images-idx3-ubyte{suffix}", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, *images.shape) + images.astype(np.uint8).tobytes())
    with opener(folder / f"train-labels-idx1-ubyte{suffix}", "wb") as file:
        file.write(struct.pack(">II", 0x801, len(labels)) + labels.astype(np.uint8).tobytes())


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_idx_files(tmp_path: Path, suffix: str):
    images = np.repeat(np.arange(20, dtype=np.uint8).reshape(20, 1, 1), 28, axis=1).repeat(28, axis=2)
    write_idx(tmp_path, images, np.arange(20) % 10, suffix)
    data = RotatedMNIST(path=str(tmp_path), angles=(0,), images_per_class=2).load(Streams(0))
    for x, y in zip(data.x, data.y, strict=True):
        assert (x[0, 14, 14] * 255).round().int().item() % 10 == y


def test_idx_files_that_are_missing_cut_or_too_few(tmp_path: Path):
    with refuses("train-images-idx3-ubyte"):
        RotatedMNIST(path=str(tmp_path)).load(Streams(0))
    write_idx(tmp_path, np.zeros((20, 28, 28)), np.arange(20) % 10)
    with refuses("images_per_class = 100", "only 2", "digit 0"):
        RotatedMNIST(path=str(tmp_path)).load(Streams(0))
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-5])
    with refuses("train-images-idx3-ubyte", "cannot be read"):
        RotatedMNIST(path=str(tmp_path)).load(Streams(0))


# The user's own data ------------------------------------------------------------------------------

COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


def folder(root: Path) -> Path:
    for domain in ("photo", "sketch"):
        for label, colour in COLOURS.items():
            place = root / domain / label
            place.mkdir(parents=True)
            for number in range(3):
                (place / f"{number}.png").write_bytes(png(colour))
    return root


def check_red_and_blue(data: DomainData) -> None:
    assert data.x.dtype == torch.uint8
    assert data.x.shape == (12, 3, 8, 8)
    assert data.domains == ("photo", "sketch")
    assert data.missing() == []
    for x, y in zip(data.x, data.y, strict=True):
        assert tuple(x[:, 0, 0].tolist()) == COLOURS[data.classes[y]]


def test_a_folder_of_images(tmp_path: Path):
    dataset = ImageFolder(path=str(folder(tmp_path)), size=8)
    assert dataset.domain_names() == ("photo", "sketch")
    data = dataset.load(Streams(0))
    check_red_and_blue(data)
    assert str(tmp_path / "photo" / "blue" / "2.png") in data.place(2)  # as messages name it


def test_pixels_of_other_kinds(tmp_path: Path):
    """16 bits: 65535 is white, and 257 * v is v. What is transparent becomes white. Orientation 3 is upside down."""
    ramp = np.repeat(np.array([[0, 257 * 10, 257 * 128, 65535]], np.uint16), 4, axis=0)
    upside_down, exif = Image.new("L", (4, 4)), Image.Exif()
    upside_down.putpixel((0, 0), 255)
    exif[0x0112] = 3
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    upside_down.save(tmp_path / "turned.png", exif=exif)
    pixels, clear, turned = (decode(name, tmp_path / f"{name}.png", 4, 1) for name in ("ramp", "clear", "turned"))
    assert pixels[0, 0].tolist() == [0, 10, 128, 255]
    assert clear.min() == 255
    assert turned[0, 3, 3] == 255


@pytest.mark.parametrize("labels", ["names", "numbers", "hub"])
def test_parquet(tmp_path: Path, labels: str, monkeypatch: pytest.MonkeyPatch):
    """Images as bytes, with names; as structs, with numbers; and a local folder read as the library reads a hub id."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [(png(COLOURS[c]), d, c) for d in ("photo", "sketch") for c in COLOURS for _ in range(3)]
    names = list(COLOURS)
    columns = {
        "image": [image if labels == "names" else {"bytes": image, "path": None} for image, _, _ in rows],
        "domain": [domain for _, domain, _ in rows],
        "label": [names.index(label) if labels == "numbers" else label for _, _, label in rows],
    }
    table = pa.table(columns)
    if labels == "numbers":
        features = '{"info": {"features": {"label": {"names": ["red", "blue"], "_type": "ClassLabel"}}}}'
        table = table.replace_schema_metadata({"huggingface": features})
    (tmp_path / "it").mkdir()
    file = tmp_path / "it" / "train-00000.parquet"
    pq.write_table(table, file)
    dataset = HubDataset(path=str(file.parent), size=8) if labels == "hub" else ParquetFile(path=str(file), size=8)
    assert dataset.domain_names() == ("photo", "sketch")
    data = dataset.load(Streams(0))
    check_red_and_blue(data)
    assert data.classes == (("red", "blue") if labels == "numbers" else ("blue", "red"))


def test_what_a_parquet_file_and_its_images_may_be(tmp_path: Path):
    """An image is bytes, or the path of a file that is there; a name without a file, text or nothing is refused."""
    path = tmp_path / "images.parquet"
    (tmp_path / "blue.png").write_bytes(png(COLOURS["blue"]))

    def load(image: Any) -> torch.Tensor:
        pq.write_table(pa.table({"image": [image], "domain": ["a"], "label": ["b"]}), path)
        return ParquetFile(path=str(path), size=4).load(Streams(0)).x

    assert load({"bytes": None, "path": str(tmp_path / "blue.png")})[0, :, 0, 0].tolist() == list(COLOURS["blue"])
    for image in ({"bytes": None, "path": "nowhere.png"}, {"bytes": None}, "text", None, 3):
        with refuses("row 0", "images.parquet", "no bytes"):
            load(image)
    path.write_bytes(b"no parquet")
    with refuses("images.parquet", "cannot be read", "download it again"):
        ParquetFile(path=str(path)).load(Streams(0))
    path.unlink()
    with refuses("images.parquet'", "folder/domain/class/file", "Parquet file"):
        ParquetFile(path=str(path)).load(Streams(0))


def test_mnist_from_the_hub(monkeypatch: pytest.MonkeyPatch):
    """The hub's columns are images and class labels."""
    import datasets

    rows = {"image": [Image.new("L", (28, 28), 10 * digit) for digit in range(10)], "label": list(range(10))}
    names = [str(digit) for digit in range(10)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: datasets.Dataset.from_dict(rows, features))
    data = RotatedMNIST(path="hub", images_per_class=1, angles=(0,)).load(Streams(0))
    assert (data.x[:, 0, 14, 14] * 255).round().int().tolist() == [10 * digit for digit in range(10)]


# Partitions -------------------------------------------------------------------------------------


@given(
    labels=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=4, max_size=60),
    fractions=st.tuples(st.floats(0.05, 0.45), st.floats(0.05, 0.45)),
)
def test_splits_are_disjoint_and_stratified(labels: list[tuple[int, int]], fractions: tuple[float, float]):
    y, domain = (torch.tensor(column) for column in zip(*labels, strict=True))
    data = DomainData(y.float().view(-1, 1), y, domain, ("a", "b"), ("0", "1", "2"), torch.arange(len(y)))
    masks = split(data, fractions, Streams(0))
    assert not (masks[0] & masks[1]).any()
    for c in range(3):
        for d in range(2):
            inside = (y == c) & (domain == d)
            n = int(inside.sum())
            for mask, fraction in zip(masks, fractions, strict=True):
                assert abs(int((mask & inside).sum()) - fraction * n) <= 1
            if n > 1:
                assert (masks[0] & inside).any()


# Inputs -----------------------------------------------------------------------------------------


def test_images_become_numbers_between_0_and_1_and_normalised():
    x = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    assert Inputs().evaluation(x)[:, 0, 0, 0].tolist() == [0, 1]
    normalised = Inputs(normalise=True).evaluation(x)
    expected = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    torch.testing.assert_close(normalised[1, :, 0, 0], expected)
    assert x.max() == 255  # the stored images are untouched


def test_augmentation_comes_from_the_streams():
    x = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=Streams(0).generator("x"))
    before = torch.get_rng_state()
    with_flip = Inputs(augment=True, flip=True)
    first, again, other = (with_flip.training(x, Streams(0), 7, number) for number in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("data", "flipped"), [(Digits(augment=True), False), (ImageFolder(path=".", augment=True), True)]
)
def test_digits_are_not_flipped(data: Dataset, flipped: bool):
    """Images that are bright on the left: only a flip makes them bright on the right."""
    x = torch.zeros(64, 3, 16, 16, dtype=torch.uint8)
    x[..., :4] = 200
    seen = data.inputs().training(x, Streams(0), 0, 0).mean(dim=(1, 2))
    assert (seen[:, 8:].sum(dim=1) > seen[:, :8].sum(dim=1)).any() == flipped


@pytest.mark.parametrize(("seeded", "reads"), [(False, 1), (True, 2)])
def test_data_without_chance_are_read_once_for_all_seeds(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, seeded: bool, reads: int
):
    folder(tmp_path)
    loads: list[Streams] = []
    load = ImageFolder.load
    monkeypatch.setattr(ImageFolder, "seeded", seeded)
    monkeypatch.setattr(ImageFolder, "load", lambda self, streams: (loads.append(streams), load(self, streams))[1])
    for seed in (0, 1):
        data = {"name": "folder", "path": str(tmp_path), "size": 8}
        make_federated(make({"data": data, "protocol.hold_out": "photo", "seed": seed}))
    assert len(loads) == reads
