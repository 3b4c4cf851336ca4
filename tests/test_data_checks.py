"""Data that are wrong are refused before anything is made of them, and the message names what is wrong and where."""

from __future__ import annotations

import io
import math
import socket
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image

import fedshift
from conftest import Make
from fedshift import memory
from fedshift.clients.data_checks import check_data, check_names
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.core.frozen import frozen_network
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.image_sets import HubDataset, ImageFolder, ParquetFile
from fedshift.datasets.images import decode
from fedshift.streams import Streams
from refusal import refusal, refuses


def png(shade: int = 0, side: int = 4) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (shade, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


PNG = png()


def rows(count: int = 12) -> dict[str, list[Any]]:
    """A table of two domains and two classes."""
    names = [("oslo", "cat"), ("oslo", "dog"), ("rome", "cat"), ("rome", "dog")]
    picked = [names[i % 4] for i in range(count)]
    return {"image": [PNG] * count, "domain": [d for d, _ in picked], "label": [c for _, c in picked]}


def table(path: Path, columns: dict[str, Any]) -> ParquetFile:
    pq.write_table(pa.table(columns), path)
    return ParquetFile(path=str(path), size=4)


def images(root: Path, names: Sequence[tuple[str, str]], count: int = 2) -> ImageFolder:
    for domain, label in names:
        (root / domain / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / domain / label / f"{number}.png").write_bytes(PNG)
    return ImageFolder(path=str(root), size=4)


FOUR = (("oslo", "cat"), ("oslo", "dog"), ("rome", "cat"), ("rome", "dog"))


# Names ------------------------------------------------------------------------------------------

letters = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from("aßéÅǅﬁΣς한"), min_size=1, max_size=12)


@pytest.mark.parametrize("pair", [("Berlin", "berlin"), ("Berlin", "BERLIN "), ("Straße", "STRASSE"), ("a b", "a  b")])
def test_two_spellings_of_one_name_are_refused_with_both_and_their_places(pair: tuple[str, str]):
    one, other = pair
    with refuses(f"{one!r} (row 3) and {other!r} (row 5)"):
        check_names("domain", {one: "row 3", "somewhere else": "row 4", other: "row 5"})


@given(before=letters, bad=st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp")), after=letters)
@example("line", "\n", "end")
@example("caf", "\udce9", "s")
def test_names_that_cannot_be_shown_are_refused(before: str, bad: str, after: str):
    name = before + bad + after
    with refuses(f"{name!r} (row 2)", "cannot be printed") as caught:
        check_names("domain", {"fine": "row 1", name: "row 2"})
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_the_characters_of_a_text_are_classes_that_differ_in_case():
    y = torch.tensor([0, 1, 2, 3])
    names = ("a", "A", " ", "\n")
    data = DomainData(y.view(4, 1), y, y % 2, ("one", "two"), names, y)
    check_data(data, Inputs(vocabulary=names))
    with refuses("class names", "'a'", "'A'"):
        check_data(data, Inputs())


@pytest.mark.parametrize("name", [r"a$\\frac$", "a/b", "..", "x" * 300, "[/red]", "all", "<b>&amp;", "日本", "C:\\a?*"])
def test_any_legal_domain_name_survives_a_whole_run(name: str, make: Make, tmp_path: Path):
    """Folder names, TOML, tables and records take it."""
    path = tmp_path / "images.parquet"
    columns = rows(24) | {"image": [png(10 * i) for i in range(24)]}
    table(path, columns | {"domain": [name if domain == "oslo" else domain for domain in columns["domain"]]})
    held_out = "rome" if name == "all" else name  # hold_out = "all" is every domain
    experiment = make({"data": {"name": "parquet", "path": str(path), "size": 4}, "protocol.hold_out": held_out})
    assert len(experiment.run_name.encode()) < 255
    assert not set(experiment.run_name) & set('/\\:*?"<>|\n')
    comparison = fedshift.compare(experiment)
    (run,) = fedshift.load(comparison.runs[0].path).runs
    assert run.table["protocol"]["hold_out"] == held_out
    assert {row["environment"] for row in comparison.measurements()} >= {name}
    assert len(name) > 100 or held_out in str(comparison)  # a long one is broken into lines


# Data of a plugin -------------------------------------------------------------------------------


def given_data(**changes: Any) -> Given:
    number = torch.arange(12)
    dataset, fields = (
        Given(),
        {
            "x": torch.zeros(12, 2, 3),
            "y": number % 3,
            "domain": number // 6,
            "domains": ("oslo", "rome"),
            "classes": ("ant", "bee", "cat"),
            "group": number,
            "environment": None,
            "environments": (),
        },
    )
    object.__setattr__(dataset, "fields", fields | changes)
    return dataset


class Given(Dataset):
    """A data set of the fields that a test gives."""

    fields: Any = None

    def load(self, streams: Streams) -> DomainData:
        return DomainData(**self.fields)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": [[0.0]] * 12}, ["x is of type list"]),
        ({"x": torch.zeros(12, 2, dtype=torch.complex64)}, ["x is torch.complex64"]),
        ({"x": torch.zeros(0, 2)}, ["x has the shape (0, 2)", "no sample"]),
        ({"y": torch.zeros(11, dtype=torch.int64)}, ["y is torch.int64 (11,)", "12 samples"]),
        ({"group": None}, ["group is NoneType"]),
        ({"domains": ["oslo", "rome"]}, ["domains = ['oslo', 'rome']", "tuple of strings"]),
        ({"environment": torch.ones(12, dtype=torch.int64), "environments": ("e",)}, ["environment is 1 for sample 0"]),
        ({"y": torch.full((12,), 9), "domain": torch.full((12,), -1)}, ["y is 9 for sample 0"]),
        ({"classes": ("bee", "bee ", "cat")}, ["'bee' (first of sample 0) and 'bee ' (first of sample 1)"]),
        ({"y": torch.zeros(12, dtype=torch.int64)}, ["Every sample is of the class 'ant'"]),
        ({"x": torch.tensor([[1, -1]] * 12)}, ["x contains -1 at [1] of sample 0", "and 11 more samples"]),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], words: list[str]):
    message = refusal(given_data(**changes))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named_with_its_place(bad: float, piece: int, monkeypatch: pytest.MonkeyPatch):
    x = torch.zeros(12, 2, 3)
    x[8, 1, 2] = bad
    monkeypatch.setattr("fedshift.clients.data_checks.PIECE", piece)
    assert f"x contains {bad} at [1, 2] of sample 8 (domain 'rome'" in refusal(given_data(x=x))


# What is excluded -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["oslo/cat/9.png", "a\nb", "caf\udce9", "oslo/\x1b[31m"])
def test_what_cannot_be_read_in_a_folder_is_named(tmp_path: Path, place: str):
    """A link to itself, domains with a line end and of no UTF-8, a class with an escape."""
    dataset = images(tmp_path, FOUR)
    if place.endswith(".png"):
        (tmp_path / place).symlink_to(tmp_path / place)
    else:
        *_, name = place.split("/")
        images(tmp_path, [("oslo", name), ("rome", name)] if "/" in place else [(name, "cat"), (name, "dog")])
    assert repr(Path(place).name)[1:-1] in refusal(dataset)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_all_images_that_cannot_be_read_are_counted_and_ten_are_named(tmp_path: Path, kind: str):
    bad = range(3, 36, 3)  # 11 of 40
    if kind == "folder":
        dataset: Dataset = images(tmp_path, FOUR, count=10)
        files = sorted(tmp_path.rglob("*.png"))
        for number in bad:
            files[number].write_bytes(b"no image")
        places = [str(files[number]) for number in bad]
    else:
        held: list[bytes | None] = [None if i in bad and i % 2 else b"x" if i in bad else PNG for i in range(40)]
        dataset = table(tmp_path / "x.parquet", rows(40) | {"image": held})
        places = [f"in row {number} of " for number in bad]
    message = refusal(dataset)
    assert message.startswith("11 images cannot be read")
    assert [place for place in places if f"The image {place}" in message] == places[:10]
    assert "and 1 more" in message


def test_what_is_not_read_is_said_and_a_domain_without_an_image_is_refused(tmp_path: Path):
    root, dicom = tmp_path / "data", bytes(128) + b"DICM" + bytes(20)
    dataset = images(root, FOUR)
    for name in ("oslo/cat/a.dcm", "oslo/cat/1.2.840.113619.78", "rome/dog/IM0001"):
        (root / name).write_bytes(dicom)
    for name in ("oslo/cat/x.txt", "labels.csv", "oslo/.hidden", "rome/cat/README"):
        (root / name).write_bytes(b"text")
    (root / "oslo" / "misplaced.png").write_bytes(PNG)
    said = f"Not read in '{root}': 1 .csv, 1 .dcm, 1 .png, 1 .txt, 3 without a suffix."
    assert said in dataset.load(Streams(0)).notes
    (root / "paris" / "cat").mkdir(parents=True)
    (root / "paris" / "cat" / "IM1").write_bytes(dicom)
    assert f"'{root / 'paris'}' contains no image in domain/class/file ('medical' reads DICOM)" in refusal(dataset)


# Sizes ------------------------------------------------------------------------------------------


def claimed(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims that many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


@given(width=st.integers(1, 2**31 - 1), height=st.integers(1, 2**31 - 1))
@example(12000, 12000)
@example(9460, 9460)
@example(2**31 - 1, 2**31 - 1)
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(width: int, height: int):
    assume(width * height > Image.MAX_IMAGE_PIXELS)
    with refuses("huge", str(width * height), "exceeds limit"):
        decode("huge", claimed(width, height), 4, 3)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_a_data_set_that_does_not_fit_is_refused_before_it_is_decoded(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedshift.datasets.images.decode", lambda *_: pytest.fail("an image was read"))
    monkeypatch.setattr(memory, "available", lambda: 12 * 3 * 100 * 100 - 1)
    images(tmp_path / "data", FOUR, count=3)
    table(tmp_path / "x.parquet", rows())
    path = tmp_path / ("data" if kind == "folder" else "x.parquet")
    dataset = (ImageFolder if kind == "folder" else ParquetFile)(path=str(path), size=100)
    message = refusal(dataset)
    assert "12 images of 100 x 100 pixels in 3 channels, takes 360 kB, but only 360 kB" in message
    assert "data.size" in message


# The hub ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["frozen", "data", "weights", "clip"])
def test_a_hub_that_cannot_be_reached_is_asked_once(what: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    from fedshift.methods.client2vec.clip import CLIP
    from fedshift.models.backbones import ResNet18

    asks = {
        "frozen": lambda: frozen_network("nobody/nothing"),
        "data": lambda: HubDataset(path="nobody/nothing").load(Streams(0)),
        "weights": lambda: ResNet18(weights="nobody/nothing").encoder((3, 32, 32), 4),
        "clip": lambda: CLIP(path="nobody/nothing").dim,
    }
    requested, slept = list[object](), list[float]()

    def refuse(*about: object, **_: object) -> None:
        requested.append(about)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", slept.append)
    with refuses("= 'nobody/nothing'"):
        asks[what]()
    assert not slept
    assert len(requested) <= 1
