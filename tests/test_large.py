"""Federations of many clients: mapped arrays, one pass over clients, and a drawn part of them that is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedshift
from conftest import Make, simulate
from fedshift.clients import partitions
from fedshift.clients.partitions import shuffled
from fedshift.clients.samples import Samples, class_counts
from fedshift.datasets import arrays
from fedshift.datasets.arrays import Arrays
from fedshift.runs.dry_run import estimate
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams

CLIENTS = 40
MANY: dict[str, Any] = {
    "data": {"name": "arrays", "path": "a.npz"},
    "partition": {"name": "iid", "clients": CLIENTS},
    "protocol": {"name": "all-clients"},
    "model": {"name": "mlp", "hidden": [], "dim": 4},
    "train": {"rounds": 3, "steps": 2, "batch": 4, "participation": 0.1},
}


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Forty clients of twenty rows each."""
    draw = np.random.default_rng(0)
    y = np.arange(CLIENTS * 20) % 2
    np.savez(tmp_path / "a.npz", x=(draw.normal(size=(len(y), 6)) + y[:, None]).astype(np.float32), y=y)
    monkeypatch.chdir(tmp_path)
    return MANY


# Mapped arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_mapped_where_they_lie_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any):
    """The same samples whether an array is mapped or, compressed, read; what is written to does not reach the file."""
    monkeypatch.setattr(arrays, "MAPPED", 0)
    x, y = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
    save(tmp_path / "a.npz", x=x, y=y)
    before = (tmp_path / "a.npz").read_bytes()
    mapped, plain = list[str](), np.memmap

    def memmap(*args: Any, **kwargs: Any) -> Any:
        mapped.append(args[1].name)
        return plain(*args, **kwargs)

    monkeypatch.setattr(np, "memmap", memmap)
    data = Arrays(path=str(tmp_path / "a.npz")).load(Streams(0))
    assert torch.equal(data.x, torch.from_numpy(x))
    assert data.y.tolist() == y.tolist()
    assert mapped == (["float32", "int64"] if save is np.savez else [])
    data.x.zero_()
    assert (tmp_path / "a.npz").read_bytes() == before


# One pass -------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5), st.booleans())
def test_class_counts_are_those_of_each_part(labels: list[list[int]], shared: bool):
    y = torch.tensor([label for part in labels for label in part], dtype=torch.int64)
    whole = Samples(torch.zeros(len(y), 1), y)
    parts, begin = [], 0
    for each in labels:
        rows = torch.arange(begin, begin + len(each))
        alone = Samples(torch.zeros(len(each), 1), torch.tensor(each, dtype=torch.int64))
        parts.append(whole.view_of(rows) if shared else alone)
        begin += len(each)
    assert class_counts(parts, 4).tolist() == [[part.count(label) for label in range(4)] for part in labels]


def test_of_very_many_strata_one_stream_orders_all(monkeypatch: pytest.MonkeyPatch):
    """Each stratum keeps its samples and its place, in an order that the seed decides."""
    stratum = torch.tensor([2, 0, 1, 2, 0, 2, 1, 0, 2, 2] * 20)
    monkeypatch.setattr(partitions, "MANY_STRATA", 2)
    order, sizes = shuffled(stratum, Streams(0), "test")
    assert sizes.tolist() == [60, 40, 100]
    assert stratum[order].tolist() == sorted(stratum.tolist())
    assert sorted(order.tolist()) == [*range(200)]
    again, other = (shuffled(stratum, Streams(seed), "test")[0] for seed in (0, 1))
    assert torch.equal(order, again)
    assert not torch.equal(order, other)
    assert order[:60].tolist() != sorted(order[:60].tolist())


# A drawn part is scored -----------------------------------------------------------------------------


def test_of_many_clients_a_drawn_part_is_scored(many: dict[str, Any]):
    """Eight of forty, by the seed of the data; training is that of a run that scores all."""
    some = {**many, "evaluate": {"clients": 8}}
    run, whole = (fedshift.experiment(each) for each in (some, many))
    federated = Simulation(run).federated
    scored = {each.client for each in federated.environments}
    assert len(scored) == 8
    assert scored != {*range(8)}
    assert [each.role for each in federated.environments].count("test") == 8
    (note,) = [note for note in federated.notes if "are scored" in note]
    assert (
        note
        == "8 of 40 clients, drawn by the seed, are scored: means over clients are of these (evaluate.clients = 8)."
    )
    assert {
        each.client for each in Simulation(fedshift.experiment({**some, "seed": 1})).federated.environments
    } != scored
    ours, theirs = (simulate(each).coordinator.state.tensors for each in (run, whole))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert not Simulation(whole).federated.notes


def test_a_dry_run_says_what_scoring_all_would_cost(many: dict[str, Any]):
    cost = estimate(fedshift.experiment({**many, "evaluate": {"clients": 8}}))
    assert cost.scoring
    (note,) = [note for note in cost.notes if note.startswith("An evaluation takes about")]
    assert "of all 40 clients it would take" in note
    assert not any("An evaluation takes" in note for note in estimate(fedshift.experiment(many)).notes)


def test_only_clients_that_were_sampled_have_a_file(many: dict[str, Any], tmp_path: Path):
    """Four of forty in each of three rounds, with private batch norm: as many states as different clients."""
    changed = {**many, "model": {"name": "mlp", "hidden": [4], "dim": 4, "norm": "batch"}, "method": {"name": "fedbn"}}
    run = fedshift.run(changed, settings={"run.out": str(tmp_path / "runs"), "run.engine": "sequential"})
    files = [*(run.path / "clients").glob("*.safetensors")]
    assert 4 <= len(files) <= 12


def test_the_cost_of_a_round_does_not_count_clients_that_stay_away(make: Make, many: dict[str, Any]):
    """A round looks up its cohort's samples alone: with views counted, four, not forty."""
    simulation = Simulation(fedshift.experiment(many))
    looked, plain = list[int](), Samples.view_of

    def view_of(self: Samples, rows: Any) -> Samples:
        looked.append(1)
        return plain(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Samples, "view_of", view_of)
        from conftest import go_on

        go_on(simulation)
    assert len(looked) <= 2 * 4
