"""pFedMe by hand, its optimum in closed form, and what theta begins with."""

from __future__ import annotations

import pytest
import torch

from conftest import Make, go_on, simulate, states
from fedshift.core.contract import ServerState
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.pfedme import PFedMe
from fedshift.runs.simulation import Simulation
from quadratics import APART, PLAIN, OnQuadratics, Quadratics, at_rest, on_quadratics, own
from refusal import refuses

__all__ = ["on_quadratics"]  # a fixture


@pytest.mark.parametrize(("beta", "w"), [(1.0, 0.007362), (0.5, 0.003681)])
def test_a_round_by_hand(on_quadratics: OnQuadratics, beta: float, w: float):
    """R = 2 batches, K = 2 steps of theta on each, a rate of 0.1, a share of 0.2, lam = 2, from w = theta = 0.

    Client 0, theta' = theta - 3 + 2 (theta - w): theta = 0.3, then 0.3 - 0.1 (-2.7 + 0.6) = 0.51;
      w = 0 + 0.2 * 0.51 = 0.102.
      theta = 0.51 - 0.1 (-2.49 + 2 * 0.408) = 0.6774, then 0.6774 - 0.1 (-2.3226 + 2 * 0.5754) = 0.79458;
      w = 0.102 + 0.2 (0.79458 - 0.102) = 0.240516.
    Client 1, theta' = 4 (theta + 1) + 2 (theta - w): theta = -0.4, then -0.4 - 0.1 (2.4 - 0.8) = -0.56; w = -0.112.
      theta = -0.56 - 0.1 (1.76 - 0.896) = -0.6464, then -0.6464 - 0.1 (1.4144 - 1.0688) = -0.68096;
      w = -0.112 + 0.2 (-0.68096 + 0.112) = -0.225792.
    The server: mean 0.007362, of which it takes beta from 0.
    """
    method = PFedMe(lam=2.0, personal_steps=2, beta=beta, share=0.2)
    simulation = on_quadratics.run(method, {**PLAIN, "train.rounds": 1, "train.steps": 2}, APART)
    assert own(simulation) == pytest.approx([0.79458, -0.68096], abs=1e-6)
    assert at_rest(simulation) == pytest.approx(w, abs=1e-6)


def test_moments_begin_anew_with_theta_in_every_round(on_quadratics: OnQuadratics):
    """A batch a round, K = 2, momentum 0.5, rate 0.1, a share of 0.2, lam = 2, from w = theta = 0; theta moves by m.

    Client 0: m = -3, theta = 0.3; m = -1.5 + (-2.7 + 0.6) = -3.6, theta = 0.66; w = 0.132.
    Client 1: m = 4, theta = -0.4; m = 2 + (2.4 - 0.8) = 3.6, theta = -0.76; w = -0.152. The mean is -0.01.
    Round 2, from -0.01, as if there had been none before:
    client 0: m = -3.01, theta = 0.291; m = -1.505 + (-2.709 + 0.602) = -3.612, theta = 0.6522;
    client 1: m = 3.96, theta = -0.406; m = 1.98 + (2.376 - 0.792) = 3.564, theta = -0.7624.
    """
    changes = {**PLAIN, "train.steps": 1, "train.rounds": 2, "train.momentum": 0.5}
    simulation = Simulation(on_quadratics.experiment(PFedMe(lam=2.0, personal_steps=2, share=0.2), changes, APART))
    for expected in ([0.66, -0.76], [0.6522, -0.7624]):
        go_on(simulation)
        assert own(simulation) == pytest.approx(expected, abs=1e-6)


def test_w_ends_at_the_optimum_of_the_envelopes(on_quadratics: OnQuadratics):
    """F_k(w) = b_k/2 (w - c_k)^2 with b = a lam / (a + lam), so for lam = 2 b = (2/3, 4/3).

    Their sum is least at (2/3 * 3 - 4/3) / 2 = 1/3; there theta = (3 + 2/3) / 3 = 11/9 and (-4 + 2/3) / 6 = -5/9.
    The sum of f_k itself is least at -1/5, and the mean of the clients' optima is 1.
    """
    changes = {**PLAIN, "train.steps": 1, "train.rounds": 30}
    simulation = on_quadratics.run(PFedMe(lam=2.0, personal_steps=60, share=0.8), changes, APART)
    assert at_rest(simulation) == pytest.approx(1 / 3, abs=1e-5)
    assert own(simulation) == pytest.approx([11 / 9, -5 / 9], abs=1e-5)


@pytest.mark.parametrize(("settings", "w"), [({}, 0.09), ({"share": 0.075}, 0.0075)])
def test_under_adam_w_follows_theta_by_default(on_quadratics: OnQuadratics, settings: dict[str, float], w: float):
    """Adam's first step is the rate, 0.1, whatever the gradient; w takes the share of it, 0.9 by default.

    With the paper's eta lam = 0.005 * 15 = 0.075 w moves a thirteenth of Adam's rate in a step: it learns nothing.
    """
    changes = {**PLAIN, "train.optimiser": "adam", "train.rounds": 1, "train.steps": 1}
    simulation = on_quadratics.run(PFedMe(personal_steps=1, **settings), changes, Quadratics(slopes=(1.0, 2.0)))
    assert own(simulation) == pytest.approx([0.1, 0.1], abs=1e-5)
    assert at_rest(simulation) == pytest.approx(w, abs=1e-6)


def test_a_share_at_which_w_diverges_is_refused():
    """The distance w - theta is multiplied by 1 - eta lam in each step, which grows from a share of 2 on."""
    with refuses("method.share = 2.0", "less than 2"):
        PFedMe(share=2.0)


def test_the_merge_by_hand():
    """(1 - 2) * 1 + 2 * (2 + 4) / 2 = 5; counts of 3 and 5 batches: 4, and variances of 0.2 and 0.6: 0.4.

    With beta = 2 a variance of 1 would become (1 - 2) * 1 + 2 * 0.4 = -0.2.
    """
    names = ("head.w", "encoder.n", "encoder.running_var")
    state = ServerState(Tensors(zip(names, map(torch.tensor, (1.0, 1, 1.0)), strict=True)))
    replies = ((2.0, 3, 0.2), (4.0, 5, 0.6))
    ups = [Tensors(zip(names, map(torch.tensor, values), strict=True)) for values in replies]
    merged = PFedMe(beta=2.0).merge(state, Replies(enumerate(ups)))
    assert [merged.shared[name].item() for name in names] == pytest.approx([5.0, 4, 0.4])


def test_momentum_and_weight_decay_are_thetas_alone(make: Make):
    """With a share of 1, w_k is theta_k after its last step, to rounding, whatever [train] sets."""
    method = {"name": "pfedme", "lam": 4.0, "share": 1.0}
    simulation = simulate(make({"train.rounds": 1, "train.weight_decay": 0.1, "method": method}))
    thetas = [Tensors(state.tensors) for _, state in states(simulation)]
    for name, w in PFedMe.local.renamed(simulation.coordinator.state.shared).items():
        torch.testing.assert_close(w, sum(theta[name] for theta in thetas) / 2)


def test_theta_starts_as_the_model_received_with_the_clients_own_batch_norm():
    """Not with the batch norm that theta had before, nor without any."""
    private = {"encoder.1.weight": 2.0, "personal_encoder.1.weight": 5.0, "personal_encoder.0.weight": 7.0}
    received = {"encoder.0.weight": 1.0, "head.weight": 3.0}
    start = PFedMe(bn="local").begin(*(Tensors(each).map(torch.tensor) for each in (private, received)))
    begun = {"personal_encoder.0.weight": 1.0, "personal_encoder.1.weight": 2.0, "personal_head.weight": 3.0}
    assert {name: tensor.item() for name, tensor in start.items()} == begun
