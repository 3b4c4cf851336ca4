"""FedLC's calibrated cross-entropy by hand, with absent classes, and against a plain loop in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, at, exchanged, simulate
from fedshift.clients.samples import Samples
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.methods.fedlc import FedLC
from fedshift.runs.simulation import Simulation


def loss_of(logits: torch.Tensor, y: list[int], counts: list[int], **settings):
    """FedLC's loss where the encoder gives the logits and the head passes them on."""
    net = Net({"encoder": nn.Identity(), "head": nn.Identity()})
    objective = FedLC(**settings).objective("train")
    return objective.evaluate(net, Batch(logits, torch.tensor(y)), at(counts=counts))["cross_entropy"]


@pytest.mark.parametrize(
    ("denominator", "counts", "expected"),
    [
        ("all", [16, 1, 81], math.log(math.exp(0.5) + math.exp(-1) + math.exp(5 / 3)) - 0.5),
        ("others", [16, 1, 81], math.log(math.exp(-1) + math.exp(5 / 3)) - 0.5),
        ("all", [16, 0, 81], math.log(math.exp(0.5) + math.exp(5 / 3)) - 0.5),
        ("others", [16, 0, 81], 5 / 3 - 0.5),
    ],
)
def test_the_loss_by_hand(denominator: str, counts: list[int], expected: float):
    """Logits (1, 0, 2), y = 0, tau = 1: n^(-1/4) of 16, 1, 81 is 1/2, 1, 1/3, so they become (1/2, -1, 5/3).

    An absent class leaves the sum.
    """
    logits = torch.tensor([[1.0, 0.0, 2.0]])
    assert loss_of(logits, [0], counts, denominator=denominator).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_the_gradient_is_finite_and_absent_classes_receive_none(denominator: str):
    """With "all" it is softmax - one-hot over the classes present, so each row's gradient sums to 0."""
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss_of(logits, [0, 3, 3, 0], [7, 0, 2, 30, 0], denominator=denominator).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, [1, 4]] == 0).all()
    assert (logits.grad[:, [0, 2, 3]] != 0).all()
    torch.testing.assert_close(logits.grad.sum(dim=1), torch.zeros(4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_a_client_of_one_class_has_nothing_to_tell_apart(denominator: str):
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = loss_of(logits, [2, 2, 2], [0, 0, 9, 0], denominator=denominator)
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


def test_a_rare_class_has_the_wider_margin():
    """Equal logits: the loss of class 0 with 1 and class 1 with 10^4 samples is log(1 + e^(1 - 0.1)) and with -0.9."""
    logits = torch.zeros(1, 2)
    assert loss_of(logits, [0], [1, 10_000]).item() == pytest.approx(math.log(1 + math.exp(0.9)), rel=1e-6)
    assert loss_of(logits, [1], [1, 10_000]).item() == pytest.approx(math.log(1 + math.exp(-0.9)), rel=1e-6)


def test_without_calibration_it_is_fedavg_where_every_class_is_present(make: Make):
    changes = {"train.rounds": 3} | CNN_WITH_BN
    plain, ours = simulate(make(changes)), simulate(make(changes | {"method": {"name": "fedlc", "tau": 0.0}}))
    one, other = plain.coordinator.state.shared, ours.coordinator.state.shared
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["fedlc", "fedavg"])
def test_in_a_run_the_absent_class_keeps_its_row_of_the_head(make: Make, name: str):
    """A client without class 2 sends row 2 of the head back as it came; plain cross-entropy pushes it down."""
    simulation = Simulation(make({"method.name": name, "train.weight_decay": 0.0}))
    when = simulation.coordinator.schedule[0]
    client = simulation.federated.clients[0]
    here = client.train.y != 2
    client = replace(client, train=Samples(client.train.x[here], client.train.y[here]))
    ups = exchanged(simulation, when.stage.exchanges[0], when, [client])
    same = [
        torch.equal(ups[0]["head.weight"][c], simulation.coordinator.state.shared["head.weight"][c]) for c in range(3)
    ]
    assert same == [False, False, name == "fedlc"]
