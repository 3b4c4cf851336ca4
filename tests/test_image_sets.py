"""The image data sets of the catalogue and the digits, read from small files in the layouts of the real ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from conftest import Make
from fedshift.clients.partitions import split
from fedshift.datasets import DATASETS
from fedshift.datasets.digits import Digits
from fedshift.datasets.image_sets import CIFAR10, PACS, DomainNet, NamedImages, OfficeCaltech10, OfficeHome
from fedshift.datasets.wilds import Camelyon17, IWildCam
from fedshift.streams import Streams
from fedshift.study.grid import expand, override
from refusal import refuses
from test_data import write_idx

NAMES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
TEN = tuple(f"c{number}" for number in range(10))


def png(value: int) -> bytes:
    """A gray image whose every pixel is ``value``."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (value, value, value)).save(buffer, "png")
    return buffer.getvalue()


def value(domain: int, label: int) -> int:
    return 20 * domain + label


def rows(domains: tuple[str, ...], classes: tuple[str, ...]) -> list[tuple[int, str, str]]:
    return [(value(d, c), domain, label) for d, domain in enumerate(domains) for c, label in enumerate(classes)]


def write_folder(root: Path, domains: tuple[str, ...], classes: tuple[str, ...]) -> str:
    for pixel, domain, label in rows(domains, classes):
        (root / domain / label).mkdir(parents=True)
        (root / domain / label / "0.png").write_bytes(png(pixel))
    return str(root)


def table(domains: tuple[str, ...], classes: tuple[str, ...], image: str = "image", domain: bool = True) -> pa.Table:
    """A table as the hub writes it: images as structs, labels as numbers with their names in the metadata."""
    made = rows(domains, classes)
    columns: dict[str, Any] = {image: [{"bytes": png(pixel), "path": None} for pixel, _, _ in made]}
    if domain:
        columns["domain"] = [name for _, name, _ in made]
    columns["label"] = [classes.index(label) for _, _, label in made]
    features = {image: {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def check(dataset: NamedImages, classes: tuple[str, ...] = NAMES) -> None:
    """Every pixel encodes its image's domain and class."""
    data = dataset.load(Streams(0))
    assert data.domains == dataset.domain_names()
    assert data.classes == classes
    assert len(data.y) == len(data.domains) * len(classes)
    for x, y, domain in zip(data.x, data.y.tolist(), data.domain.tolist(), strict=True):
        assert x.unique().tolist() == [value(domain, y)]


# Where they are read from -------------------------------------------------------------------------

SPELLINGS = ("Art Painting", "Cartoon", "photo", "SKETCH")


def test_pacs_from_a_folder_whatever_the_spelling(tmp_path: Path):
    dataset = PACS(path=write_folder(tmp_path, SPELLINGS, NAMES), size=4)
    assert dataset.domain_names() == ("art_painting", "cartoon", "photo", "sketch")
    check(dataset)


def test_pacs_from_parquet_in_several_files(tmp_path: Path):
    """The labels of the hub's format keep their order, and rows are read from every file."""
    whole = table(SPELLINGS, NAMES)
    pq.write_table(whole.slice(0, 10), tmp_path / "train-0.parquet")
    (tmp_path / "more").mkdir()
    pq.write_table(whole.slice(10), tmp_path / "more" / "train-1.parquet")
    check(PACS(path=str(tmp_path), size=4))


def test_from_the_hub(monkeypatch: pytest.MonkeyPatch):
    import datasets

    things, homes = tuple(f"thing{number:02d}" for number in range(65)), ("Art", "Clipart", "Product", "Real World")
    held = {"flwrlabs/pacs": table(SPELLINGS, NAMES), "flwrlabs/office-home": table(homes, things)}
    held["uoft-cs/cifar10"] = table(("",), TEN, image="img", domain=False)
    calls: list[tuple[str, str]] = []

    def load_dataset(path: str, _: None, split: str) -> datasets.Dataset:
        calls.append((path, split))
        if path not in held:
            raise ConnectionError("no route")
        return datasets.Dataset(held[path])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    check(PACS(size=4))
    check(OfficeHome(size=4), things)
    assert OfficeHome().domain_names() == ("art", "clipart", "product", "real_world")
    check(CIFAR10(size=4), TEN)  # whose images the hub calls 'img', and which has no column of domains
    with refuses("data.path = 'hub'", "wltjr1007/DomainNet", "no route", "--set data.path=PATH"):
        DomainNet().load(Streams(0))
    assert {("flwrlabs/pacs", "train"), ("wltjr1007/DomainNet", "train+test")} < set(calls)


def test_cifar10_is_one_domain_wherever_it_is_read_from(tmp_path: Path):
    for name in ("train", "test"):
        pq.write_table(table(("",), TEN, domain=False), tmp_path / f"{name}.parquet")
    check(CIFAR10(path=str(tmp_path / "train.parquet"), size=4), TEN)
    folder = write_folder(tmp_path / "images", ("test", "train"), TEN)
    for path in (str(tmp_path), folder):
        data = CIFAR10(path=path).load(Streams(0))
        assert (data.domains, data.x.shape, data.domain.unique().tolist()) == (("cifar10",), (20, 3, 32, 32), [0])


def test_office_caltech_10_has_no_hub(tmp_path: Path):
    root = write_folder(tmp_path / "office", ("Caltech", "amazon", "dslr", "webcam"), TEN)
    data = OfficeCaltech10(path=root, size=4).load(Streams(0))
    assert data.domains == ("amazon", "caltech10", "dslr", "webcam")
    assert data.x[(data.domain == 1) & (data.y == 3)].unique().tolist() == [value(0, 3)]  # 'Caltech' was written first
    with refuses("'office-caltech-10'", "--set data.path="):
        DATASETS.build({"name": "office-caltech-10"})


# What is wrong with them --------------------------------------------------------------------------


def test_other_files_domains_or_classes_than_expected(tmp_path: Path):
    pq.write_table(table(SPELLINGS, NAMES, domain=False), tmp_path / "pacs.parquet")
    for path, words in (
        (write_folder(tmp_path / "short", SPELLINGS[:3], NAMES), ("sketch", "short'", "--set data.name=folder")),
        (write_folder(tmp_path / "twice", (*SPELLINGS, "art-painting"), NAMES), ("Art Painting", "art-painting")),
        (write_folder(tmp_path / "few", SPELLINGS, NAMES[:6]), ("7 classes", "few' has 6", "--set data.name=folder")),
        (tmp_path / "none", ("none' does not exist", "PACS", "leave data.path out")),
        (tmp_path / "pacs.parquet", ("pacs.parquet", "no column domain", "image, domain, label")),
    ):
        with refuses(*words):
            PACS(path=str(path)).load(Streams(0))


# DomainNet ----------------------------------------------------------------------------------------

SIX = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TWELVE = tuple(f"k{number:02d}" for number in range(12))


def test_domainnet_draws_its_classes_by_seed(tmp_path: Path):
    path = write_folder(tmp_path, SIX, TWELVE)
    first, again, other = (DomainNet(path=path, classes=4).load(Streams(seed)) for seed in (0, 0, 1))
    assert first.x.shape == (24, 3, 64, 64)
    assert first.classes == again.classes == tuple(sorted(first.classes)) != other.classes
    for x, y, domain in zip(first.x, first.y.tolist(), first.domain.tolist(), strict=True):
        assert x.unique().tolist() == [value(domain, TWELVE.index(first.classes[y]))]
    (tmp_path / "real" / "k07" / "0.png").write_bytes(b"no image")  # which is not drawn
    assert DomainNet(path=path, only=("k05", "k02"), size=4).load(Streams(0)).classes == ("k02", "k05")
    for settings, words in (
        ({"classes": 12}, ("k07/0.png", "cannot be read")),
        ({"classes": 50}, ("data.classes = 50", "12 classes")),
        ({"only": ("k2",)}, ("data.only", "'k2'", "'k02'")),
    ):
        with refuses(*words):
            DomainNet(path=path, **settings).load(Streams(0))


# Camelyon17 ---------------------------------------------------------------------------------------


def write_csv(path: Path, header: str, lines: list[tuple[Any, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *lines])


def camelyon(root: Path, patches: int = 8, centers: int = 5) -> Path:
    """A patient of each hospital, every other patch with a tumour; the pixel is 20 * hospital + patch."""
    lines: list[tuple[Any, ...]] = []
    for center in range(centers):
        slide = f"patient_{center:03d}_node_{center + 1}"
        (root / "patches" / slide).mkdir(parents=True)
        for number in range(patches):
            file = root / "patches" / slide / f"patch_{slide}_x_{10 * number}_y_7.png"
            file.write_bytes(png(20 * center + number))
            lines.append((len(lines), f"{center:03d}", center + 1, 10 * number, 7, number % 2, 11, center, 0))
    write_csv(root / "metadata.csv", ",patient,node,x_coord,y_coord,tumor,slide,center,split", lines)
    return root


def test_camelyon17_in_the_folders_of_wilds(tmp_path: Path):
    data = Camelyon17(path=str(camelyon(tmp_path)), per_domain=0, size=4).load(Streams(0))
    assert data.domains == Camelyon17(path="").domain_names() == tuple(f"hospital{number}" for number in range(5))
    assert data.classes == ("normal", "tumor")
    assert data.x[:, 0, 0, 0].tolist() == [20 * center + number for center in range(5) for number in range(8)]
    assert torch.equal(data.domain, torch.arange(5).repeat_interleave(8))
    assert torch.equal(data.y, torch.arange(40) % 2)
    assert len(data.group.unique()) == 40


def test_camelyon17_that_is_missing_or_wrong(tmp_path: Path):
    cut, wrong = camelyon(tmp_path / "cut"), tmp_path / "wrong"
    (cut / "patches" / "patient_002_node_3" / "patch_patient_002_node_3_x_30_y_7.png").unlink()
    write_csv(wrong / "metadata.csv", "patient,node,x_coord,y_coord,tumor,center", [("000", 1, 0, 7, 0, 0), ("000", 1)])
    for path, words in (
        (tmp_path, ("metadata.csv", "pip install wilds", "get_dataset('camelyon17'", "--set data.path=")),
        (camelyon(tmp_path / "three", centers=3), ("metadata.csv", "hospital3, hospital4")),
        (camelyon(tmp_path / "six", centers=6), ("center 5", "tumor 0")),
        (cut, ("patch_patient_002_node_3_x_30_y_7.png", "cannot be read")),
        (wrong, ("metadata.csv", "x_coord", "line 3")),
    ):
        with refuses(*words):
            Camelyon17(path=str(path)).load(Streams(0))


# iWildCam -----------------------------------------------------------------------------------------

ANIMALS = ("empty", "fox", "hare", "lynx", "moose")
SEEN = {  # camera: images of y = 0, 1, 2, 3, 4
    2: (9, 0, 1, 1, 0),
    3: (0, 3, 2, 0, 0),
    7: (0, 0, 1, 3, 1),
    12: (1, 4, 0, 2, 0),
}


def iwildcam(root: Path) -> Path:
    """The images of SEEN, in bursts of up to two of one camera and class; the pixel is 10 * camera + y."""
    (root / "train").mkdir(parents=True)
    lines: list[tuple[Any, ...]] = []
    burst = 0
    for camera, counts in SEEN.items():
        for y, count in enumerate(counts):
            for number in range(count):
                burst += number % 2 == 0
                name = f"{camera}-{y}-{number}.jpg"
                (root / "train" / name).write_bytes(png(10 * camera + y))
                lines.append(
                    ("train", camera, f"loc{camera}", burst, f"seq{burst}", y, "2013-01-01 00:00:00.000", name)
                )
    header = "split,location_remapped,location,sequence_remapped,sequence,y,datetime,filename"
    write_csv(root / "metadata.csv", header, lines)
    write_csv(root / "categories.csv", "category_id,name,y", [(100 + y, name, y) for y, name in enumerate(ANIMALS)])
    return root


def test_the_cameras_and_classes_with_most_images(tmp_path: Path):
    """Three cameras, two classes, by hand.

    Without background the cameras 2, 3, 7 and 12 have 2, 5, 5 and 6 images: 3, 7 and 12 are taken. In them fox, hare,
    lynx and moose occur 7, 3, 5 and 1 times: fox and lynx. Camera 7 has no fox, camera 3 no lynx. With background
    camera 2 has 11 images, and 'empty' is the class with most; 3 goes before 7 as both have 5.
    """
    path = str(iwildcam(tmp_path))
    dataset = IWildCam(path=path, cameras=3, classes=2, size=4)
    data = dataset.load(Streams(0))
    assert data.domains == dataset.domain_names() == ("camera003", "camera007", "camera012")
    assert data.classes == ("fox", "lynx")
    held = torch.zeros(3, 2, dtype=torch.int64)
    held.index_put_((data.domain, data.y), torch.ones_like(data.y), accumulate=True)
    assert held.tolist() == [[3, 0], [0, 3], [4, 2]]
    for x, y, domain in zip(data.x, data.y.tolist(), data.domain.tolist(), strict=True):
        assert x.unique().tolist() == [10 * (3, 7, 12)[domain] + (1, 3)[y]]
    kept = IWildCam(path=path, cameras=3, classes=4, background="keep", size=4).load(Streams(0))
    assert (kept.domains, kept.classes) == (("camera002", "camera003", "camera012"), ANIMALS[:4])


def test_a_burst_keeps_to_one_side_of_a_split(tmp_path: Path):
    """Bursts contain two images, or one where a count is odd: 3 foxes are 2 bursts, 3 lynxes 2, then 2 and 1."""
    path = str(iwildcam(tmp_path))
    whole = IWildCam(path=path, cameras=3, classes=2, size=4).load(Streams(0))
    assert len(whole.group.unique()) == 7
    (held_out,) = split(whole, (0.5,), Streams(0))
    for group in whole.group.unique():
        assert held_out[whole.group == group].unique().numel() == 1
    single = IWildCam(path=path, cameras=3, classes=2, bursts="single", size=4).load(Streams(0))
    assert len(single.group.unique()) == len(single.y) == 12


def test_iwildcam_that_does_not_suffice(tmp_path: Path):
    path = iwildcam(tmp_path)
    for settings, words in (
        ({}, ("data.cameras = 10", "4 cameras")),
        ({"cameras": 4}, ("data.classes = 10", "4 classes")),
        ({"cameras": 4, "classes": 1}, ("4 cameras", "data.classes", "data.cameras")),
    ):
        with refuses(*words):
            IWildCam(path=str(path), **settings).load(Streams(0))


# All of them --------------------------------------------------------------------------------------


def test_hold_out_all_makes_a_run_for_every_domain_without_reading_any(make: Make):
    table = make().table()
    runs = expand(override(table, {"data": {"name": "pacs"}, "protocol.hold_out": "all"}))
    assert [run.protocol.hold_out for run in runs] == ["art_painting", "cartoon", "photo", "sketch"]


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
    """10 images a digit: 30 % are 3; 1 % would be none, so one. The other domains requested change nothing."""
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
    """The hub's rows are PIL images and class labels; SVHN's cropped digits are a separate configuration."""
    import datasets

    rows = {"image": [Image.new("L", (16, 16), 20 * digit) for digit in range(10)], "label": list(range(10))}
    names = datasets.ClassLabel(names=[str(digit) for digit in range(10)])
    held = datasets.Dataset.from_dict(rows, datasets.Features({"image": datasets.Image(), "label": names}))
    requested: list[Any] = []

    def load(*what: Any, split: str) -> datasets.Dataset:
        requested.append((*what, split))
        return held

    monkeypatch.setattr(datasets, "load_dataset", load)
    data = Digits(domains=("usps", "svhn")).load(Streams(0))
    assert torch.equal(data.x[:, 0, 0, 0].long(), 20 * data.y)
    assert requested == [("flwrlabs/usps", None, "train"), ("ufldl-stanford/svhn", "cropped_digits", "train")]


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
