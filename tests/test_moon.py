"""MOON's contrast by hand, and the model that each client keeps for it."""

from __future__ import annotations

import math
from collections import OrderedDict
from copy import deepcopy

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, at, exchanged, linear, states
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.core.tensors import Replies
from fedshift.methods.moon import MOON, contrast
from fedshift.runs.simulation import Simulation

X, Y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def test_the_contrast_and_its_gradient_by_hand():
    """Temperature 0.5, z = (1, 0).

    Image 1: cos(z, z_g) = 1, cos(z, z_prev) = 0: log(1 + e^-2) = 0.1269280.
    Image 2: the other way round: log(1 + e^2) = 2.1269280. Mean: 1.1269280.
    d cos(z, v)/dz at |z| = 1 is v - cos(z, v) z. With u = (cos_prev - cos_g) / 0.5 the loss is softplus(u):
    image 1: sigmoid(-2) / 0.5 * ((0, 1) - 0) = (0, 0.2384058); image 2: sigmoid(2) / 0.5 * -(0, 1) = (0, -1.7615942);
    each is halved by the mean.
    """
    z = torch.stack([X, X]).requires_grad_()
    loss = contrast(z, torch.stack([X, Y]), torch.stack([Y, X]), 0.5)
    assert loss.item() == pytest.approx(1.1269280, abs=1e-6)
    loss.backward()
    assert z.grad.flatten().tolist() == pytest.approx([0, 0.1192029, 0, -0.8807971], abs=1e-6)


def test_the_loss_reads_the_received_and_the_previous_model():
    """Encoders 1x -> 2 z: running x * (1, 0), received x * (0, 1), previous x * (1, 0); x = 3, mu = 2.

    Cosines 0 and 1: 2 * log(1 + e^2) = 4.2538560. The head is zero: CE = log 2.
    """
    encoder, previous = linear([1.0], [0.0]), nn.Sequential(OrderedDict(encoder=linear([1.0], [0.0])))
    net = Net({"encoder": encoder, "head": linear([0.0, 0.0], [0.0, 0.0]), "previous": previous.requires_grad_(False)})
    received = {"encoder.weight": torch.tensor([[0.0], [1.0]])}
    batch = Batch(torch.tensor([[3.0]]), torch.tensor([1]))
    terms = MOON(mu=2.0, projection="none").objective("train").evaluate(net, batch, at(received=received))
    assert terms["cross_entropy"].item() == pytest.approx(math.log(2))
    assert terms["contrastive"].item() == pytest.approx(2 * math.log(1 + math.exp(2)), rel=1e-6)
    sum(terms.values()).backward()
    assert encoder.weight.grad[1].item() < 0  # towards the received model
    assert not any(parameter.grad is not None for parameter in previous.parameters())


def test_the_projection_is_contrasted_and_read_by_the_head():
    """The same numbers, with an encoder that would give the contrary: z = x for all three, projected separately."""
    parts = {"encoder": linear([1.0]), "projection": linear([1.0], [0.0])}
    previous = nn.Sequential(OrderedDict(deepcopy(parts)))
    net = Net({**parts, "head": linear([1.0, 0.0], [0.0, 0.0]), "previous": previous})
    received = {"encoder.weight": torch.tensor([[1.0]]), "projection.weight": torch.tensor([[0.0], [1.0]])}
    method, batch = MOON(mu=1.0, projection="mlp"), Batch(torch.tensor([[3.0]]), torch.tensor([0]))
    terms = method.objective("train").evaluate(net, batch, at(received=received))
    assert terms["contrastive"].item() == pytest.approx(math.log(1 + math.exp(2)), rel=1e-6)
    assert terms["cross_entropy"].item() == pytest.approx(math.log(1 + math.exp(-3)), rel=1e-5)
    assert method.predict(net, torch.tensor([[3.0]]), {})[0, 0].item() == pytest.approx(-math.log(1 + math.exp(-3)))


def test_with_local_batch_norm_the_received_weights_meet_the_norms_at_work():
    """The Down contains no batch norm, so z_g is made with the scale that the client has at this step."""
    encoder = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    encoder[1].weight.data = torch.tensor([2.0, -1.0, 0.5])
    previous = nn.Sequential(OrderedDict(encoder=deepcopy(encoder).eval()))
    net = Net({"encoder": encoder, "head": nn.Linear(3, 2), "previous": previous})
    received = {"encoder.0.weight": torch.ones(3, 2), "encoder.0.bias": torch.tensor([0.5, 1.0, -1.0])}
    x = torch.tensor([[1.0, 2.0], [0.0, -1.0], [2.0, 0.5]])
    once = deepcopy(encoder)
    z = once(x)  # in training mode: the statistics move, once
    norm, z_previous = deepcopy(once[1]).eval(), previous(x)
    z_global = norm(x @ received["encoder.0.weight"].T + received["encoder.0.bias"])
    objective = MOON(projection="none").objective("train")
    terms = objective.evaluate(net, Batch(x, torch.tensor([0, 1, 0])), at(received=received))
    assert terms["contrastive"].item() == pytest.approx(contrast(z, z_global, z_previous, 0.5).item(), rel=1e-5)
    assert torch.equal(encoder[1].running_mean, once[1].running_mean)  # no frozen pass moved them again


@pytest.mark.parametrize(("bn", "projection"), [("shared", "mlp"), ("local", "none")])
def test_the_previous_model_is_the_clients_last_one(make: Make, bn: str, projection: str):
    """At first the run's initial model; after a round what the client trained, its own batch norms included."""
    method = {"name": "moon", "bn": bn, "projection": projection}
    simulation = Simulation(make({"method": method} | CNN_WITH_BN))
    initial = {**simulation.coordinator.state.shared, **simulation.site.initial}
    kept = {name for name in simulation.site.initial if name.startswith("previous.")}
    assert {name.removeprefix("previous.") for name in kept} == {
        name for name in initial if not name.startswith(("head.", "previous."))
    }
    assert all(torch.equal(initial[name], initial[name.removeprefix("previous.")]) for name in kept)
    for when in simulation.coordinator.schedule:
        (exchange,) = when.stage.exchanges
        ups = exchanged(simulation, exchange, when, list(simulation.federated.clients))
        simulation.coordinator.state = exchange.merge(simulation.coordinator.state, Replies(sorted(ups.items())))
        for client, state in states(simulation):
            trained = {**ups[client], **state.tensors}
            assert all(torch.equal(trained[name], trained[name.removeprefix("previous.")]) for name in kept)
            assert not torch.equal(state.tensors["previous.encoder.0.weight"], initial["encoder.0.weight"])
