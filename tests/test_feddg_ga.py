"""FedDG-GA's weights by hand, the gaps that clients send, and that it is FedAvg without its step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import CNN_WITH_BN, Make, at, exchanged, net_of, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.feddg_ga import FedDGGA
from fedshift.runs.simulation import Simulation

GA: dict[str, Any] = {"method.name": "feddg-ga"}


def moved(weights: list[float], gaps: dict[int, tuple[float, float]], round: int, rounds: int) -> list[float]:
    """The weights after a step of 0.6."""
    net = Net({"adjustment": holder({"value": torch.tensor(weights)})})
    replies = [(client, Tensors({"gap": torch.tensor(gap)})) for client, gap in gaps.items()]
    empty = Batch(torch.empty(0))
    after = FedDGGA(step=0.6).adjust_weights(net, empty, at(round=round, rounds=rounds, replies=replies))
    found: list[float] = after["adjustment.value"].tolist()
    return found


def test_the_weights_of_three_clients_by_hand():
    """Gaps 0.1, 0.2 and 0.6 are -0.2, -0.1 and 0.3 from their mean; over 0.3: -2/3, -1/3 and 1.

    Round 3 of 4: d_t / N = (1 - 2/4) 0.6 / 3 = 0.1. So 0.5, 0.3, 0.2 become 0.4333, 0.2667, 0.3, of sum 1.
    """
    gaps = {0: (0.1, 1.0), 1: (0.2, 1.0), 2: (0.6, 1.0)}
    assert moved([0.5, 0.3, 0.2], gaps, 3, 4) == pytest.approx([13 / 30, 8 / 30, 9 / 30])


def test_the_largest_deviation_may_be_below_the_mean():
    """Gaps 0.6, 0.5 and 0.1 are 0.2, 0.1 and -0.3 from their mean; over 0.3, the largest size: 2/3, 1/3 and -1.

    With d_t / N = 0.1 the weights 0.5, 0.3, 0.2 become 0.5667, 0.3333, 0.1.
    """
    gaps = {0: (0.6, 1.0), 1: (0.5, 1.0), 2: (0.1, 1.0)}
    assert moved([0.5, 0.3, 0.2], gaps, 3, 4) == pytest.approx([17 / 30, 10 / 30, 3 / 30])


def test_clipping_unknown_gaps_and_absent_clients():
    """Clients 0 and 2 have the gaps 0.1 and 0.5, 1 has none yet, 3 is absent; over 0.2 they are -1 and 1.

    Round 2 of 3: d_t / N = (1 - 1/3) 0.6 / 4 = 0.1. 0.05 - 0.1 is clipped to 0, 0.2 + 0.1 = 0.3; 0.25 and 0.5 stay,
    and all are divided by 1.05. In a first round nothing is known, and weights stay.
    """
    gaps = {0: (0.1, 1.0), 1: (0.0, 0.0), 2: (0.5, 1.0)}
    after = moved([0.05, 0.25, 0.2, 0.5], gaps, 2, 3)
    assert after == pytest.approx([0.0, 0.25 / 1.05, 0.3 / 1.05, 0.5 / 1.05])
    assert moved([0.05, 0.25, 0.2, 0.5], {0: (0.0, 0.0), 1: (0.0, 0.0)}, 1, 3) == pytest.approx([0.05, 0.25, 0.2, 0.5])


def test_the_merge_by_hand():
    """0.2, 0.6 of 1 and 5: (0.2 + 3) / 0.8 = 4; by 3 and 1 samples (0.6 + 3) / 1.2 = 3; of zeros the same, 3."""
    state = ServerState(
        shared=Tensors({"head.w": torch.zeros(())}), server=Tensors({"adjustment.value": torch.tensor([0.2, 0.2, 0.6])})
    )
    ups = [(0, Up({"head.w": torch.tensor(1.0)})), (2, Up({"head.w": torch.tensor(5.0)}))]
    merged = FedDGGA().merge(state, Replies(ups))
    assert merged.shared["head.w"].item() == pytest.approx(4)
    assert FedDGGA().merge(state, Replies(ups, [3, 1])).shared["head.w"].item() == pytest.approx(3)
    nobody = state.updated({"adjustment.value": torch.tensor([0.0, 1.0, 0.0])})
    assert FedDGGA().merge(nobody, Replies(ups)).shared["head.w"].item() == pytest.approx(3)


def test_gaps_are_of_all_training_samples_before_and_after_the_merge(make: Make):
    """Computed again from the client's own model of round 1 and the global one that it receives in round 2."""
    simulation = Simulation(make({**GA, "train.precision": "float64"}))
    clients, coordinator = simulation.federated.clients, simulation.coordinator
    first, second = coordinator.schedule
    (exchange,) = first.stage.exchanges

    def loss(model: Tensors) -> float:
        net, train = net_of(simulation), clients[0].train
        for part, module in net.parts.items():
            module.load_state_dict({**module.state_dict(), **model.of(part)})
        return FedDGGA().objective("train").loss(net, Batch(train.x.double(), train.y), at()).item()

    ups = exchanged(simulation, exchange, first, clients)
    assert [up["gap"].tolist() for up in ups.values()] == [[0, 0], [0, 0]]
    coordinator.state = exchange.merge(coordinator.state, Replies(ups.items()))
    gap = loss(coordinator.state.shared) - loss(Tensors(ups[0]))
    ups = exchanged(simulation, exchange, second, clients)
    assert ups[0]["gap"].tolist() == pytest.approx([gap, 1])


def test_without_its_step_it_is_fedavg(make: Make):
    """Up to rounding, as 1/N counts instead of 1; with a step it is another."""
    changes = {**CNN_WITH_BN, "train.rounds": 4, "train.precision": "float64"}
    plain, still, moving = (
        simulate(make({**changes, **own})).coordinator.state.shared
        for own in ({}, {**GA, "method.step": 0.0}, {**GA, "method.step": 0.5})
    )
    for name, tensor in plain.items():
        torch.testing.assert_close(still[name], tensor, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(moving["head.weight"], plain["head.weight"], rtol=1e-5)
