"""A user's own arrays: read to the same bits as images, or refused with the file and the row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedshift import memory
from fedshift.clients.checks import check_data
from fedshift.clients.partitions import split
from fedshift.datasets.arrays import Arrays
from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.streams import Streams
from refusal import refuses

FLOATS = np.arange(12, dtype=np.float32).reshape(4, 3)
CLASSES = np.array([0, 1, 0, 1])


def save(path: Path, **arrays: Any) -> Arrays:
    np.savez(path, **arrays)
    return Arrays(path=str(path))


def refusal(dataset: Dataset) -> str:
    with pytest.raises(FedshiftError) as caught:
        check_data(dataset.load(Streams(0)), dataset.inputs())
    return str(caught.value)


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
        ({**PLAIN, "x": HOLED}, ["x holds nan at [2] of row 1 of"]),
        ({**PLAIN, "x": FLOATS.astype("int32")}, ["x of", "is int32", 'astype("float32")']),
        ({**PLAIN, "x": np.zeros((4, 8, 8, 3), np.uint8)}, ["(4, 8, 8, 3)", "x.transpose(0, 3, 1, 2)"]),
        ({**PLAIN, "x": np.array([[1, 2], [0, -5], [1, 1], [0, 0]])}, ["holds -5 at [1] of row 1", "tokens from 0"]),
        ({**PLAIN, "y": CLASSES[:3]}, ["y of", "has the shape (3,)", "give (4,)"]),
        ({**PLAIN, "y": [0, 1, 0.5, 1]}, ["y of", "holds 0.5 in row 2", "a name or a whole number"]),
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
    assert re.search(r"takes 80\.\d kB, but only 50\.0 kB", refusal(dataset))
