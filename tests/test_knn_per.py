"""kNN-Per's prediction by hand, what a client remembers, and what it is without the memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, evaluated, linear, net_of, simulate, states
from fedshift.core.contract import Batch
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Tensors
from fedshift.methods.knn_per import KNNPer
from refusal import refuses


@pytest.mark.parametrize(
    ("settings", "known", "p"),
    [
        ({"neighbours": 1}, 3, 0.625),
        ({"neighbours": 2}, 3, 0.6205034),
        ({"neighbours": 2, "sigma": 4.0}, 3, 0.5577647),
        ({"neighbours": 3}, 3, 0.6161658),
        ({"neighbours": 50}, 3, 0.6161658),
        ({"neighbours": 3}, 1, 0.625),
        ({"neighbours": 3}, 0, 0.5),
    ],
)
def test_the_prediction_by_hand(settings: dict[str, Any], known: int, p: float):
    """At z = 0 the head predicts 1/2, and lam = 1/4; z = 0, 2 and -2 of the classes 0, 1 and 1, where they are known.

    One neighbour: 1, so p = 0.75 / 2 + 0.25. Two, with weights 1 and e^-4: 1 / (1 + e^-4) = 0.9820138; with sigma = 4,
    1 and e^-1: 0.7310586. Three or more: 1 / (1 + 2 e^-4) = 0.9646632.
    Room that nobody fills is no neighbour, and without a memory the head alone counts.
    """
    z, y = torch.zeros(5, 1), torch.zeros(5, 2)
    z[:known, 0], y[:known] = torch.tensor([0.0, 2.0, -2.0])[:known], torch.eye(2)[torch.tensor([0, 1, 1])][:known]
    net = Net({"encoder": nn.Identity(), "head": linear(1.0, -1.0), "memory": holder({"z": z, "y": y})})
    method = KNNPer(lam=0.25, capacity=5, **settings)
    assert method.predict(net, torch.zeros(1, 1), {}).exp()[0, 0].item() == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize("capacity", [40, 10])
def test_a_client_remembers_its_samples_as_the_final_model_sees_them(make: Make, capacity: int):
    """All 27, or ten of them, each once and with its own class, in evaluation mode."""
    simulation = simulate(make({"method": {"name": "knn-per", "capacity": capacity}, **CNN_WITH_BN}))
    method, net = simulation.experiment.method, net_of(simulation)
    for part in method.moves():
        net.parts[part].load_state_dict(dict(simulation.coordinator.state.shared.of(part)))
        net.parts[part].eval()
    for client, state in states(simulation):
        samples, memory = simulation.federated.clients[client].train, Tensors(state.tensors).of("memory")
        with torch.no_grad():
            z = method.encode(net, Batch(samples.x), {}).z
        count = min(capacity, len(z))
        assert not memory["y"][count:].any()
        distance, which = (memory["z"][:count, None] - z).norm(dim=2).min(dim=1)
        assert distance.max() < 1e-5
        assert len(set(which.tolist())) == count
        assert torch.equal(memory["y"][:count].argmax(dim=1), samples.y[which])


def test_balanced_batches_are_refused(make: Make):
    """Of classes with 20 and 1 samples, a balanced memory has many copies of the one."""
    with refuses("several times", "train.batches = 'shuffled'"):
        simulate(make({"method": {"name": "knn-per"}, "train.batches": "balanced"}))


def test_the_kernel_divides_by_the_dimension():
    """Z = 0, and a memory of (0, 0) and (2, 2): a squared distance of 8 over d = 2 weighs e^-4, as 4 over d = 1."""
    z, y = torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.eye(2)
    head = nn.Linear(2, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    net = Net({"encoder": nn.Identity(), "head": head, "memory": holder({"z": z, "y": y})})
    method = KNNPer(lam=1.0, capacity=2)
    assert method.predict(net, torch.zeros(1, 2), {}).exp()[0, 0].item() == pytest.approx(0.9820138, abs=1e-6)


def test_without_the_memorys_weight_it_predicts_as_fedavg(make: Make):
    changes = {"train.rounds": 2, "protocol": {"name": "in-domain"}, **CNN_WITH_BN}
    ours = simulate(make({**changes, "method": {"name": "knn-per", "lam": 0.0}}))
    plain = simulate(make(changes))
    mine, theirs = (evaluated(each, each.coordinator.schedule[-1])["environments"] for each in (ours, plain))
    assert [row["accuracy"] for row in mine] == [row["accuracy"] for row in theirs]
    assert [row["loss"] for row in mine] == pytest.approx([row["loss"] for row in theirs], rel=1e-5)
