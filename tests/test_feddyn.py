"""FedDyn's objective, dual and correction by hand, and what they are for: the federation's own optimum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import Make, at, first_messages, linear, local_work, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.feddyn import FedDyn
from quadratics import APART, PLAIN, OnQuadratics, at_rest, on_quadratics

__all__ = ["on_quadratics"]  # a fixture


def test_loss_and_gradient_by_hand():
    """One image x = 2, y = 0; logits (w_0 x, w_1 x) with w = (1, -1); w_t = (0, 0), g = (0.5, 2), alpha = 0.1.

    CE = log(1 + e^-4) = 0.0181499; its gradient is (p_0 - 1) x = -0.0359724 and p_1 x = 0.0359724.
    linear = -(0.5 * 1 + 2 * -1) = 1.5, with gradient (-0.5, -2).
    proximal = 0.05 * (1 + 1) = 0.1, with gradient 0.1 * (1, -1).
    Sum of gradients: (-0.4359724, -2.0640276).
    """
    dual = holder({"head.weight": torch.tensor([[0.5], [2.0]])})
    net = Net({"encoder": nn.Identity(), "head": linear(1.0, -1.0), "dual": dual})
    batch, context = Batch(torch.tensor([[2.0]]), torch.tensor([0])), at(received={"head.weight": torch.zeros(2, 1)})
    terms = FedDyn(alpha=0.1).objective("train").evaluate(net, batch, context)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.0181499, "linear": 1.5, "proximal": 0.1}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert net.head.weight.grad.flatten().tolist() == pytest.approx([-0.4359724, -2.0640276], abs=1e-6)


def test_the_dual_by_hand():
    """With g = 0.2, w_t = 1, w_k = 0.4, alpha = 0.1: g - 0.1 * (0.4 - 1) = 0.26. What has no dual is left alone."""
    work = local_work(
        trained=Tensors({"head.w": torch.tensor(0.4), "head.running_mean": torch.tensor(3.0)}),
        private=Tensors({"dual.head.w": torch.tensor(0.2), "encoder.own": torch.tensor(1.0)}),
        received=Tensors({"head.w": torch.tensor(1.0), "head.running_mean": torch.tensor(0.0)}),
    )
    kept = FedDyn(alpha=0.1).keep(work)
    assert kept.keys() == {"dual.head.w"}
    assert kept["dual.head.w"].item() == pytest.approx(0.26)


def up(w: float, **more: int) -> Up:
    tensors = {"head.w": torch.tensor(w), "head.running_mean": torch.tensor(w)}
    return Up(tensors | {name: torch.tensor(value) for name, value in more.items()})


def start(clients: int) -> ServerState:
    """One parameter w = 1, a statistic of 9, and a correction of 0 for w alone."""
    shared = Tensors({"head.w": torch.tensor(1.0), "head.running_mean": torch.tensor(9.0)})
    return ServerState(shared, server=Tensors({"correction.head.w": torch.tensor(0.0)}), clients=clients)


def test_two_merges_by_hand():
    """Four clients, two of them sampled; alpha = 0.1, w_0 = 1, h_0 = 0.

    Round 1: mean(0.6, 0.8) = 0.7; h = -0.1 * (1/4) * (-0.4 - 0.2) = 0.015; w = 0.7 - 0.15 = 0.55.
    Round 2: mean(0.5, 0.3) = 0.4; h = 0.015 - 0.1 * (1/4) * (-0.05 - 0.25) = 0.0225; w = 0.4 - 0.225 = 0.175.
    The statistic is the mean of what came.
    Counts 1 and 3 of two clients: mean = 0.75, h = -0.1 * (2/2) * (0.75 - 1) = 0.025, w = 0.75 - 0.25 = 0.5.
    """
    method, state = FedDyn(alpha=0.1), start(4)
    for ups, h, w in (([(0, up(0.6)), (3, up(0.8))], 0.015, 0.55), ([(1, up(0.5)), (3, up(0.3))], 0.0225, 0.175)):
        state = method.merge(state, Replies(ups))
        assert state.server["correction.head.w"].item() == pytest.approx(h)
        assert state.shared["head.w"].item() == pytest.approx(w)
    assert state.shared["head.running_mean"].item() == pytest.approx(0.4)
    weighted = method.merge(start(2), Replies([(0, up(0.6, samples=1)), (1, up(0.8, samples=3))]))
    assert weighted.server["correction.head.w"].item() == pytest.approx(0.025)
    assert weighted.shared["head.w"].item() == pytest.approx(0.5)


def test_a_tiny_alpha_leaves_local_training_as_it_is(make: Make):
    """With alpha = 1e-30 the terms vanish beside any gradient, so clients train as FedAvg's do, to the bit.

    The merge does not vanish: h / alpha = -(mean - w_0), so w_1 = mean + (mean - w_0).
    """
    first = simulate(make(), rounds=0).coordinator.state.shared
    experiments = make(), make({"method": {"name": "feddyn", "alpha": 1e-30}})
    plain, ours = (simulate(experiment, rounds=1) for experiment in experiments)
    one, other = (first_messages(experiment)["train", "up"] for experiment in experiments)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    for name, mean in plain.coordinator.state.shared.items():
        torch.testing.assert_close(ours.coordinator.state.shared[name], 2 * mean - first[name], rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped(on_quadratics: OnQuadratics):
    """At w = 0 the gradients are -3 and 4, of which 3.5 is left; after a step of 0.1: w_0 = 0.3 and w_1 = -0.35.

    Their mean is -0.025 and h = 0.025 alpha, so w = -0.025 - 0.025 = -0.05.
    """
    changes = PLAIN | {"train.rounds": 1, "train.steps": 1}
    assert at_rest(on_quadratics.run(FedDyn(max_norm=3.5), changes, APART)) == pytest.approx(-0.05, abs=1e-6)
