"""FedALA's weights, mixture and rounds by hand, and what it is when the weights stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import Make, go_on, linear
from fedshift.core.net import Net, holder
from fedshift.methods.fedala import FedALA
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.simulation import Simulation
from quadratics import APART, PLAIN, OnQuadratics, at_rest, on_quadratics, own
from refusal import refuses

__all__ = ["on_quadratics"]  # a fixture


@pytest.mark.parametrize(
    ("rate", "weights", "last"), [(1.0, [0.0, 0.0], [0.57, -0.64]), (0.5, [0.46625, 0.335], [0.42313125, -0.56965])]
)
def test_two_rounds_by_hand(on_quadratics: OnQuadratics, rate: float, weights: list[float], last: list[float]):
    """One step of W and one of h, of 0.1, in each round, from h = 0 and W = 1. F_0' = h - 3, F_1' = 4 (h + 1).

    Round 1: there is no last head, W stays. h = 0.3 and -0.4, whose mean is -0.05.
    Round 2, client 0: at -0.05 the gradient of W is -3.05 (-0.05 - 0.3) = 1.0675; client 1: 3.8 (-0.05 + 0.4) = 1.33.
      At the rate 1 both are clipped at 0: the last heads continue to 0.3 + 0.27 and -0.4 - 0.24. At the rate 0.5
      W = 0.46625, h = 0.3 - 0.35 W = 0.1368125 and + 0.1 * 2.8631875; W = 0.335, h = -0.4 + 0.35 W = -0.28275 and
      - 0.4 * 0.71725.
    """
    method = FedALA(weight_lr=rate, unit="steps")
    simulation = Simulation(on_quadratics.experiment(method, PLAIN | {"train.steps": 1}, APART))
    for ws, hs in (([1.0, 1.0], [0.3, -0.4]), (weights, last)):
        go_on(simulation)
        assert own(simulation, "weight.w") == pytest.approx(ws)
        assert own(simulation, "last.head.w") == pytest.approx(hs)
        assert at_rest(simulation) == pytest.approx(sum(hs) / 2)


def test_weights_and_heads_take_plain_steps_beside_a_training_with_momentum(on_quadratics: OnQuadratics):
    """Client 0, two steps of W at the rate 0.1, momentum 0.9 of the training, whose single step it does not change.

    The mixed head is 0.3 - 0.35 W, its F' times -0.35 the gradient of W. At W = 1: 3.05 * 0.35 = 1.0675, W = 0.89325;
    there the head is -0.0126375, the gradient 3.0126375 * 0.35 = 1.0544231, and W = 0.7878077. The head starts from
    0.3 - 0.35 W = 0.0242673 and takes a step of 0.1 to 0.3.
    """
    changes = PLAIN | {"train.steps": 1, "train.momentum": 0.9}
    simulation = Simulation(
        on_quadratics.experiment(FedALA(weight_lr=0.1, weight_steps=2, unit="steps"), changes, APART)
    )
    go_on(simulation)
    go_on(simulation)
    assert own(simulation, "weight.w")[0] == pytest.approx(0.7878077)
    assert own(simulation, "last.head.w")[0] == pytest.approx(0.0242673 + 0.1 * (3 - 0.0242673))


def test_with_weights_that_stay_at_1_it_is_fedavg(on_quadratics: OnQuadratics):
    """On full batches, since W and the head's place take separate batches."""
    changes = PLAIN | {"train.rounds": 4, "train.steps": 3}
    ours = on_quadratics.run(FedALA(weight_lr=1e-12), changes, APART)
    assert at_rest(ours) == pytest.approx(at_rest(on_quadratics.run(FedAvg(), changes, APART)))


def test_gradients_are_not_clipped(make: Make):
    with refuses("train.clip = 1.0", "train.clip = 'off'"):
        Simulation(make({"method.name": "fedala", "train.clip": 1.0}))


@pytest.mark.parametrize(("done", "p"), [(1.0, 0.9933071), (0.0, 0.8807971)])
def test_a_client_predicts_with_the_mixed_head(done: float, p: float):
    """The head (1, -1), the last head (3, -3) and W = 1/4 make 3 + (1 - 3) / 4 = 2.5 and -2.5: sigmoid(5) at x = 1.

    A client that never trained has no last head: sigmoid(2).
    """
    last = holder({"head.weight": torch.tensor([[3.0], [-3.0]]), "done": torch.tensor(done)})
    weight = nn.ParameterDict({"weight": torch.full((2, 1), 0.25)})
    net = Net({"encoder": linear(1.0), "head": linear(1.0, -1.0), "last": last, "weight": weight})
    assert FedALA().predict(net, torch.tensor([[1.0]]), {}).exp()[0, 0].item() == pytest.approx(p, abs=1e-6)
