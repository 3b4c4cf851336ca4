"""FTFA by hand, and without steps FedAvg."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, evaluated, names_sent, simulate, states
from fedshift.core.contract import Part
from fedshift.methods.ftfa import FTFA
from fedshift.methods.personal import Tuned
from test_ditto import PLAIN, Point, quadratic


class Quadratic(FTFA):
    """Client k has F_k(w) = a_k/2 (w - c_k)^2 with a = (1, 4) and c = (3, -1)."""

    def parts(self, model):
        shared = {"encoder": Part(nn.Identity()), "head": Part(Point())}
        return {**shared, "tuned": Part(Tuned(nn.Identity(), Point()), "client")}

    def loss(self, net, batch, context):
        return {"cross_entropy": quadratic(net.head.w, context)}

    plain_loss = loss


@pytest.mark.parametrize(("lr", "own"), [(None, (0.787485, -0.79156)), (0.2, (1.44608, -0.99228))])
def test_tuning_by_hand(make: Make, lr: float | None, own: tuple[float, float]):
    """One round of two steps of 0.1 ends at w = -0.035 (Ditto's test says how).

    Then s steps at a rate r end at c + (w - c) (1 - r a)^s. s = 3, r = 0.1: 3 - 3.035 * 0.9^3 = 0.787485 and
    -1 + 0.965 * 0.6^3 = -0.79156; r = 0.2: 3 - 3.035 * 0.8^3 = 1.44608 and -1 + 0.965 * 0.2^3 = -0.99228.
    """
    method = Quadratic(finetune_steps=3, finetune_lr=lr)
    simulation = simulate(make({**PLAIN, "train.rounds": 1}).replace(method=method))
    assert simulation.coordinator.state.shared["head.w"].item() == pytest.approx(-0.035, abs=1e-6)
    assert [state.tensors["tuned.head.w"].item() for _, state in states(simulation)] == pytest.approx(own, abs=1e-6)
    assert not names_sent(simulation, "finetune", "up")


def test_without_steps_it_is_fedavg_to_the_bit(make: Make):
    """As many rounds, the same model, and the same scores of everyone."""
    changes = {"train.rounds": 3, **CNN_WITH_BN}
    ours = simulate(make({**changes, "method": {"name": "ftfa", "finetune_steps": 0}}))
    plain = simulate(make(changes))
    assert ours.rounds == plain.rounds == 3
    shared = plain.coordinator.state.shared
    assert all(torch.equal(ours.coordinator.state.shared[name], tensor) for name, tensor in shared.items())
    one, other = (evaluated(each, each.coordinator.schedule[-1])["environments"] for each in (ours, plain))
    assert [row | {"model": ""} for row in one] == [row | {"model": ""} for row in other]
    assert (ours.coordinator.bytes_down, ours.coordinator.bytes_up) == (
        plain.coordinator.bytes_down,
        plain.coordinator.bytes_up,
    )
