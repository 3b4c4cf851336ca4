"""What works class by class, also where classes are absent: one that no client has, and one that a client lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conftest import Make, simulate, states
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Client
from fedshift.core.frozen import Embedding
from fedshift.core.tensors import Replies, Tensors
from fedshift.engines.engine import Engine
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.experiments import Experiment
from fedshift.methods.classes import COUNTS, class_sums, newest_counts, newest_means, one_hot
from fedshift.methods.generator import labels_among
from fedshift.runs import simulation as simulation_module
from test_methods import small


def test_labels_are_drawn_among_the_classes_that_are_there():
    """Classes 1 and 3 of four: draws below a half are 1, the others 3, up to the largest number below 1."""
    uniform = torch.tensor([0.0, 0.3, 0.4999, 0.5, 0.9, 1 - 2**-24])
    assert labels_among(torch.tensor([0, 2, 0, 9]), uniform).tolist() == [1, 1, 1, 3, 3, 3]
    assert labels_among(torch.tensor([0, 0, 7]), uniform).tolist() == [2] * 6
    assert labels_among(torch.zeros(2, dtype=torch.int64), uniform).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("classes", [1, 3, 5, 7, 10, 100, 345, 1000])
def test_the_largest_draw_is_a_class(classes: int):
    largest = torch.tensor([1 - 2**-24])
    assert labels_among(torch.ones(classes), largest).item() == classes - 1


def test_codes_and_counts_by_hand():
    assert one_hot(torch.tensor([2, 0]), 3, torch.ones(1)).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert class_sums(z, torch.tensor([2, 0, 2]), 3).tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]


def test_the_newest_counts_and_means_by_hand():
    """Class 0: 3 and 1 samples, with sums of 6 and 2, have the mean 2. Nobody has class 1 now, and never class 2."""
    of_each = [([3, 0, 0], [[6.0], [0.0], [0.0]]), ([1, 0, 0], [[2.0], [0.0], [0.0]])]
    replies = Replies(
        (client, Tensors({COUNTS: torch.tensor(counts), "sums": torch.tensor(sums)}))
        for client, (counts, sums) in enumerate(of_each)
    )
    assert newest_counts(replies, torch.tensor([9, 5, 0])).tolist() == [4, 5, 0]
    assert newest_means(replies, "sums", torch.tensor([[7.0], [8.0], [0.0]])).tolist() == [[2.0], [8.0], [0.0]]


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedproc", {}),
        ("fedproc", {"method.denominator": "others"}),
        ("fedgen", {}),
        ("fedadg", {}),
    ],
)
def test_absent_classes_leave_everything_finite(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], engine: type[Engine]
):
    """Nobody has class 2; the first client has class 0 alone; one of the two takes part in a round."""
    whole = simulation_module.make_federated

    def without(experiment: Experiment, tell: Embedding) -> FederatedData:
        federation = whole(experiment, tell)

        def kept(client: Client) -> Client:
            absent = (1, 2) if client.id == 0 else (2,)
            held = ~torch.isin(client.train.y, torch.tensor(absent))
            return replace(client, train=client.train.subset(held))

        return replace(federation, clients=[kept(client) for client in federation.clients])

    monkeypatch.setattr(simulation_module, "make_federated", without)
    run = {"train.rounds": 5, "train.lr": 0.02, "train.participation": 0.5, "run.audit": False}
    simulation = simulate(make({**small(name), **run, **changes}), engine=engine())
    assert all(tensor.isfinite().all() for tensor in simulation.coordinator.state.tensors.values())
    assert {client for client, _ in states(simulation)} == {0, 1}
    for _, state in states(simulation):
        assert all(tensor.isfinite().all() for tensor in state.tensors.values())
    for terms in simulation.coordinator.terms.values():
        assert all(torch.tensor(value).isfinite() for value in terms.values())
    if name != "fedadg":
        assert simulation.coordinator.state.down["class_counts.value"][2] == 0
        assert (simulation.coordinator.state.down["class_counts.value"][:2] > 0).all()
