"""FTFA by hand, and without steps FedAvg."""

from __future__ import annotations

import pytest
import torch

from conftest import CNN_WITH_BN, Make, names_sent, simulate, states
from fedshift.methods.ftfa import FTFA
from quadratics import APART, PLAIN, OnQuadratics, W, at_rest, on_quadratics, own

__all__ = ["on_quadratics"]  # a fixture


@pytest.mark.parametrize(("lr", "ends"), [(None, (0.787485, -0.79156)), (0.2, (1.44608, -0.99228))])
def test_tuning_by_hand(on_quadratics: OnQuadratics, lr: float | None, ends: tuple[float, float]):
    """One round of two steps of 0.1 ends at w = -0.035 (Ditto's test shows how).

    Then s steps at a rate r end at c + (w - c) (1 - r a)^s. s = 3, r = 0.1: 3 - 3.035 * 0.9^3 = 0.787485 and
    -1 + 0.965 * 0.6^3 = -0.79156; r = 0.2: 3 - 3.035 * 0.8^3 = 1.44608 and -1 + 0.965 * 0.2^3 = -0.99228.
    """
    method = FTFA(finetune_steps=3, finetune_lr=lr)
    simulation = on_quadratics.run(method, {**PLAIN, "train.rounds": 1, "train.steps": 2}, APART)
    assert at_rest(simulation) == pytest.approx(-0.035)
    assert own(simulation, f"tuned.{W}") == pytest.approx(ends)
    assert not names_sent(simulation, "finetune", "up")


def test_without_steps_it_is_fedavg_to_the_bit(make: Make):
    """As many rounds and bytes, and the same model."""
    changes = {"train.rounds": 3, **CNN_WITH_BN}
    ours = simulate(make({**changes, "method": {"name": "ftfa", "finetune_steps": 0}}))
    plain = simulate(make(changes))
    assert ours.rounds == plain.rounds == 3
    shared = plain.coordinator.state.shared
    assert all(torch.equal(ours.coordinator.state.shared[name], tensor) for name, tensor in shared.items())
    assert ours.coordinator.sent[1] == plain.coordinator.sent[1]


@pytest.mark.parametrize(("method", "tensor"), [("ftfa", "tuned.done"), ("knn-per", "memory.y")])
def test_the_last_stage_is_for_every_client_whoever_trained(make: Make, method: str, tensor: str):
    changes = {"method.name": method, "train.participation": 0.4, "train.rounds": 1, "protocol": {"name": "in-domain"}}
    simulation = simulate(make(changes))
    last = [state.tensors[tensor] for _, state in states(simulation)]
    assert len(last) == len(simulation.federated.clients) > 1
    assert all(each.any() for each in last)
