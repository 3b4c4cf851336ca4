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
from fedshift.datasets.image_sets import HubDataset, ImageFolder, ParquetFile
from fedshift.datasets.images import decode
from fedshift.datasets.mnist import RotatedMNIST
from fedshift.runs.simulation import make_federated
from fedshift.streams import Streams
from refusal import refuses

SMALL = {"images_per_class": 3}


def png(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(buffer, "png")
    return buffer.getvalue()


# RotatedMNIST -----------------------------------------------------------------------------------


def test_rotated_mnist_turns_the_same_digits_by_every_angle():
    data = RotatedMNIST(**SMALL).load(Streams(0))
    assert data.x.shape == (6 * 30, 1, 28, 28)
    assert data.domains == ("0", "15", "30", "45", "60", "75")
    assert data.x.min() == 0
    assert 0.9 < data.x.max() <= 1
    assert torch.bincount(data.y).tolist() == [18] * 10
    for angle in range(6):
        inside = data.domain == angle
        assert torch.equal(data.y[inside], data.y[data.domain == 0])
        assert data.group[inside].tolist() == list(range(30))


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
    with refuses("data.path = ", "no folder"):
        RotatedMNIST(path=str(tmp_path / "no")).load(Streams(0))
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
            for number in range(3):
                place = root / domain / label
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{number}.png").write_bytes(png(colour))
                (place / "notes.txt").write_text("not an image")
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
    assert data.classes == ("blue", "red")
    check_red_and_blue(data)


def decoded(image: Image.Image, name: str, tmp_path: Path, channels: int = 3) -> torch.Tensor:
    image.save(tmp_path / name)
    return decode(name, tmp_path / name, 4, channels)


def test_sixteen_bits_become_eight(tmp_path: Path):
    """65535 is white, and 257 * v is v."""
    ramp = np.repeat(np.array([[0, 257 * 10, 257 * 128, 65535]], np.uint16), 4, axis=0)
    pixels = decoded(Image.fromarray(ramp), "ramp.png", tmp_path, channels=1)
    assert pixels[0, 0].tolist() == [0, 10, 128, 255]


def test_what_is_transparent_becomes_white(tmp_path: Path):
    pixels = decoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "clear.png", tmp_path)
    assert pixels.min() == 255


def test_a_photograph_is_turned_upright(tmp_path: Path):
    """EXIF orientation 3 is upside down."""
    image = Image.new("L", (4, 4))
    image.putpixel((0, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 3
    image.save(tmp_path / "turned.png", exif=exif)
    assert decode("turned", tmp_path / "turned.png", 4, 1)[0, 3, 3] == 255


@pytest.mark.parametrize("form", ["bytes", "struct"])
@pytest.mark.parametrize("labels", ["names", "numbers"])
def test_parquet(tmp_path: Path, form: str, labels: str):
    rows = [(png(COLOURS[c]), d, c) for d in ("photo", "sketch") for c in COLOURS for _ in range(3)]
    images = [image if form == "bytes" else {"bytes": image, "path": None} for image, _, _ in rows]
    names = list(COLOURS)
    table = pa.table(
        {
            "image": images,
            "domain": [domain for _, domain, _ in rows],
            "label": [label if labels == "names" else names.index(label) for _, _, label in rows],
        }
    )
    if labels == "numbers":
        features = '{"info": {"features": {"label": {"names": ["red", "blue"], "_type": "ClassLabel"}}}}'
        table = table.replace_schema_metadata({"huggingface": features})
    pq.write_table(table, tmp_path / "images.parquet")
    dataset = ParquetFile(path=str(tmp_path / "images.parquet"), size=8)
    assert dataset.domain_names() == ("photo", "sketch")
    data = dataset.load(Streams(0))
    check_red_and_blue(data)
    assert data.classes == (("blue", "red") if labels == "names" else ("red", "blue"))


def test_parquet_that_is_missing_wrong_or_broken(tmp_path: Path):
    path = tmp_path / "images.parquet"
    with refuses("images.parquet'", "folder/domain/class/file", "Parquet file"):
        ParquetFile(path=str(path)).load(Streams(0))
    path.write_bytes(b"no parquet")
    with refuses("images.parquet", "cannot be read", "download it again"):
        ParquetFile(path=str(path)).load(Streams(0))
    pq.write_table(pa.table({"image": [b"x"], "label": [0]}), path)
    with refuses("no column domain", "image, label"):
        ParquetFile(path=str(path)).load(Streams(0))
    pq.write_table(pa.table({"image": [png((0, 0, 0)), b"x"], "domain": ["a", "a"], "label": [0, 0]}), path)
    with refuses("row 1", "images.parquet", "cannot be read"):
        ParquetFile(path=str(path)).load(Streams(0))


def test_what_a_parquet_image_may_be(tmp_path: Path):
    """Bytes, or the path of a file that is there; a name without a file, text or nothing is refused."""
    path = tmp_path / "images.parquet"
    (tmp_path / "blue.png").write_bytes(png(COLOURS["blue"]))

    def load(image: Any) -> torch.Tensor:
        pq.write_table(pa.table({"image": [image], "domain": ["a"], "label": ["b"]}), path)
        return ParquetFile(path=str(path), size=4).load(Streams(0)).x

    assert load({"bytes": None, "path": str(tmp_path / "blue.png")})[0, :, 0, 0].tolist() == list(COLOURS["blue"])
    for image in ({"bytes": None, "path": "nowhere.png"}, {"bytes": None}, "text", None, 3):
        with refuses("row 0", "images.parquet", "no bytes"):
            load(image)


def test_parquet_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a copy, a trace in the library's cache, or a question to the network."""
    import socket

    asked: list[object] = []  # raising would not do: the library forgives a network that is down

    def refuse(*about: object, **_: object) -> None:
        asked.append(about)
        raise OSError("no route")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    table = pa.table({"image": [png((0, 0, 0))], "domain": ["a"], "label": ["b"]})
    pq.write_table(table, tmp_path / "images.parquet")
    assert len(ParquetFile(path=str(tmp_path / "images.parquet")).load(Streams(0)).y) == 1
    assert not asked
    assert not (tmp_path / "cache").exists()
    assert not list((tmp_path / "temporary").iterdir())


def test_a_data_set_in_the_hubs_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The datasets library reads a local folder as it reads a hub id."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [
        ({"bytes": png(COLOURS[c]), "path": None}, d, c) for d in ("photo", "sketch") for c in COLOURS for _ in range(3)
    ]
    hub = tmp_path / "hub"
    hub.mkdir()
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(("image", "domain", "label"))})
    pq.write_table(table, hub / "train-00000.parquet")
    dataset = HubDataset(path=str(hub), size=8)
    assert dataset.domain_names() == ("photo", "sketch")
    check_red_and_blue(dataset.load(Streams(0)))


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with refuses("data.path = 'flwrlabs/pacs'", "no route", "data.name=parquet"):
        HubDataset(path="flwrlabs/pacs").load(Streams(0))
    with refuses("data.path = 'hub'", "ylecun/mnist", "no route", "data.path=shipped"):
        RotatedMNIST(path="hub").load(Streams(0))


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


def test_a_digit_is_held_out_at_every_angle_or_at_none():
    data = RotatedMNIST(images_per_class=10).load(Streams(0))
    (held_out,) = split(data, (0.1,), Streams(0))
    by_angle = held_out.view(6, 100)
    assert by_angle.sum(dim=1).tolist() == [10] * 6
    assert all(torch.equal(by_angle[0], row) for row in by_angle)


# Inputs -----------------------------------------------------------------------------------------


def test_images_become_numbers_between_0_and_1_and_normalised():
    x = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    assert Inputs().evaluation(x)[:, 0, 0, 0].tolist() == [0, 1]
    normalised = Inputs(normalise=True).evaluation(x)
    expected = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    torch.testing.assert_close(normalised[1, :, 0, 0], expected)
    assert x.max() == 255  # the stored images are untouched


def test_augmentation_comes_from_the_streams_and_in_training_only():
    x = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=Streams(0).generator("x"))
    inputs = Inputs(augment=True)
    before = torch.get_rng_state()
    first, again, other = (inputs.training(x, Streams(0), 7, number) for number in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.shape == x.shape
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(inputs.evaluation(x), x / 255)


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
