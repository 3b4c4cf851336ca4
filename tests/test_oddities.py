"""Warnings of a comparison about its data: oddities get a line each, sound data none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedshift
from fedshift.datasets.arrays import Arrays
from fedshift.experiments import Experiment
from fedshift.reporting.comparison_notes import cautions
from fedshift.runs.events import Progress
from fedshift.runs.simulation import make_federated

Sites = Mapping[str, Any]
SAYS_MORE = "; `fedshift data` with the same options (fedshift.inspect_data) shows more."


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def site(seed: int, y: Any = None, rows: int = 90) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    y = draw.permutation(np.arange(rows) % 2) if y is None else y
    return (draw.normal(size=(rows, 3)) + y[:, None] / 2).astype(np.float32), y


def of(data: Sites | Arrays, **settings: Any) -> Experiment:
    return fedshift.experiment(data=data, model="mlp", method="fedavg", settings=settings)


def said(data: Sites | Arrays, **settings: Any) -> str:
    return make_federated(of(data, **settings)).oddity


def one_of(rows: int, label: int = 1) -> Any:
    """Labels of which the first alone is another."""
    y = np.full(rows, 1 - label)
    y[0] = label
    return y


def revealing(seed: int) -> tuple[Any, Any]:
    x, y = site(seed)
    return np.column_stack([x, 1000 * y + np.arange(len(y))]), y


a, b = site(0), site(1)
ODD: dict[str, tuple[Sites, dict[str, Any], str]] = {
    "the label": (
        {"a": revealing(0), "b": revealing(1)},
        {},
        "the column '3' alone separates the classes (AUROC 1.000)",
    ),
    "equal samples": ({"a": a, "b": (a[0].copy(), a[1])}, {}, "180 of 180 samples are, bit by bit, at another site"),
    "one positive": (
        {"a": site(0, one_of(90)), "b": site(1, np.arange(90) % 2 * 0)},
        {"protocol": {"name": "train-on-all"}},
        "the class '1' has 1 of 180 training samples (and 1 more)",
    ),
    "one class": (
        {"a": a, "b": b, "c": site(2, np.ones(90, int))},
        {},
        "1 of 3 sites train on a single class (c: '1')",
    ),
    "a batch": (
        {"a": a, "b": b},
        {"train.batch": 1_000_000},
        "train.batch = 1,000,000, but no client has more than 64 training samples: each step takes all",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_serious_is_said_in_a_line(what: str):
    """Of the 45 samples that a site has of a class 9 test, 4 validate and 32 train."""
    sites, settings, words = ODD[what]
    line = said(sites, **settings)
    assert line.startswith(f"Data: {words}")
    assert line.endswith(SAYS_MORE)


def test_of_sound_data_nothing_is_said():
    """Neither of few samples, nor of rows of few values, which are equal by chance, nor of an uninformative id."""
    few_valued = {name: (np.round(x[:, :1]), y) for name, (x, y) in (("a", a), ("b", b))}
    numbered = {name: (np.column_stack([x, np.arange(90)]), y) for name, (x, y) in (("a", a), ("b", b))}
    small = {name: (x[:40], y[:40]) for name, (x, y) in (("a", a), ("b", b))}
    uneven = {"a": site(0, np.arange(90) % 9 // 8), "b": b}
    for sites in ({"a": a, "b": b}, few_valued, numbered, small, uneven):
        assert said(sites) == ""
    assert said({"a": a, "b": b}, **{"train.batch": 64}) == ""


def test_it_is_said_once_and_stays_with_the_run():
    """By the display before the first run, and below the tables; not of a run with data that are sound."""

    class Heard(Progress):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    heard, requested = Heard(), {"model": "mlp", "method": ["fedavg", "fedprox"], "rounds": 1, "seed": [0, 1]}
    requested["settings"] = {"run.engine": "sequential"}
    odd = fedshift.compare(data={"a": revealing(0), "b": revealing(1)}, progress=heard, **requested)
    for lines in (heard.notes, odd.notes(), fedshift.load("runs").notes(), [each.text for each in cautions(odd)]):
        assert sum(line.startswith("Data: the column '3'") for line in lines) == 1
    heard.notes.clear()
    again = fedshift.compare(data={"a": revealing(0), "b": revealing(1)}, progress=heard, **requested)
    assert heard.notes == []  # as nothing is read again
    assert any(note.startswith("Data: ") for note in again.notes())
    sound = fedshift.compare(data={"a": a, "b": b}, progress=heard, name="sound", **requested)
    assert not [note for note in (*heard.notes, *sound.notes()) if note.startswith("Data: ")]


def test_a_perfect_score_is_noted():
    """On 56 test samples, of 45 of a class and site 14 (30 %, 13.5); not where it is perfect on a single class."""
    requested: dict[str, Any] = {"model": "mlp", "method": "fedavg", "progress": Progress()}
    settings = {"protocol": {"name": "in-domain", "test": 0.3}, "train.steps": 30, "evaluate.metrics": ["auroc"]}
    settings["run.engine"] = "sequential"

    def noted(y: Any, distance: float, rounds: int) -> str:
        draw = np.random.default_rng(0)
        sites = {name: ((draw.normal(size=(90, 3)) + distance * y[:, None]).astype(np.float32), y) for name in "ab"}
        found = fedshift.compare(data=sites, rounds=rounds, settings=settings, **requested)
        (note,) = [note for note in found.notes() if "perfect" in note] or [""]
        assert note in ("", *(f"{each.text} {each.remedy}" for each in found.cautions()))
        return note

    easy = noted(np.arange(90) % 2, 8.0, 10)
    assert "The score of fedavg is perfect on test a, test b (56 samples)" in easy
    assert "`fedshift data`" in easy
    assert noted(np.arange(90) % 2, 0.5, 2) == ""
    assert noted(one_of(90), 8.0, 10) == ""
