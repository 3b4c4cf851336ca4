"""Arrays, tensors and torch data sets by site: what is read is what was given, to the same bits as from any file."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset as Hub
from datasets import Features, Image, Value
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image as Pillow
from torch.utils.data import Dataset, TensorDataset

import fedshift
import fresh
from conftest import Make, interrupt_after, results, resume, simulate
from fedshift.clients.domains import DomainData
from fedshift.datasets.arrays import Arrays
from fedshift.errors import FedshiftError
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.streams import Streams

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(sites: Any, **options: Any) -> DomainData:
    return fedshift.in_memory(sites, **options).load(Streams(0))


def refusal(sites: Any, **options: Any) -> str:
    with pytest.raises(FedshiftError) as caught:
        fedshift.in_memory(sites, **options)
    return str(caught.value)


# The same bits by every way -----------------------------------------------------------------------


def weights(make: Make, data: Any) -> dict[str, torch.Tensor]:
    changes = {"protocol.hold_out": "rome", "train.rounds": 3, "data": {"name": "arrays", "path": "none"}}
    experiment = fedshift.experiment(make(changes), data=data)
    return dict(simulate(experiment).coordinator.state.shared)


def test_images_as_a_folder_as_parquet_and_in_memory_give_equal_bits(make: Make):
    draw = np.random.default_rng(0)
    sites: dict[str, tuple[list[Any], list[str]]] = {}
    rows: list[dict[str, Any]] = []
    for site in ("oslo", "rome", "turin"):
        for label in ("cat", "dog"):
            folder = Path("images", site, label)
            folder.mkdir(parents=True)
            for number in range(6):
                image = draw.integers(0, 256, (10, 10, 3), np.uint8)
                file = folder / f"{number}.png"
                Pillow.fromarray(image).save(file)
                sites.setdefault(site, ([], []))[0].append(image)
                sites[site][1].append(label)
                rows.append({"image": {"path": None, "bytes": file.read_bytes()}, "domain": site, "label": label})
    features = Features({"image": Image(), "domain": Value("string"), "label": Value("string")})
    Hub.from_list(rows, features=features).to_parquet("images.parquet")
    mine = {site: (np.stack(images), labels) for site, (images, labels) in sites.items()}
    first = {site: (torch.tensor(x).permute(0, 3, 1, 2), y) for site, (x, y) in mine.items()}
    ways = [
        {"name": "folder", "path": "images", "size": 10},
        {"name": "parquet", "path": "images.parquet", "size": 10},
        fedshift.in_memory(mine),
        fedshift.in_memory(first),
    ]
    one, *others = [weights(make, way) for way in ways]
    assert all(tensor.isfinite().all() for tensor in one.values())
    for other in others:
        assert other.keys() == one.keys()
        assert all(tensor.equal(one[name]) for name, tensor in other.items())


def test_vectors_as_csv_as_npz_and_in_memory_give_equal_bits(make: Make):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 2, 60)
    site = np.repeat(["oslo", "rome", "turin"], 20)
    table = pd.DataFrame({f"column {number}": column.astype(float) for number, column in enumerate(x.T)})
    table.assign(label=y, site=site).to_csv("vectors.csv", index=False)
    np.savez("vectors.npz", x=x, y=y, domain=site)
    mine = {name: (x[site == name], y[site == name]) for name in np.unique(site).tolist()}
    pairs = {name: TensorDataset(*map(torch.tensor, site)) for name, site in mine.items()}
    ways = [
        {"name": "table", "path": "vectors.csv", "domain": "site"},
        {"name": "arrays", "path": "vectors.npz"},
        fedshift.in_memory(mine),
        fedshift.in_memory(pairs),
    ]
    one, *others = [weights(make, way) for way in ways]
    for other in others:
        assert other.keys() == one.keys()
        assert all(tensor.equal(one[name]) for name, tensor in other.items())


@given(x=arrays.arrays(np.float32, (5, 2), elements=st.floats(-9, 9, width=32)), y=st.permutations("aabbc"))
def test_what_is_read_is_what_was_given(x: np.ndarray, y: list[str]):
    data = loaded({"b": (x[:2], y[:2]), "a": (x[2:], y[2:])})
    assert data.domains == ("a", "b")
    assert data.x.equal(torch.tensor(np.concatenate([x[2:], x[:2]])))
    assert [data.classes[label] for label in data.y] == [*y[2:], *y[:2]]
    assert data.domain.tolist() == [0, 0, 0, 1, 1]


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


def test_kinds_of_samples_and_what_is_converted_is_said():
    gray = np.arange(2 * 5 * 6, dtype=np.uint8).reshape(2, 5, 6)
    data = loaded({"a": (gray, [0, 1])})
    assert data.x.equal(torch.tensor(gray)[:, None])
    assert data.notes == ("in_memory: images (N, 5, 6) are taken as gray, with one channel.",)
    colour = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
    data = loaded({"a": (colour, [0, 1])})
    assert data.x.equal(torch.tensor(colour).permute(0, 3, 1, 2))
    assert data.notes == ("in_memory: images (N, 5, 6, 3) are taken as (N, height, width, channels).",)
    assert loaded({"a": (colour.transpose(0, 3, 1, 2), [0, 1])}).notes == ()
    data = loaded({"a": (X.astype(np.float64), Y)})
    assert data.x.dtype == torch.float32
    assert data.notes == ("in_memory: x is float64 and becomes float32.",)
    assert loaded({"a": (np.array([[1, 2], [3, 0]]), [0, 1])}).x.dtype == torch.int64
    assert loaded({"a": (np.zeros((2, 3, 50), np.float32), [0, 1])}).x.shape == (2, 3, 50)
    pictures = [(Pillow.fromarray(image), label) for image, label in zip(colour, "ab", strict=True)]
    data = loaded({"a": _Listed(pictures)})
    assert data.x.equal(torch.tensor(colour).permute(0, 3, 1, 2))


class _Listed(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def test_names_of_classes_and_groups_over_sites():
    data = loaded({"a": (X, Y, ["p", "q", "p", "r"]), "b": (X, [1, 1, 0, 1], ["p", "s", "s", "t"])}, classes=("w", "i"))
    assert (data.classes, data.y.tolist()) == (("w", "i"), [0, 1, 0, 1, 1, 1, 0, 1])
    group = data.group.tolist()
    assert group[0] == group[2] == group[4]
    assert len(set(group)) == 5
    text = loaded({"a": (X, ["i", "w", "i", "w"])}, classes=np.array(["w", "i"]))
    assert text.y.tolist() == [1, 0, 1, 0]
    assert loaded({10: (X, Y), 9: (X, Y)}).domains == ("9", "10")
    assert loaded({"a": (X, np.array(["x", "y", "x", "y"], object))}).classes == ("x", "y")


# One file by content ------------------------------------------------------------------------------


def test_equal_content_is_one_file_that_is_written_once():
    one = fedshift.in_memory({"a": (X, Y), "b": (X + 1, Y)})
    written = Path(one.path).stat().st_mtime_ns
    assert Path(one.path).parent == Path("runs/data").resolve()
    again = fedshift.in_memory({"b": TensorDataset(torch.tensor(X + 1), torch.tensor(Y)), "a": {"x": X, "y": Y}})
    assert again == one
    assert Path(one.path).stat().st_mtime_ns == written
    assert isinstance(one, Arrays)
    others = [{"a": (X, Y)}, {"a": (X + 1, Y), "b": (X, Y)}, {"a": (X, 1 - Y), "b": (X + 1, Y)}]
    paths = {fedshift.in_memory(other).path for other in others} | {one.path}
    assert len(paths) == len(list(Path("runs/data").iterdir())) == 4
    elsewhere = Path(fedshift.in_memory({"a": (X, Y), "b": (X + 1, Y)}, folder="other").path)
    assert elsewhere.read_bytes() == Path(one.path).read_bytes()
    Path(one.path).write_bytes(b"damaged")
    assert Path(fedshift.in_memory({"a": (X, Y), "b": (X + 1, Y)}).path).read_bytes() == elsewhere.read_bytes()


# Refused ------------------------------------------------------------------------------------------

NAN = np.array([[1.0, 2.0], [3.0, np.nan]])
SHUFFLED = pd.DataFrame(X, index=[2, 0, 1, 3])


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ([], ["is no mapping of sites"]),
        ({"a": (X, Y), 3: (X, Y)}, ["Sites are called ['a', 3]"]),
        ({"south": (NAN, [0, 1])}, ["x holds nan at [1] of row 1 of 'site south'"]),
        ({"south": (X, ["a", float("nan"), "b", "a"])}, ["y of the site 'south'", "nan", "row 1"]),
        ({"south": (X, ["a", "b", None, "a"])}, ["y of the site 'south'", "None", "row 2"]),
        ({"south": (X, Y[:3])}, ["y of the site 'south' has the shape (3,)", "4 rows"]),
        ({"a": (X, Y), "south": (X[:0], Y[:0])}, ["'south'", "no sample"]),
        ({"south": _Listed([])}, ["'south' has no sample"]),
        ({}, ["no site"]),
        ({"north": ("x.csv", Y)}, ["x of the site 'north'"]),
        ({"north": (np.ma.masked_greater(X, 10), Y)}, ["x of the site 'north' has masked values", "filled(value)"]),
        ({"north": (X.astype(object), Y)}, ["x of the site 'north' is object", "astype"]),
        ({"north": (SHUFFLED, pd.Series(Y))}, ["the same index in another order", "y.loc[x.index]"]),
        (
            {"north": (pd.DataFrame(X, columns=[*"abc"]), Y), "south": (pd.DataFrame(X, columns=[*"acb"]), Y)},
            ["x of the site 'south' has the columns a, c, b, but of the site 'north' a, b, c"],
        ),
        ({"a": (X, Y), "south": (X[:, :2], Y)}, ["[3]", "site south", "[2]"]),
        ({"a": (X, Y), "A": (X, Y)}, ["differ only in case"]),
        ({"south": X}, ["The site 'south' is of the type ndarray", "(x, y)"]),
        ({"south": [X, Y]}, ["The site 'south' is a list of 2"]),
        ({"south": (X,)}, ["The site 'south' is a tuple of 1"]),
        ({"south": {"x": X, "label": Y}}, ["Unknown key", "'south'", "'label'"]),
        ({"south": {"x": X}}, ["a mapping of x; give (x, y)"]),
        ({"south": iter([(X, Y)])}, ["The site 'south' is of the type list_iterator"]),
        ({"south": _Listed([X[0], X[1]])}, ["item 0 of site 'south' is of the type ndarray"]),
        ({"south": _Listed([(X[0], 0), (X[1, :2], 1)])}, ["x of the site 'south' is no array", "all of one shape"]),
        ({"south": _Listed([(X[0], 0), (X[1], 1, "p")])}, ["'south' differ in whether they have a group"]),
        ({"south": ([[1.0, 2.0], [3.0]], [0, 1])}, ["x of the site 'south' is no array", "all of one shape"]),
    ],
    ids=count(),
)
def test_what_cannot_be_used_is_named(sites: Any, words: list[str]):
    message = refusal(sites)
    assert [word for word in words if word not in message] == []
    assert not Path("runs").exists()


def test_text_of_pandas_names_classes_and_whole_numbers_of_numpy_name_sites():
    """By whatever type pandas has text and categories; and columns of whole numbers, which are read-only there."""
    words = pd.Series(["ill", "well", "ill", "well"])
    for kind in ("object", "str", "string", "category"):
        data = loaded({site: (X, words.astype(kind)) for site in np.unique([1, 2])})
        assert (data.domains, data.classes, data.y.tolist()) == (("1", "2"), ("ill", "well"), [0, 1, 0, 1] * 2)
    table = pd.DataFrame({"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]})
    assert loaded({"a": (table, words)}).x.tolist() == table.to_numpy().tolist()


def test_an_item_that_cannot_be_read_is_named_and_all_sites_are_gathered():
    class Broken(_Listed):
        def __getitem__(self, row: int) -> Any:
            return 1 / (2 - row)

    message = refusal({"a": Broken([0] * 3), "b": (X, Y[:2])})
    assert "item 0 of site 'a'" in message
    assert "y of the site 'b' has the shape (2,)" in message
    sound = Broken([0] * 3)
    sound.__class__.__getitem__ = lambda self, row: (X[row], 1 / (2 - row))  # type: ignore[method-assign]  # a test's
    assert "item 2 of site 'a' cannot be read: ZeroDivisionError" in refusal({"a": sound})


# In a script --------------------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import fedshift
from fedshift.runs.events import Progress

draw = np.random.default_rng(0)
y = draw.integers(0, 2, 40)
x = draw.normal(size=(40, 3))
data = fedshift.in_memory({"north": (x, y), "south": (x + 1, y)})
table = fedshift.compare(data=data, method=["fedavg", "fedsr"], model="mlp", rounds=2, progress=Progress())
print(*(run.path for run in table.runs), table.accuracy("fedsr"))
"""


@pytest.mark.parametrize("where", ["runs", "run"])
def test_runs_and_data_are_moved_together(where: str):
    """With the folder around both; or an interrupted run alone, into which a copy of the data is put."""
    draw, y = np.random.default_rng(0), np.arange(40) % 2
    data = fedshift.in_memory({"north": (draw.normal(size=(40, 3)), y), "south": (draw.normal(size=(40, 3)), y)})
    asked = {"data": data, "method": "fedavg", "model": "mlp", "rounds": 3, "settings": {"run.checkpoint_every": 1}}
    whole = fedshift.run(**asked, out="whole", progress=Progress())
    with pytest.raises(KeyboardInterrupt):
        fedshift.run(**asked, progress=interrupt_after(2))
    (path,) = (Path("runs") / "arrays").glob("fedavg*")
    if where == "runs":
        Path("runs").rename("elsewhere")
        moved = Path("elsewhere") / path.relative_to("runs")
    else:
        moved, kept = path.rename("alone"), Path(data.path).rename("somewhere.npz")
        with pytest.raises(FedshiftError, match=r"is not there any more. Restore what it was, put a copy of what is"):
            resume(RunFolder(moved))
        (moved / Path(data.path).name).write_bytes(b"another file of that name")
        with pytest.raises(FedshiftError, match="is not there any more"):
            resume(RunFolder(moved))
        kept.rename(moved / Path(data.path).name)
    resume(RunFolder(moved))
    assert results(RunFolder(moved)) == results(whole.folder)


def test_the_same_script_twice_is_the_same_runs(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = [fresh.start(fresh.script, "script.py").completed() for _ in "ab"]
    assert done[0].stdout == done[1].stdout != "", done[0].stderr
    runs = fedshift.load(tmp_path / "runs" / "arrays").runs
    assert [run.table["method"]["name"] for run in runs] == ["fedavg", "fedsr"]
    assert {run.table["protocol"]["name"] for run in runs} == {"in-domain"}
    assert set(runs[0].data_facts["domains"].values()) == {"north", "south"}


def test_arrays_given_as_data_say_what_to_call():
    with pytest.raises(FedshiftError, match=r"data=fedshift\.in_memory\(\{site: \(x, y\), \.\.\.\}\)"):
        fedshift.grid(data={"north": (X, Y)})
