"""Data that are wrong are refused before anything is made of them, and the message names what is wrong and where."""

from __future__ import annotations

import io
import math
import os
import random
import struct
import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import fedshift
from conftest import Make, simulate
from fedshift import memory
from fedshift.clients.checks import check_data, check_names
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.content import digest
from fedshift.core.frozen import frozen_network
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.image_sets import HubDataset, ImageFolder, ParquetFile
from fedshift.datasets.images import decode
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.runs.simulation import Simulation, load_data
from fedshift.streams import Streams
from refusal import refuses

drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


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


def refusal(dataset: Dataset) -> str:
    """What a run says of a data set; anything but the one error fails the test, so do warnings."""
    with pytest.raises(FedshiftError) as caught:
        load_data.__wrapped__(dataset, None, 0, "")
    message = str(caught.value)
    message.encode()
    assert not any(ord(character) < 32 and character != "\n" for character in message)
    return message


# Names ------------------------------------------------------------------------------------------

letters = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from("aßéÅǅﬁΣς한"), min_size=1, max_size=12)


@st.composite
def twins(draw: st.DrawFn) -> tuple[str, str]:
    """A name, and another spelling of it: in other case, or with other white space."""
    words = draw(st.lists(letters, min_size=1, max_size=3))
    one, other = " ".join(words), draw(st.sampled_from((" ", "  "))).join(words)
    other = draw(st.sampled_from((str, str.casefold, str.lower)))(other) + draw(st.sampled_from(("", " ")))
    assume(one != other)
    return one, other


@drawn
@given(pair=twins(), kind=st.sampled_from(("domain", "class")))
@example(pair=("Berlin", "berlin"), kind="domain")
@example(pair=("Berlin", "BERLIN "), kind="domain")
@example(pair=("Straße", "STRASSE"), kind="class")
def test_two_spellings_of_one_name_are_refused_with_both_and_their_places(pair: tuple[str, str], kind: str):
    one, other = pair
    with pytest.raises(FedshiftError) as caught:
        check_names(kind, {one: "row 3", "somewhere else": "row 4", other: "row 5"})
    assert f"{one!r} (row 3) and {other!r} (row 5)" in str(caught.value)


@drawn
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


LEGAL = (r"a$\\frac$", "a/b", "..", "x" * 300, "[/red]", "a,b", "all", "<b>&amp;", "日本", "C:\\a?*", "--seed")


@pytest.mark.parametrize("name", LEGAL)
def test_any_legal_domain_name_survives_a_whole_run(
    name: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Folder names, TOML, tables, records and the command line's output take it."""
    path = tmp_path / "images.parquet"
    columns = rows(24) | {"image": [png(10 * i) for i in range(24)]}
    table(path, columns | {"domain": [name if domain == "oslo" else domain for domain in columns["domain"]]})
    held_out = "rome" if name == "all" else name  # hold_out = "all" is every domain
    experiment = make({"data": {"name": "parquet", "path": str(path), "size": 4}, "protocol.hold_out": held_out})
    assert len(experiment.run_name.encode()) < 255
    assert not set(experiment.run_name) & set('/\\:*?"<>|\n')
    comparison = fedshift.compare(experiment)
    (run,) = fedshift.load(comparison.folders[0]).runs
    assert run.table["protocol"]["hold_out"] == held_out
    assert {row["environment"] for row in comparison.measurements()} >= {name}
    console = Console(width=1000)
    for shown in comparison.tables():
        console.print(shown.rich())
    for text in (str(comparison), capsys.readouterr().out):
        assert len(name) > 100 or held_out in text  # a long one is broken into lines


# Cells ------------------------------------------------------------------------------------------


def test_classes_of_files_that_do_not_agree(tmp_path: Path):
    import json

    for number, names in enumerate((["red", "blue"], ["red", "green"])):
        features = json.dumps({"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}})
        held = pa.table({"image": [PNG] * 2, "domain": ["a"] * 2, "label": [0, 1]})
        pq.write_table(held.replace_schema_metadata({"huggingface": features}), tmp_path / f"{number}.parquet")
    message = refusal(ParquetFile(path=str(tmp_path), size=4))
    assert f"in row 1 of {tmp_path / '1.parquet'} has the label 'green', which is not among blue, red" in message


# Data of a plugin -------------------------------------------------------------------------------


def fields(**changes: Any) -> dict[str, Any]:
    number = torch.arange(12)
    return {
        "x": torch.zeros(12, 2, 3),
        "y": number % 3,
        "domain": number // 6,
        "domains": ("oslo", "rome"),
        "classes": ("ant", "bee", "cat"),
        "group": number,
        "environment": None,
        "environments": (),
    } | changes


class Given(Dataset):
    """A data set of the fields that a test gives."""

    fields: Any = None

    def load(self, streams: Streams) -> DomainData:
        return DomainData(**self.fields) if isinstance(self.fields, dict) else self.fields


def given_data(value: Any) -> Given:
    dataset = Given()
    object.__setattr__(dataset, "fields", value)
    return dataset


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": [[0.0]] * 12}, ["x is of type list"]),
        ({"x": torch.zeros(12, 2, dtype=torch.complex64)}, ["x is torch.complex64"]),
        ({"x": torch.zeros(0, 2)}, ["x has the shape (0, 2)", "no sample"]),
        ({"y": torch.zeros(12, dtype=torch.int32)}, ["y is torch.int32", "int64"]),
        ({"y": torch.zeros(11, dtype=torch.int64)}, ["y is torch.int64 (11,)", "12 samples"]),
        ({"group": None}, ["group is NoneType"]),
        ({"domains": ["oslo", "rome"]}, ["domains = ['oslo', 'rome']", "tuple of strings"]),
        ({"classes": ("ant", "bee", "ant")}, ["classes holds 'ant' twice"]),
        ({"environment": torch.ones(12, dtype=torch.int64), "environments": ("e",)}, ["environment is 1 of sample 0"]),
        ({"y": torch.full((12,), 9), "domain": torch.full((12,), -1)}, ["y is 9 of sample 0"]),
        ({"classes": ("bee", "bee ", "cat")}, ["'bee' (first of sample 0) and 'bee ' (first of sample 1)"]),
        ({"y": torch.zeros(12, dtype=torch.int64)}, ["Every sample is of the class 'ant'"]),
        ({"x": torch.tensor([[1, -1]] * 12)}, ["x holds -1 at [1] of sample 0", "and 11 more samples"]),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], words: list[str]):
    message = refusal(given_data(fields(**changes)))
    for word in words:
        assert word in message


@drawn
@given(
    field=st.sampled_from(("y", "domain")),
    row=st.integers(0, 11),
    bad=st.integers(-(2**62), 2**62).filter(lambda number: not 0 <= number < 3),
)
def test_a_number_without_a_name_is_named_with_its_sample(field: str, row: int, bad: int):
    numbers = fields()[field].clone()
    numbers[row] = bad
    assert f"{field} is {bad} of sample {row}" in refusal(given_data(fields(**{field: numbers})))


@drawn
@given(
    row=st.integers(0, 11),
    place=st.tuples(st.integers(0, 1), st.integers(0, 2)),
    bad=st.sampled_from((math.nan, math.inf, -math.inf)),
    piece=st.sampled_from((1, 7, 1 << 22)),
)
def test_what_is_not_finite_is_named_with_its_place(row: int, place: tuple[int, int], bad: float, piece: int):
    x = torch.zeros(12, 2, 3)
    x[row][place] = bad
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedshift.clients.checks.PIECE", piece)
        message = refusal(given_data(fields(x=x)))
    assert f"x holds {bad} at {list(place)} of sample {row} (domain '{'rome' if row > 5 else 'oslo'}'" in message


def test_every_run_is_checked(make: Make, monkeypatch: pytest.MonkeyPatch):
    from fedshift.runs import simulation

    simulation.load_data.cache_clear()
    experiment = make()
    loaded = type(experiment.data).load

    def load(self: Dataset, streams: Streams) -> DomainData:
        data = loaded(self, streams)
        data.x[5, 0, 0, 0] = math.nan
        return data

    monkeypatch.setattr(type(experiment.data), "load", load)
    try:
        with refuses("nan at [0, 0, 0]", "sample 5", "finite numbers"):
            Simulation(experiment)
    finally:
        simulation.load_data.cache_clear()


# Files ------------------------------------------------------------------------------------------


def damaged(data: bytes, how: str, seed: int) -> bytes:
    drawn = random.Random(seed)
    at = drawn.randrange(len(data))
    if how == "cut":
        return data[:at]
    if how == "noise":
        return drawn.randbytes(drawn.randrange(300))
    return data[:at] + drawn.randbytes(8) + data[at + 8 :]


def encoded(form: str) -> bytes:
    buffer = io.BytesIO()
    mode = {"GIF": "P", "PPM": "L"}.get(form, "RGB")
    Image.effect_noise((40, 40), 50).convert(mode).save(buffer, form)
    return buffer.getvalue()


@drawn
@given(
    form=st.sampled_from(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "DDS", "SGI", "PCX")),
    how=st.sampled_from(("cut", "noise", "change")),
    seed=st.integers(0, 2**32),
)
def test_a_damaged_image_is_read_or_named(tmp_path: Path, form: str, how: str, seed: int):
    file = tmp_path / "damaged"
    file.write_bytes(damaged(encoded(form), how, seed))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what it reads nevertheless
            decode(str(file), file, 4, 3)
    except FedshiftError as error:
        assert str(file) in str(error)


@drawn
@given(stem=st.text(st.characters(exclude_characters="/\0", exclude_categories=()), min_size=1, max_size=40))
@example("\udce9")
@example("a\nb")
def test_a_file_may_have_any_name(tmp_path_factory: pytest.TempPathFactory, stem: str):
    """It is read, and counts in the fingerprint; where it cannot be read, the message that says so can be printed."""
    root = tmp_path_factory.mktemp("data")
    assume(stem not in ("0", "1"))
    dataset = images(root, FOUR)
    file = root / "oslo" / "cat" / f"{stem}.png"
    try:
        file.write_bytes(PNG)
    except ValueError:  # no bytes of a file's name stand for such text
        assume(False)
    assert len(dataset.load(Streams(0)).y) == (8 if stem.startswith(".") else 9)
    before = digest(root)
    file.write_bytes(b"no image")
    assert digest(root) != before
    if not stem.startswith("."):
        assert "no image" not in refusal(dataset)


def spoil(root: Path, how: str) -> str:
    """Something in a folder of images that cannot be read; answers what the message has to name."""
    place = root / "oslo" / "cat" / "9.png"
    if how == "empty file":
        place.write_bytes(b"")
    elif how == "link to itself":
        place.symlink_to(place)
    elif how == "link to nothing":
        place.symlink_to(root / "nothing")
    elif how == "domain with a line end":
        place = root / "a\nb"
        images(root, [("a\nb", "cat"), ("a\nb", "dog")])
    elif how == "domain that is no UTF-8":
        place = root / os.fsdecode(b"caf\xe9")
        images(root, [(place.name, "cat"), (place.name, "dog")])
    elif how == "class with an escape":
        place = root / "oslo" / "\x1b[31m"
        images(root, [("oslo", place.name), ("rome", place.name)])
    return repr(place.name)[1:-1]


@pytest.mark.parametrize(
    "how",
    [
        *("empty file", "link to itself", "link to nothing"),
        *("domain with a line end", "domain that is no UTF-8", "class with an escape"),
    ],
)
def test_what_cannot_be_read_in_a_folder_is_named(tmp_path: Path, how: str, make: Make):
    dataset = images(tmp_path / "data", FOUR)
    named = spoil(tmp_path / "data", how)
    assert named in refusal(dataset)
    with pytest.raises(FedshiftError):
        simulate(make({"data": {"name": "folder", "path": str(tmp_path / "data")}, "protocol.hold_out": "rome"}))


@drawn
@given(bad=st.sets(st.integers(0, 39), min_size=1, max_size=20), kind=st.sampled_from(("folder", "parquet")))
def test_all_images_that_cannot_be_read_are_counted_and_ten_are_named(
    tmp_path_factory: pytest.TempPathFactory, bad: set[int], kind: str
):
    root = tmp_path_factory.mktemp("data")
    if kind == "folder":
        dataset: Dataset = images(root, FOUR, count=10)
        files = sorted(root.rglob("*.png"))
        for number in bad:
            files[number].write_bytes(b"no image")
        places = [str(files[number]) for number in sorted(bad)]
    else:
        held: list[bytes | None] = [None if i in bad and i % 2 else b"x" if i in bad else PNG for i in range(40)]
        dataset = table(root / "x.parquet", rows(40) | {"image": held})
        places = [f"in row {number} of " for number in sorted(bad)]
    message = refusal(dataset)
    for place in places[:10]:
        assert f"The image {place}" in message
    assert message.count("The image ") == min(len(bad), 10)
    if len(bad) > 1:
        assert message.startswith(f"{len(bad)} images cannot be read")
    assert (f"and {len(bad) - 10} more" in message) == (len(bad) > 10)


def test_problems_are_raised_as_one():
    none, one, twelve = Problems("things"), Problems("things"), Problems("things")
    none.check()
    one.add(UnknownNameError("method", "x", ["y"]))
    with pytest.raises(UnknownNameError):
        one.check()
    for number in range(12):
        with twelve.gathered():
            raise FedshiftError(f"problem {number}")
    with refuses("12 things", "problem 0", "problem 9", "2 more") as caught:
        twelve.check()
    assert "problem 10" not in str(caught.value)


# What is left out -------------------------------------------------------------------------------

DICOM = bytes(128) + b"DICM" + bytes(20)


def test_what_is_not_read_is_said(tmp_path: Path, make: Make):
    root = tmp_path / "data"
    images(root, FOUR, count=6)
    for name in ("oslo/cat/a.dcm", "oslo/cat/1.2.840.113619.78", "rome/dog/IM0001"):
        (root / name).write_bytes(DICOM)
    for name in ("oslo/cat/x.txt", "labels.csv", "oslo/.hidden", "rome/cat/README"):
        (root / name).write_bytes(b"text")
    (root / "oslo" / "misplaced.png").write_bytes(PNG)
    simulation = Simulation(
        make({"data": {"name": "folder", "path": str(root), "size": 4}, "protocol.hold_out": "rome"})
    )
    (note,) = (note for note in simulation.notes if "Not read" in note)
    assert note == f"Not read in '{root}': 1 .csv, 1 .dcm, 1 .png, 1 .txt, 3 without a suffix."


def test_a_domain_of_dicom_alone_is_refused(tmp_path: Path):
    dataset = images(tmp_path, FOUR)
    (tmp_path / "paris" / "cat").mkdir(parents=True)
    (tmp_path / "paris" / "cat" / "IM1").write_bytes(DICOM)
    assert f"'{tmp_path / 'paris'}' holds no image in domain/class/file ('medical' reads DICOM)" in refusal(dataset)


# Sizes ------------------------------------------------------------------------------------------


def claimed(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


@drawn
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
    assert "12 images of 100 x 100 pixels in 3 channels, takes 360.0 kB, but only 360.0 kB" in message
    assert "data.size" in message


# The hub ----------------------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A machine without a network; a list of what was asked of it."""
    import socket

    asked: list[object] = []

    def refuse(*about: object, **_: object) -> None:
        asked.append(about)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


@pytest.mark.parametrize("what", ["frozen", "data", "weights", "clip"])
def test_a_hub_that_cannot_be_reached_is_asked_once(what: str, no_network: list[object]):
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoModel, "imported, so that only the question is waited for"
    import datasets
    from huggingface_hub import constants

    from fedshift.methods.client2vec.clip import CLIP
    from fedshift.models.backbones import ResNet18

    asks = {
        "frozen": lambda: frozen_network("nobody/nothing"),
        "data": lambda: HubDataset(path="nobody/nothing").load(Streams(0)),
        "weights": lambda: ResNet18(weights="nobody/nothing").encoder((3, 32, 32), 4),
        "clip": lambda: CLIP(path="nobody/nothing").dim,
    }
    slept: list[float] = []
    with pytest.MonkeyPatch.context() as patch, refuses("= 'nobody/nothing'"):
        patch.setattr(time, "sleep", slept.append)
        asks[what]()
    assert sum(slept) == 0
    assert len(no_network) <= 1
    assert not constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE
