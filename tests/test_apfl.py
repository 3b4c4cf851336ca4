"""APFL's mixture, its gradients and two rounds by hand, and what it is at both ends of alpha."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import Make, at, evaluated, go_on, linear, local_work, simulate
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.core.tensors import Tensors
from fedshift.methods.apfl import APFL
from fedshift.runs.simulation import Simulation
from quadratics import APART, PLAIN, OnQuadratics, at_rest, on_quadratics, own

__all__ = ["on_quadratics"]  # a fixture


@pytest.mark.parametrize(("alpha", "of_alpha", "of_v"), [(0.5, -0.0719448, -0.0179862), (0.0, -0.4768117, 0.0)])
def test_the_gradients_by_hand(alpha: float, of_alpha: float, of_v: float):
    """X = 1 of y = 0; v: z = 3x, w: z = x, both with logits (z, -z).

    At alpha = 1/2 the mixture has z = 2: CE = log(1 + e^-4), with q = 0.0179862 the probability of the wrong class, and
    dCE/dz = -2 q. For alpha that is times 3 - 1: -4 q = -0.0719448. For v it is times alpha: -q; for its head
    alpha (-q z, q z) = (-q, q). At alpha = 0: z = 1, q = sigmoid(-2) = 0.1192029, -4 q = -0.4768117, and v's is 0.
    """
    mixture = nn.ParameterDict({"alpha": nn.Parameter(torch.tensor(alpha))})
    shared = {"encoder": linear(1.0), "head": linear(1.0, -1.0)}
    net = Net({**shared, "personal_encoder": linear(3.0), "personal_head": linear(1.0, -1.0), "mixture": mixture})
    APFL().mixed_risk(net, Batch(torch.tensor([[1.0]]), torch.tensor([0])), at()).backward()
    assert mixture["alpha"].grad.item() == pytest.approx(of_alpha, abs=1e-6)
    assert net.personal_encoder.weight.grad.item() == pytest.approx(of_v, abs=1e-6)
    assert net.personal_head.weight.grad.flatten().tolist() == pytest.approx([of_v, -of_v], abs=1e-6)


@pytest.mark.parametrize(("after", "kept"), [(1.3, 1.0), (-0.2, 0.0), (0.4, 0.4)])
def test_alpha_is_held_between_0_and_1(after: float, kept: float):
    work = local_work(Tensors(), Tensors({"mixture.alpha": torch.tensor(after)}), Tensors())
    assert APFL().keep(work)["mixture.alpha"].item() == pytest.approx(kept)


def test_two_rounds_by_hand(on_quadratics: OnQuadratics):
    """One step of 0.1 a round, alpha = 0.5, all from 0. F_0' = m - 3, F_1' = 4 (m + 1).

    Round 1: v = w, so alphas stay. w_0 = 0.3, m = 0.15, v_0 = 0.1 * 0.5 * 2.85 = 0.1425. w_1 = -0.4, m = -0.2,
      v_1 = -0.1 * 0.5 * 4 * 0.8 = -0.16. w = -0.05.
    Round 2, client 0: m = (0.1425 - 0.05) / 2 = 0.04625, alpha = 0.5 + 0.1 * 2.95375 * 0.1925 = 0.5568597;
      w_0 = -0.05 + 0.305 = 0.255, m = 0.5568597 * 0.1425 + 0.4431403 * 0.255 = 0.1923533,
      v_0 = 0.1425 + 0.1 * 0.5568597 * 2.8076467 = 0.2988465.
    Client 1: m = -0.105, alpha = 0.5 + 0.1 * 3.58 * 0.11 = 0.53938; w_1 = -0.05 - 0.38 = -0.43,
      m = 0.53938 * -0.16 + 0.46062 * -0.43 = -0.2843674, v_1 = -0.16 - 0.1 * 0.53938 * 2.8625304 = -0.3143992.
    """
    simulation = Simulation(on_quadratics.experiment(APFL(), PLAIN | {"train.steps": 1}, APART))
    for w, v, alpha in (
        (-0.05, [0.1425, -0.16], [0.5, 0.5]),
        (-0.0875, [0.2988465, -0.3143992], [0.5568597, 0.53938]),
    ):
        go_on(simulation)
        assert at_rest(simulation) == pytest.approx(w)
        assert own(simulation) == pytest.approx(v, abs=1e-7)
        assert own(simulation, "mixture.alpha") == pytest.approx(alpha, abs=1e-7)


@pytest.mark.parametrize(("alpha", "name"), [(0.0, "fedavg"), (1.0, "single")])
def test_at_its_ends_it_predicts_as_fedavg_and_as_local_training(make: Make, alpha: float, name: str):
    """On the same batches, since a's own phase is excluded; the global model is FedAvg's to the bit in both."""
    changes = {"train.rounds": 3, "train.steps": 3, "protocol": {"name": "in-domain"}}
    method = {"name": "apfl", "alpha": alpha, "adaptive": False}
    ours, other = simulate(make({**changes, "method": method})), simulate(make({**changes, "method.name": name}))
    plain = simulate(make(changes)).coordinator.state.shared
    assert all(torch.equal(ours.coordinator.state.shared[name], tensor) for name, tensor in plain.items())
    mine, theirs = (evaluated(each, each.coordinator.schedule[-1])["environments"] for each in (ours, other))
    for one, two in zip(mine, theirs, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)
