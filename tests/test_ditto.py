"""Ditto's two models by hand, the optimum between them, what each is beside FedAvg and local training, who predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conftest import CNN_WITH_BN, Make, at, go_on, linear, states
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.methods.ditto import Ditto
from fedshift.runs.simulation import Simulation
from quadratics import APART, PLAIN, OnQuadratics, at_rest, on_quadratics, own

__all__ = ["on_quadratics"]  # a fixture


# The objective --------------------------------------------------------------------------------------


def test_the_personal_loss_and_its_gradient_by_hand():
    """One image x = 1 of y = 0; v: z = 2x, logits (z, -z); w_t as received: z = x, logits (z, 0); lam = 0.5.

    Logits (2, -2): CE = log(1 + e^-4) = 0.0181499, with q = sigmoid(-4) = 0.0179862 the probability of the wrong class.
    ||v - w_t||^2 = (2 - 1)^2 + (1 - 1)^2 + (-1 - 0)^2 = 2, so the pull is 0.5 / 2 * 2 = 0.5. Its gradient is
    0.5 (v - w_t):
      encoder: -2 q + 0.5 * 1 = 0.4640276;
      head: -q * 2 + 0 = -0.0359724 and q * 2 + 0.5 * -1 = -0.4640276.
    The shared model running, z = 9x and logits (9z, 9z), is not read.
    """
    shared = {"encoder": linear(9.0), "head": linear(9.0, 9.0)}
    net = Net({**shared, "personal_encoder": linear(2.0), "personal_head": linear(1.0, -1.0)})
    received = {"encoder.weight": torch.tensor([[1.0]]), "head.weight": torch.tensor([[1.0], [0.0]])}
    batch = Batch(torch.tensor([[1.0]]), torch.tensor([0]))
    _, phase = Ditto(lam=0.5).phases()
    (objective,) = phase.objectives
    assert objective.moves == Ditto.local.names
    terms = objective.evaluate(net, batch, at(received=received))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"personal": 0.0181499, "pull": 0.5}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert net.personal_encoder.weight.grad.item() == pytest.approx(0.4640276, abs=1e-6)
    assert net.personal_head.weight.grad.flatten().tolist() == pytest.approx([-0.0359724, -0.4640276], abs=1e-6)
    assert all(module.weight.grad is None for module in shared.values())


# One number each ------------------------------------------------------------------------------------


def test_two_rounds_by_hand(on_quadratics: OnQuadratics):
    """Two steps of 0.1, lam = 0.5, all from 0. F_0' = w - 3, F_1' = 4 (w + 1).

    Round 1, w_0 = 0: client 0 takes w from 0 to 0.3 and 0.57, client 1 to -0.4 and -0.64: w_1 = -0.035.
      v_0: 0 + 0.1 * 3 = 0.3; then 0.3 - 0.1 (-2.7 + 0.5 * 0.3) = 0.555.
      v_1: 0 - 0.1 * 4 = -0.4; then -0.4 - 0.1 (2.4 + 0.5 * -0.4) = -0.62.
    Round 2, w_1 as received: w goes to 0.2685 and 0.54165, and to -0.421 and -0.6526: w_2 = -0.055475.
      v_0: 0.555 - 0.1 (-2.445 + 0.5 * 0.59) = 0.77; then 0.77 - 0.1 (-2.23 + 0.5 * 0.805) = 0.95275.
      v_1: -0.62 - 0.1 (1.52 + 0.5 * -0.585) = -0.74275; then -0.74275 - 0.1 (1.029 + 0.5 * -0.70775) = -0.8102625.
    """
    simulation = Simulation(on_quadratics.experiment(Ditto(lam=0.5), PLAIN | {"train.steps": 2}, APART))
    for w, v in ((-0.035, [0.555, -0.62]), (-0.055475, [0.95275, -0.8102625])):
        go_on(simulation)
        assert at_rest(simulation) == pytest.approx(w)
        assert own(simulation) == pytest.approx(v)


@pytest.mark.parametrize("lam", [0.0, 1.0, 3.0])
def test_the_personal_model_ends_at_its_optimum_between_its_own_and_the_global_one(
    on_quadratics: OnQuadratics, lam: float
):
    """A (v - c) + lam (v - w) = 0 at v = (a c + lam w) / (a + lam).

    Clients find their own optima, so FedAvg ends at w = (3 - 1) / 2 = 1, but for 0.8^30 = 0.001 of the way.
    """
    changes = PLAIN | {"train.rounds": 5, "train.steps": 30, "train.lr": 0.2}
    simulation = Simulation(on_quadratics.experiment(Ditto(lam=lam), changes, APART))
    for _ in simulation.coordinator.schedule:
        received = at_rest(simulation)
        go_on(simulation)
    exact = [(a * c + lam * received) / (a + lam) for a, c in ((1, 3), (4, -1))]
    assert own(simulation) == pytest.approx(exact, abs=1e-5)
    assert received == pytest.approx(1, abs=2e-3)


# What it is beside others ---------------------------------------------------------------------------


def draws_from(simulation: Simulation, number: int) -> None:
    """Let every client draw batches from a number on."""
    for client in simulation.federated.clients:
        state = simulation.site.state(client.id, {})
        simulation.site.store.put(client.id, replace(state, drawn={"train": number}))


def test_it_is_fedavg_beside_local_training_to_the_bit(make: Make):
    """The global model for any lam, the personal one for lam = 0, momentum and batch norm included.

    In each round a client draws two batches for w and then two for v. FedAvg and local training, which draw two a
    round, receive to draw the same ones; that is the only difference there is.
    """
    changes = {"train.rounds": 3, "train.steps": 2} | CNN_WITH_BN
    free, pulled = (Simulation(make(changes | {"method": {"name": "ditto", "lam": lam}})) for lam in (0.0, 2.0))
    federated, alone = Simulation(make(changes)), Simulation(make(changes | {"method.name": "single"}))
    for number, _ in enumerate(free.coordinator.schedule):
        draws_from(federated, 4 * number)
        draws_from(alone, 4 * number + 2)
        for simulation in (free, pulled, federated, alone):
            go_on(simulation)
        expected = federated.coordinator.state.shared
        for ours in (free.coordinator.state.shared, pulled.coordinator.state.shared):
            assert ours.keys() == expected.keys()
            assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
        local = dict(states(alone))
        for client, state in states(free):
            assert all(torch.equal(state.tensors[f"personal_{name}"], t) for name, t in local[client].tensors.items())
