"""A user's own arrays, in memory or in files: what is read is what was given, to the same bits, or refused by name."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset as Hub
from datasets import Features, Image, Value
from PIL import Image as Pillow
from torch.utils.data import Dataset, TensorDataset

import fedshift
from conftest import Make, interrupt_after, results, resume, simulate
from fedshift import memory
from fedshift.clients.data_checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.clients.partitions import split
from fedshift.datasets.arrays import Arrays
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.streams import Streams
from refusal import refusal, refuses

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(sites: Any, **options: Any) -> DomainData:
    return fedshift.in_memory(sites, **options).load(Streams(0))


# The same bits by every way -----------------------------------------------------------------------


def same_bits(make: Make, *ways: Any) -> None:
    """Three rounds on the data of each way end with the same weights."""
    changes = {"protocol.hold_out": "rome", "train.rounds": 3, "data": {"name": "arrays", "path": "none"}}
    experiments = [fedshift.experiment(make(changes), data=way) for way in ways]
    one, *others = [simulate(experiment).coordinator.state.shared for experiment in experiments]
    for other in others:
        assert other.keys() == one.keys()
        assert all(tensor.equal(one[name]) for name, tensor in other.items())


def test_images_as_a_folder_as_parquet_and_in_memory_give_equal_bits(make: Make):
    draw = np.random.default_rng(0)
    mine: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for site in ("oslo", "rome", "turin"):
        images, labels = draw.integers(0, 256, (12, 10, 10, 3), np.uint8), ["cat"] * 6 + ["dog"] * 6
        mine[site] = (images, labels)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = Path("images", site, label, f"{number:02d}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            Pillow.fromarray(image).save(file)
            rows.append({"image": {"path": None, "bytes": file.read_bytes()}, "domain": site, "label": label})
    features = Features({"image": Image(), "domain": Value("string"), "label": Value("string")})
    Hub.from_list(rows, features=features).to_parquet("images.parquet")
    files = [
        {"name": name, "path": path, "size": 10} for name, path in (("folder", "images"), ("parquet", "images.parquet"))
    ]
    first = {site: (torch.tensor(x).permute(0, 3, 1, 2), y) for site, (x, y) in mine.items()}
    same_bits(make, *files, fedshift.in_memory(mine), fedshift.in_memory(first))


def test_vectors_as_csv_as_npz_and_in_memory_give_equal_bits(make: Make):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 2, 60)
    site = np.repeat(["oslo", "rome", "turin"], 20)
    pd.DataFrame(x.astype(float)).add_prefix("column ").assign(label=y, site=site).to_csv("vectors.csv", index=False)
    np.savez("vectors.npz", x=x, y=y, domain=site)
    mine = {name: (x[site == name], y[site == name]) for name in np.unique(site).tolist()}
    pairs = {name: TensorDataset(*map(torch.tensor, site)) for name, site in mine.items()}
    files = [{"name": "table", "path": "vectors.csv", "domain": "site"}, {"name": "arrays", "path": "vectors.npz"}]
    same_bits(make, *files, fedshift.in_memory(mine), fedshift.in_memory(pairs))


# What may be given --------------------------------------------------------------------------------


def test_every_kind_of_container_holds_the_same():
    class Items(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> Any:
            return {"x": torch.tensor(X[row]), "y": int(Y[row])}

    given = [(X, Y), {"x": X, "y": Y}, (torch.tensor(X), torch.tensor(Y)), (X.tolist(), Y.tolist())]
    given += [(pd.DataFrame(X), pd.Series(Y)), TensorDataset(torch.tensor(X), torch.tensor(Y)), Items()]
    given += [(X, [0.0, 1.0, 0.0, 1.0]), (X.astype(">f8"), Y.astype(np.uint8))]
    one, *others = [loaded({"a": each, "b": (X, Y)}) for each in given]
    for other in others:
        assert other.x.equal(one.x)
        assert other.y.equal(one.y)
        assert (other.classes, other.domains) == (("0", "1"), ("a", "b"))


class _Listed(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def test_kinds_of_samples_and_what_is_converted_is_said():
    gray = np.arange(2 * 5 * 6, dtype=np.uint8).reshape(2, 5, 6)
    colour = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
    for x, expected, note in (
        (gray, gray[:, None], "in_memory: images (N, 5, 6) are read as gray, with one channel."),
        (
            colour,
            colour.transpose(0, 3, 1, 2),
            "in_memory: images (N, 5, 6, 3) are taken as (N, height, width, channels).",
        ),
        (X[:2].astype(np.float64), X[:2], "in_memory: x is float64 and becomes float32."),
    ):
        data = loaded({"a": (x, [0, 1])})
        assert data.x.equal(torch.tensor(expected))
        assert data.notes == (note,)
    assert loaded({"a": (colour.transpose(0, 3, 1, 2), [0, 1])}).notes == ()
    assert loaded({"a": ([[1, 2], [3, 0]], [0, 1])}).x.dtype == torch.int64
    assert loaded({"a": (np.zeros((2, 3, 50), np.float32), [0, 1])}).x.shape == (2, 3, 50)
    pictures = [(Pillow.fromarray(image), label) for image, label in zip(colour, "ab", strict=True)]
    assert loaded({"a": _Listed(pictures)}).x.equal(torch.tensor(colour).permute(0, 3, 1, 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_images_whose_channels_are_last_are_moved(dtype: type):
    """Squares, and other sizes from 16 pixels on; channels that are first stay, and so does what is no image."""
    for height, width in ((5, 5), (16, 20)):
        images = np.random.default_rng(0).random((2, height, width, 3)).astype(dtype)
        data = loaded({"a": (images, [0, 1])})
        assert data.x.equal(torch.tensor(images.astype(np.float32)).permute(0, 3, 1, 2))
        said = f"in_memory: images (N, {height}, {width}, 3) are taken as (N, height, width, channels)."
        assert data.notes[0] == said
        assert loaded({"a": (images.transpose(0, 3, 1, 2), [0, 1])}).x.equal(data.x)
    for shape in ((2, 3, 20, 3), (2, 5, 6, 7), (2, 8, 3)):
        assert loaded({"a": (np.zeros(shape, dtype), [0, 1])}).x.shape == shape


def test_labels_may_be_of_one_column_and_true_or_false():
    column, group = Y[:, None], [["p"], ["q"], ["p"], ["r"]]
    expected = loaded({"a": (X, Y, ["p", "q", "p", "r"])})
    for y in (column, torch.tensor(column), pd.DataFrame(column), column.tolist()):
        data = loaded({"a": (X, y, group)})
        assert (data.y.tolist(), data.group.tolist()) == (expected.y.tolist(), expected.group.tolist())
    true = [False, True, False, True]
    for y in (true, np.array(true), torch.tensor(true)[:, None], pd.Series(true)):
        named = loaded({"a": (X, y)}, classes=("well", "ill"))
        assert (named.classes, named.y.tolist()) == (("well", "ill"), [0, 1, 0, 1])
        assert loaded({"a": (X, y)}).classes == ("False", "True")
    assert loaded({"a": (X, np.array(true, object))}).y.tolist() == [0, 1, 0, 1]


def test_names_of_classes_groups_and_sites():
    """Text of whatever type pandas has it in names classes, too."""
    data = loaded({"a": (X, Y, ["p", "q", "p", "r"]), "b": (X, [1, 1, 0, 1], ["p", "s", "s", "t"])}, classes=("w", "i"))
    assert (data.classes, data.y.tolist()) == (("w", "i"), [0, 1, 0, 1, 1, 1, 0, 1])
    assert data.group.tolist() == [0, 1, 0, 2, 0, 3, 3, 4]
    text = loaded({"a": (X, ["i", "w", "i", "w"])}, classes=np.array(["w", "i"]))
    assert text.y.tolist() == [1, 0, 1, 0]
    words = pd.Series(["ill", "well", "ill", "well"])
    for kind in ("object", "str", "category"):
        data = loaded({site: (X, words.astype(kind)) for site in np.unique([10, 9])})
        assert (data.domains, data.classes, data.y.tolist()) == (("9", "10"), ("ill", "well"), [0, 1, 0, 1] * 2)


def test_columns_are_left_out_by_name_and_by_number():
    """Of a, b, c the first and the last stay; a table of pandas names its columns, arrays number them."""
    table, out = pd.DataFrame(X, columns=[*"abc"]), X[:, [0, 2]]
    for given, names, exclude in ((table, ("a", "c"), "b"), (X, ("0", "2"), "1")):
        data = loaded({"n": (given, Y), "s": (given, Y)}, exclude=[exclude])
        assert data.x.equal(torch.tensor(np.concatenate([out, out])))
        assert tuple(column.name for column in data.columns) == names
    assert [column.name for column in loaded({"a": (table, Y)}).columns] == [*"abc"]
    assert loaded({"a": (X, Y)}).columns == loaded({"a": (table, Y), "b": (X, Y)}).columns == ()
    with refuses("data.exclude", "'agee'", "Did you mean 'age'?"):
        loaded({"a": (table.rename(columns={"b": "age"}), Y)}, exclude=["agee"])
    with refuses("data.exclude leaves no column", "a, b, c"):
        loaded({"a": (table, Y)}, exclude=[*"abc"])
    with refuses("(4, 1, 2, 2)", "data.exclude"):
        loaded({"a": (np.zeros((4, 1, 2, 2), np.float32), Y)}, exclude=["1"])


def test_a_run_without_a_column_predicts_for_a_file_that_has_it():
    """Whatever stands in the column."""
    sites = {site: (pd.DataFrame(X, columns=[*"abc"]), Y) for site in "ns"}
    requested = {"data": fedshift.in_memory(sites, exclude=["b"]), "model": "mlp", "rounds": 1, "progress": Progress()}
    run = fedshift.run(method="fedavg", settings={"protocol": {"name": "train-on-all"}}, **requested)
    for name, value in (("one", 0.0), ("other", 1e6)):
        x = X.copy()
        x[:, 1] = value
        np.savez(f"{name}.npz", x=x, columns=[*"abc"])
    one, other = (fedshift.predict(run.path, [f"{name}.npz"]).probabilities for name in ("one", "other"))
    assert np.array_equal(one, other)


# One file by content ------------------------------------------------------------------------------


def test_equal_content_is_one_file_that_is_written_once():
    sites = {"a": (X, Y), "b": (X + 1, Y)}
    one = fedshift.in_memory(sites)
    written = Path(one.path).stat().st_mtime_ns
    assert Path(one.path).parent == Path("runs/data").resolve()
    again = fedshift.in_memory({"b": TensorDataset(torch.tensor(X + 1), torch.tensor(Y)), "a": {"x": X, "y": Y}})
    assert again == one
    assert Path(one.path).stat().st_mtime_ns == written
    others = [{"a": (X, Y)}, {"a": (X + 1, Y), "b": (X, Y)}, {"a": (X, 1 - Y), "b": (X + 1, Y)}]
    paths = {fedshift.in_memory(other).path for other in others} | {one.path}
    assert len(paths) == len(list(Path("runs/data").iterdir())) == 4
    elsewhere = Path(fedshift.in_memory(sites, folder="other").path)
    Path(one.path).write_bytes(b"damaged")
    assert Path(fedshift.in_memory(sites).path).read_bytes() == elsewhere.read_bytes()


# Refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ([], ["is no mapping of sites"]),
        ({"south": ([[1.0, 2.0], [3.0, np.nan]], [0, 1])}, ["x contains nan at [1] of row 1 of 'site south'"]),
        ({"south": (X, ["a", float("nan"), "b", "a"])}, ["y of the site 'south'", "nan", "row 1"]),
        ({"south": (X, Y[:3])}, ["y of the site 'south' has the shape (3,)", "4 rows"]),
        ({"a": (X, Y), "south": (X[:0], Y[:0])}, ["'south'", "no sample"]),
        ({"north": (X.astype(object), Y)}, ["x of the site 'north' is object", "astype"]),
        (
            {"north": (pd.DataFrame(X, index=[2, 0, 1, 3]), pd.Series(Y))},
            ["the same index in another order", "y.loc[x.index]"],
        ),
        (
            {"north": (pd.DataFrame(X, columns=[*"abc"]), Y), "south": (pd.DataFrame(X, columns=[*"acb"]), Y)},
            ["x of the site 'south' has the columns a, c, b, but of the site 'north' a, b, c"],
        ),
        ({"a": (X, Y), "south": (X[:, :2], Y)}, ["[3]", "site south", "[2]"]),
        ({"south": X}, ["The site 'south' is of the type ndarray", "(x, y)"]),
        ({"south": {"x": X, "label": Y}}, ["Unknown key", "'south'", "'label'"]),
        ({"south": _Listed([(X[0], 0), (X[1, :2], 1)])}, ["x of the site 'south' is not an array", "all of one shape"]),
        ({"south": _Listed([(X[0], 0), (X[1], 1, "p")])}, ["'south' differ in whether they have a group"]),
        ({"a": _Listed([0]), "b": (X, Y[:2])}, ["item 0 of site 'a'", "y of the site 'b' has the shape (2,)"]),
    ],
    ids=count(),
)
def test_what_cannot_be_used_is_named(sites: Any, words: list[str]):
    with refuses(*words):
        fedshift.in_memory(sites)
    assert not Path("runs").exists()


# In a script --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["runs", "run"])
def test_runs_and_data_are_moved_together(where: str):
    """With the folder around both; or an interrupted run alone, into which a copy of the data is put."""
    draw, y = np.random.default_rng(0), np.arange(40) % 2
    data = fedshift.in_memory({"north": (draw.normal(size=(40, 3)), y), "south": (draw.normal(size=(40, 3)), y)})
    requested = {"data": data, "method": "fedavg", "model": "mlp", "rounds": 3, "settings": {"run.checkpoint_every": 1}}
    whole = fedshift.run(**requested, out="whole", progress=Progress())
    with pytest.raises(KeyboardInterrupt):
        fedshift.run(**requested, progress=interrupt_after(2))
    (path,) = (Path("runs") / "arrays").glob("fedavg*")
    if where == "runs":
        Path("runs").rename("elsewhere")
        moved = Path("elsewhere") / path.relative_to("runs")
    else:
        moved, kept = path.rename("alone"), Path(data.path).rename("somewhere.npz")
        (moved / Path(data.path).name).write_bytes(b"another file of that name")
        with refuses("is missing now", "put a copy of the missing file"):
            resume(Run(moved))
        kept.rename(moved / Path(data.path).name)
    resume(Run(moved))
    assert results(Run(moved)) == results(whole)


def test_sites_given_as_data_are_taken_as_in_memory_takes_them():
    """They are written beside the runs, wherever these are; a table of settings is none of them."""
    sites = {"north": (X, Y), "south": (X + 1, Y)}
    one, other, elsewhere = (
        fedshift.experiment(data=data, model="mlp", method="fedavg", out=out)
        for data, out in ((sites, None), (fedshift.in_memory(sites), None), (sites, "elsewhere"))
    )
    assert one == other
    assert Path(elsewhere.table()["data"]["path"]).parent == Path("elsewhere/data").resolve()
    with refuses("x of the site 'north' is object"):
        fedshift.grid(data={"north": (X.astype(object), Y)})
    for wrong in ({"path": "a.csv", "columns": ["a"]}, X):
        with refuses("data = ", "data={site: (x, y), ...}"):
            fedshift.grid(data=wrong)  # type: ignore[arg-type]  # on purpose


FLOATS = np.arange(12, dtype=np.float32).reshape(4, 3)
CLASSES = np.array([0, 1, 0, 1])


def save(path: Path, **arrays: Any) -> Arrays:
    np.savez(path, **arrays)
    return Arrays(path=str(path))


def test_float64_is_rounded(tmp_path: Path):
    x = np.array([[0.1, 1e30], [3, -4]])
    data = save(tmp_path / "x.npz", x=x, y=["b", "a"]).load(Streams(0))
    assert data.x.tolist() == torch.tensor(x, dtype=torch.float32).tolist()
    assert (data.classes, data.y.tolist(), data.domains) == (("a", "b"), [1, 0], ("x",))


def test_numbers_are_sorted_by_size_and_may_be_whole_floats(tmp_path: Path):
    data = save(tmp_path / "x.npz", x=FLOATS, y=[10.0, 9.0, 10.0, -1.0], domain=[30, 7, 7, 30]).load(Streams(0))
    assert (data.classes, data.y.tolist()) == (("-1", "9", "10"), [2, 1, 2, 0])
    assert (data.domains, data.domain.tolist()) == (("7", "30"), [1, 0, 0, 1])


def test_names_of_classes_keep_their_order_and_may_be_without_a_sample(tmp_path: Path):
    names = ["well", "ill", "unknown"]
    for y in ([0, 1, 0, 0], ["well", "ill", "well", "well"]):
        data = save(tmp_path / "x.npz", x=FLOATS, y=y, classes=names).load(Streams(0))
        assert (data.classes, data.y.tolist()) == (tuple(names), [0, 1, 0, 0])


def test_groups_stay_on_one_side_also_across_files(tmp_path: Path):
    for name, group in (("a", ["p", "q", "p", "r"]), ("b", ["r", "s", "s", "p"])):
        np.savez(tmp_path / f"{name}.npz", x=FLOATS, y=CLASSES, group=group)
    np.savez(tmp_path / "c.npz", x=FLOATS, y=CLASSES)
    data = Arrays(path=str(tmp_path)).load(Streams(0))
    assert data.group.tolist() == [0, 1, 0, 2, 2, 3, 3, 0, 4, 5, 6, 7]
    (side,) = split(data, (0.5,), Streams(0))
    assert all(len(side[data.group == group].unique()) == 1 for group in range(8))


HOLED = np.where(FLOATS == 5, np.nan, FLOATS)
PLAIN: dict[str, Any] = {"x": FLOATS, "y": CLASSES}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": FLOATS}, ["lacks the array y; it has x"]),
        ({**PLAIN, "domian": CLASSES}, ["Unknown array", "'domian'", "Did you mean 'domain'?"]),
        ({**PLAIN, "x": HOLED}, ["x contains nan at [2] of row 1 of"]),
        ({**PLAIN, "x": FLOATS.astype("int32")}, ["x of", "is int32", 'astype("float32")']),
        ({**PLAIN, "x": np.zeros((4, 8, 8, 3), np.uint8)}, ["(4, 8, 8, 3)", "x.transpose(0, 3, 1, 2)"]),
        ({**PLAIN, "x": np.array([[1, 2], [0, -5], [1, 1], [0, 0]])}, ["contains -5 at [1] of row 1", "tokens from 0"]),
        ({**PLAIN, "y": CLASSES[:3]}, ["y of", "has the shape (3,)", "give (4,)"]),
        ({**PLAIN, "y": [0, 1, 0.5, 1]}, ["y of", "contains 0.5 in row 2", "a name or a whole number"]),
        ({**PLAIN, "y": ["a", "b", "A", "b"]}, ["'A'", "'a'", "differ only in case", "row 2 of"]),
        ({**PLAIN, "y": [0, 7, 0, 1], "classes": ["a", "b"]}, ["class in row 1 of y", "'7'", "a, b"]),
    ],
)
def test_arrays_that_cannot_be_used_are_named(tmp_path: Path, arrays: dict[str, Any], words: list[str]):
    dataset = save(tmp_path / "mine.npz", **arrays)
    with refuses("mine.npz", *words):
        check_data(dataset.load(Streams(0)), dataset.inputs())


def test_files_that_do_not_go_together(tmp_path: Path):
    def together(**other: Any) -> str:
        np.savez(tmp_path / "b.npz", **{**PLAIN, **other})
        return refusal(Arrays(path=str(tmp_path)))

    save(tmp_path / "a.npz", **PLAIN)
    assert re.search(r"a.npz' is .* shape \[3\], one of .*b.npz' .* shape \[2\]", together(x=FLOATS[:, :2]))
    assert re.search(r"a.npz' is torch.float32 .*b.npz' torch.int64", together(x=np.ones((4, 3), int)))
    assert "class is the number 0 in one file" in together(y=["a", "b", "a", "b"])
    assert "in a folder each file is a domain" in together(domain=CLASSES)
    assert "['a', 'b']; give the same names" in together(classes=["a", "b"])


def test_files_that_are_none(tmp_path: Path):
    assert "does not exist" in refusal(Arrays(path=str(tmp_path / "no")))
    assert "no file in it ends in .npz" in refusal(Arrays(path=str(tmp_path)))
    path = tmp_path / "x.npz"
    for content in (b"", b"no arrays", b"PK\x03\x04 cut"):
        path.write_bytes(content)
        assert f"'{path}'" in refusal(Arrays(path=str(path)))
    np.savez(path, **PLAIN)
    path.write_bytes(path.read_bytes().replace(FLOATS.tobytes(), b"\xff" * FLOATS.nbytes))
    assert f"'{path}' cannot be read (Bad CRC-32" in refusal(Arrays(path=str(path)))


def test_a_pickle_is_never_loaded(tmp_path: Path):
    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "run",)

    message = refusal(save(tmp_path / "x.npz", x=np.array([[Touch()]], object), y=[0]))
    assert "Python's objects" in message
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = save(tmp_path / "x.npz", x=np.zeros((10, 1000)), y=[0] * 10)
    monkeypatch.setattr(memory, "available", lambda: 50_000)
    assert re.search(r"takes 80\.\d+ kB, but only 50 kB", refusal(dataset))
