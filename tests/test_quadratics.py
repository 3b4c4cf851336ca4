"""Where methods end on clients with quadratic objectives, which is known in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conftest import states
from fedshift.core.contract import ServerState
from fedshift.core.method import Method
from fedshift.core.tensors import Replies
from fedshift.methods.drfa import DRFA
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.feddyn import FedDyn
from fedshift.methods.scaffold import SCAFFOLD
from quadratics import OnQuadratics, Quadratics, W, at_rest, on_quadratics, quadratics

__all__ = ["on_quadratics"]  # a fixture

TWO = Quadratics()  # a = (1, 4), b = (1, -1)
FOUR = Quadratics(slopes=(1.0, -2.0, 0.5, 1.5), labels=(1, 2, 1, 0), counts=(10, 10, 10, 10))
EXACT: dict[str, Method] = {
    "scaffold, option II": SCAFFOLD(variate="steps"),
    "scaffold, option I": SCAFFOLD(),
    "feddyn": FedDyn(alpha=1.0, max_norm=1e6),
}
TRAIN = {"train.rounds": 25, "train.steps": 2, "train.lr": 0.2}


def test_fedavg_does_not_end_at_the_optimum_of_the_federation(on_quadratics: OnQuadratics):
    """The mean of F_k is least at (1 * 1 + 4 * -1) / 5 = -0.6; one step a round leads there.

    Rounds of two steps end where the clients pull the same: with q_k = 1 - (1 - 0.2 a_k)^2 = (0.36, 0.96) at
    sum q_k b_k / sum q_k = -0.45455.
    """
    federation = quadratics(TWO)
    assert federation.optimum() == pytest.approx(-0.6)
    assert federation.rest(2, 0.2) == pytest.approx(-0.45455, abs=1e-5)
    assert at_rest(on_quadratics.run(FedAvg(), TRAIN)) == pytest.approx(federation.rest(2, 0.2), abs=1e-9)
    one_step = {**TRAIN, "train.steps": 1, "train.rounds": 40}
    assert at_rest(on_quadratics.run(FedAvg(), one_step)) == pytest.approx(-0.6, abs=1e-9)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", EXACT)
def test_who_corrects_the_drift_does(on_quadratics: OnQuadratics, name: str, participation: float):
    """Where FedAvg would end elsewhere; FedDyn comes there at half the speed."""
    federation = quadratics(FOUR)
    assert abs(federation.rest(2, 0.2) - federation.optimum()) > 0.1
    rounds = (120 if name == "feddyn" else 60) if participation < 1 else (50 if name == "feddyn" else 25)
    changes = {**TRAIN, "train.rounds": rounds, "train.participation": participation}
    simulation = on_quadratics.run(EXACT[name], changes, FOUR)
    assert at_rest(simulation) == pytest.approx(federation.optimum(), abs=1e-6)


@pytest.mark.parametrize("name", [name for name in EXACT if name != "feddyn"])
def test_control_variates_end_as_the_clients_gradients(on_quadratics: OnQuadratics, name: str):
    """F_k'(-0.6) = a_k (-0.6 - b_k) = (-1.6, 1.6), whose mean c is 0."""
    simulation = on_quadratics.run(EXACT[name], TRAIN)
    kept = [state.tensors[f"own_variate.{W}"].item() for _, state in states(simulation)]
    assert kept == pytest.approx([-1.6, 1.6], abs=1e-6)
    assert simulation.coordinator.state.down[f"variate.{W}"].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "decay"), [({"train.weight_decay": 0.5}, 0.5), ({"train.momentum": 0.5, "train.lr": 0.1}, 0.0)]
)
def test_scaffold_with_weight_decay_or_momentum(on_quadratics: OnQuadratics, changes: dict[str, Any], decay: float):
    """With a decay of 1/2 the mean with 1/4 w^2 is least at -1.5 / (2.5 + 0.5) = -0.5; momentum moves nothing."""
    simulation = on_quadratics.run(SCAFFOLD(), {**TRAIN, **changes})
    assert at_rest(simulation) == pytest.approx(quadratics(TWO).optimum(decay), abs=1e-6)


# DRFA ---------------------------------------------------------------------------------------------


class Expected(DRFA):
    """DRFA without its draws: everybody takes part and counts by lambda, which is what draws give in the mean."""

    def select(self, state, clients: Sequence[int], count, generator):
        return clients

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        return super().merge(state, replies.weighted(state.server["mixture.weights"][replies.clients].tolist()))


def test_drfa_in_the_mean_ends_at_the_saddle_point(on_quadratics: OnQuadratics):
    """Both losses are equal where w - 1 = -2 (w + 1): w = -1/3, and both are 8/9.

    There lambda_1 (-4/3) + lambda_2 (8/3) = 0: lambda = (2/3, 1/3).
    """
    changes = {"train.rounds": 100, "train.steps": 1, "train.lr": 0.2}
    simulation = on_quadratics.run(Expected(gamma=0.1, decay=1.0), changes)
    assert at_rest(simulation) == pytest.approx(-1 / 3, abs=1e-6)
    weights = simulation.coordinator.state.server["mixture.weights"]
    assert weights.tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-6)
