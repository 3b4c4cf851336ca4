"""Digits: four sources in their own layouts, and MNIST-M's arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedshift.clients.partitions import split
from fedshift.datasets.digits import Digits
from fedshift.streams import Streams
from refusal import refuses
from test_data import write_idx


def mnist(root: Path, each: int = 10) -> str:
    """``each`` images a digit; image n is of digit n % 10 and has the gray n everywhere."""
    grays = np.arange(10 * each, dtype=np.uint8).reshape(-1, 1, 1) + np.zeros((1, 28, 28), np.uint8)
    write_idx(root / "mnist", grays, np.arange(10 * each) % 10)
    return str(root / "mnist")


def photographs(root: Path, size: tuple[int, int] = (50, 40)) -> str:
    (root / "photographs").mkdir(exist_ok=True)
    Image.new("RGB", size, (250, 120, 0)).save(root / "photographs" / "one.png")
    return str(root / "photographs")


def test_mnist_m_is_made_from_mnist_and_photographs(tmp_path: Path):
    """Digits of gray n before the colour (250, 120, 0): (250 - n, |120 - n|, n)."""
    domains = ("mnist", "mnist-m")
    settings = {"mnist": mnist(tmp_path), "photographs": photographs(tmp_path)}
    data = Digits(domains=domains, fraction=0.3, **settings).load(Streams(0))
    assert data.domains == domains
    assert data.x.shape == (60, 3, 32, 32)
    assert torch.equal(data.domain, torch.arange(2).repeat_interleave(30))
    assert torch.bincount(data.y).tolist() == [6] * 10
    gray, made = data.x[:30, 0, 0, 0].long(), data.x[30:].long()
    assert torch.equal(gray % 10, data.y[:30])
    number = made[:, 2, 0, 0]
    assert torch.equal(number % 10, data.y[30:])
    assert torch.equal(made[:, 0], (250 - number).view(-1, 1, 1).expand(-1, 32, 32))
    assert torch.equal(made[:, 1], (120 - number).abs().view(-1, 1, 1).expand(-1, 32, 32))
    assert set(gray.tolist()) != set(number.tolist())  # drawn on its own


def test_an_image_that_is_in_mnist_and_mnist_m_keeps_to_one_side(tmp_path: Path):
    settings = {"mnist": mnist(tmp_path), "photographs": photographs(tmp_path)}
    data = Digits(domains=("mnist-m", "mnist"), fraction=1.0, **settings).load(Streams(0))
    (held,) = split(data, (0.3,), Streams(0))
    number = torch.cat([data.x[:100, 2, 0, 0], data.x[100:, 2, 0, 0]]).long()
    sides = torch.zeros(100, 2).index_put_((number, held.long()), torch.ones(200), accumulate=True)
    assert sorted(sides[:, 1].tolist()) == [0.0] * 70 + [2.0] * 30


def test_crops_are_of_all_places_and_the_photograph_keeps_its_size(tmp_path: Path):
    """Red counts columns, green rows of a photograph 50 wide and 40 high; black digits show the crop itself.

    Crops of 32 start at columns 0 to 18 and rows 0 to 8.
    """
    folder = Path(photographs(tmp_path))
    pixels = np.zeros((40, 50, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(50), np.arange(40).reshape(-1, 1)
    Image.fromarray(pixels).save(folder / "one.png")
    write_idx(tmp_path / "black", np.zeros((1000, 28, 28)), np.arange(1000) % 10)
    settings = {"mnist": str(tmp_path / "black"), "photographs": str(folder), "domains": ("mnist-m",)}
    x = Digits(fraction=1.0, **settings).load(Streams(0)).x
    corner = x[:, :2, 0, 0]
    assert [set(each.tolist()) for each in corner.T] == [set(range(19)), set(range(9))]
    assert torch.equal(x[:, :2, 31, 31], corner + 31)


def test_the_part_that_is_kept_is_the_same_of_every_digit_and_at_least_one(tmp_path: Path):
    """10 images a digit: 30 % are 3; 1 % would be none, so one. The other domains asked for change nothing."""
    settings: dict[str, Any] = {"mnist": mnist(tmp_path), "photographs": photographs(tmp_path)}
    for fraction, count in ((0.3, 3), (0.01, 1), (1.0, 10)):
        data = Digits(domains=("mnist",), fraction=fraction, **settings).load(Streams(0))
        assert torch.bincount(data.y).tolist() == [count] * 10
        assert len(set(data.group.tolist())) == 10 * count
    both = Digits(domains=("mnist-m", "mnist"), fraction=1.0, **settings).load(Streams(0))
    assert torch.equal(both.x[both.domain == 1], data.x)


def test_usps_from_files(tmp_path: Path):
    """Twenty images in folders of their digit, or in Parquet; image n is of digit n % 10 and has the gray 10 n."""
    rows = []
    for number in range(20):
        file = tmp_path / "usps" / str(number % 10) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), 10 * number).save(file)
        rows.append({"image": {"bytes": file.read_bytes(), "path": None}, "label": number % 10})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "usps.parquet")
    for name in ("usps", "usps.parquet"):
        data = Digits(domains=("usps",), fraction=1.0, usps=str(tmp_path / name)).load(Streams(0))
        assert data.x.shape == (20, 3, 32, 32)
        assert torch.equal(data.x[:, 0, 5, 5].long() // 10 % 10, data.y)
        assert (data.x == data.x[:, :1, :1, :1]).all()


def test_svhn_from_its_own_file(tmp_path: Path):
    """Its label 10 is the digit 0; X is (32, 32, 3, N), here with red n, green row and blue column."""
    from scipy.io import savemat

    number, row, column = np.arange(20), np.arange(32).reshape(-1, 1, 1), np.arange(32).reshape(1, -1, 1)
    pixels = np.stack(np.broadcast_arrays(number, row, column), axis=2).astype(np.uint8)
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": pixels, "y": np.array([n % 10 or 10 for n in range(20)]).reshape(-1, 1)})
    data = Digits(domains=("svhn",), fraction=1.0, svhn=str(path)).load(Streams(0))
    assert torch.equal(data.x[:, 0, 0, 0].long() % 10, data.y)
    assert data.x[0, 1, :, 0].tolist() == data.x[0, 2, 0].tolist() == list(range(32))
    path.write_bytes(b"no matrix")
    with refuses("train_32x32.mat", "SVHN"):
        Digits(domains=("svhn",), svhn=str(path)).load(Streams(0))


def test_usps_and_svhn_from_the_hub(monkeypatch: pytest.MonkeyPatch):
    """The hub's rows are PIL images and class labels; SVHN's cropped digits are a configuration of its own."""
    import datasets

    rows = {"image": [Image.new("L", (16, 16), 20 * digit) for digit in range(10)], "label": list(range(10))}
    names = datasets.ClassLabel(names=[str(digit) for digit in range(10)])
    held = datasets.Dataset.from_dict(rows, datasets.Features({"image": datasets.Image(), "label": names}))
    asked: list[Any] = []

    def load(*what: Any, split: str) -> datasets.Dataset:
        asked.append((*what, split))
        return held

    monkeypatch.setattr(datasets, "load_dataset", load)
    data = Digits(domains=("usps", "svhn")).load(Streams(0))
    assert torch.equal(data.x[:, 0, 0, 0].long(), 20 * data.y)
    assert asked == [("flwrlabs/usps", None, "train"), ("ufldl-stanford/svhn", "cropped_digits", "train")]


def test_what_cannot_be_had_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    made: dict[str, Any] = {"domains": ("mnist-m",), "mnist": mnist(tmp_path)}
    for settings, words in (
        ({"domains": ("usps",)}, ("data.usps = 'hub'", "flwrlabs/usps", "no route", "--set data.domains=")),
        ({"domains": ("mnist",), "mnist": "hub"}, ("data.mnist = 'hub'", "no route", "--set data.mnist=shipped")),
        ({"domains": ("svhn",), "svhn": ""}, ("data.svhn = ''", "folder/class/file", "Parquet")),
        (made, ("data.photographs = ''", "leave it out", "--set data.domains=")),
        ({**made, "photographs": photographs(tmp_path, size=(40, 31))}, ("one.png", "32 pixels")),
    ):
        with refuses(*words):
            Digits(**settings).load(Streams(0))
