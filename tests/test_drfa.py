"""DRFA's projection, weights and draws by hand; that it is FedAvg without its step, and what its scores are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import CNN_WITH_BN, Make, go_on, scored, simulate, states
from fedshift.core.contract import ServerState
from fedshift.core.messages import Up
from fedshift.core.tensors import Replies, Tensors
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.methods.drfa import DRFA, project_to_simplex
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds import coordinator
from fedshift.runs.simulation import Simulation
from quadratics import OnQuadratics, Quadratics, W, on_quadratics
from refusal import refuses

__all__ = ["on_quadratics"]  # a fixture

DRFA_ON_FOUR: dict[str, Any] = {
    "method.name": "drfa",
    "data.domains": 4,
    "data.per_class": 16,
    "data.fewer": 4,
    "train.rounds": 4,
    "train.participation": 0.67,
    "train.precision": "float64",
}

# The projection -----------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(0, 0.99))
def test_the_projection_is_the_nearest_point(point: list[float], part: float):
    """It is on the simplex, and no corner of that is less than a right angle away from where the point was.

    For a convex set: p is nearest to x exactly if <x - p, q - p> <= 0 for every q of it, and so for every corner.
    """
    x, floor = torch.tensor(point, dtype=torch.float64), part / len(point)
    p = project_to_simplex(x, floor)
    assert p.sum().item() == pytest.approx(1, abs=1e-9)
    assert (p >= floor).all()
    corners = floor + (1 - floor * len(point)) * torch.eye(len(point), dtype=torch.float64)
    assert ((corners - p) @ (x - p)).max().item() <= 1e-6


# Counts, draws and weights ------------------------------------------------------------------------


def server(weights: Sequence[float], steps: float = 0.0, round: int = 1) -> ServerState:
    held = {"mixture.weights": torch.tensor(weights, dtype=torch.float64), "mixture.steps": torch.tensor(steps)}
    return ServerState(server=Tensors(held), clients=len(weights), round=round)


def weights_of(state: ServerState) -> list[float]:
    weights: list[float] = state.server["mixture.weights"].tolist()
    return weights


def test_weights_start_at_the_clients_part_of_the_samples():
    """10, 30 and 60 samples are 0.1, 0.3 and 0.6. A second client that sends nothing counts as the mean, 35."""

    def replies(**counts: int) -> Replies:
        return Replies((int(client[1:]), Up({"samples": torch.tensor(count)})) for client, count in counts.items())

    state = server([1 / 3] * 3)
    every = DRFA().merge_counts(state, replies(c0=10, c1=30, c2=60))
    assert weights_of(every) == pytest.approx([0.1, 0.3, 0.6])
    some = DRFA().merge_counts(state, replies(c0=10, c2=60))
    assert weights_of(some) == pytest.approx([10 / 105, 35 / 105, 60 / 105])


def test_clients_are_drawn_by_weight_and_those_that_are_scored_whatever_the_weights():
    """6,000 with replacement by (0.1, 0.3, 0.6, 0); and two of four without, each in every second cohort."""
    state, generator = server([0.1, 0.3, 0.6, 0.0]), torch.Generator().manual_seed(0)
    drawn = torch.tensor(DRFA().select(state, [0, 1, 2, 3], 6000, generator)).bincount(minlength=4) / 6000
    assert drawn.tolist() == pytest.approx([0.1, 0.3, 0.6, 0.0], abs=0.02)
    (_, rounds) = DRFA().stages(1)
    train, score = rounds.exchanges
    assert train.select.__func__ is DRFA.select
    assert score.select is not None
    cohorts = [score.select(state, [0, 1, 2, 3], 2, generator) for _ in range(3000)]
    assert all(len(set(cohort)) == 2 for cohort in cohorts)
    assert (torch.tensor(cohorts).flatten().bincount(minlength=4) / 3000).tolist() == pytest.approx([0.5] * 4, abs=0.03)


def test_a_step_of_the_weights_by_hand():
    """Round 3 of gamma = 0.1 and decay 0.5 on N = 4 clients, of which U = {1, 3} report 0.5 and 1.5; tau = 2.

    gamma_3 tau N/m = 0.1 * 0.25 * 2 * 2 = 0.1: lambda + 0.1 (0, 0.5, 0, 1.5) = (0.25, 0.3, 0.25, 0.4), which is 0.2 too
    much, 0.05 for each.
    """
    state = server([0.25] * 4, steps=2.0, round=3)
    risks = {1: 0.5, 3: 1.5}
    replies = Replies((client, Up({"risk": torch.tensor(risk).double()})) for client, risk in risks.items())
    stepped = DRFA(gamma=0.1, decay=0.5).merge_scores(state, replies)
    assert weights_of(stepped) == pytest.approx([0.2, 0.25, 0.2, 0.35])


def test_a_merge_by_hand():
    """Client 0 was drawn twice: w = (2 * 0.3 + 0.9) / 3 = 0.5, w' = 2 * 0.6 / 3 = 0.4, tau = (2 * 3 + 6) / 3 = 4."""

    def up(w: float, caught: float, steps: int) -> Up:
        tensors = {"head.w": torch.tensor(w), "caught.head.w": torch.tensor(caught), "steps": torch.tensor(steps)}
        return Up(tensors)

    shared, down = Tensors({"head.w": torch.tensor(1.0)}), Tensors({"scored.head.w": torch.tensor(1.0)})
    state = replace(server([0.5, 0.5]), shared=shared, down=down)
    one, other = (0, up(0.3, 0.6, 3)), (1, up(0.9, 0.0, 6))
    merged = DRFA().merge(state, Replies([one, one, other]))
    assert merged.shared["head.w"].item() == pytest.approx(0.5)
    assert merged.down["scored.head.w"].item() == pytest.approx(0.4)
    assert merged.server["mixture.steps"].item() == pytest.approx(4.0)


def test_a_round_by_hand(on_quadratics: OnQuadratics):
    """F_1 = (w - 1)^2 / 2 and F_2 = 2 (w + 1)^2 with 28 and 7 samples: lambda = (0.8, 0.2); one step of 0.1 from 0.

    It leads to 0.1 or -0.4, so that w is the mean over two draws of these, and w' the same. Both clients are scored
    there: lambda + 0.1 * 1 * (F_1, F_2)(w'), projected, is half of 0.1 (F_1 - F_2) more for the first.
    """
    data = Quadratics(counts=(40, 10))
    rounds = {"train.rounds": 1, "train.steps": 1, "train.lr": 0.1}
    simulation = Simulation(on_quadratics.experiment(DRFA(), rounds, data))
    go_on(simulation)
    assert weights_of(simulation.coordinator.state) == pytest.approx([0.8, 0.2])
    go_on(simulation)
    state = simulation.coordinator.state
    w = state.shared[W].item()
    assert min(abs(w - end) for end in (0.1, -0.15, -0.4)) < 1e-12
    assert state.down[f"scored.{W}"].item() == pytest.approx(w)
    move = 0.1 * ((w - 1) ** 2 / 2 - 2 * (w + 1) ** 2) / 2
    assert weights_of(state) == pytest.approx([0.8 + move, 0.2 - move])


# Runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bn", ["shared", "local"])
def test_without_its_step_it_is_fedavg_with_the_same_cohorts(make: Make, bn: str):
    """Gamma = 0: the model, and what clients keep for themselves, to the bit, after four rounds of drawn cohorts."""
    cohorts: list[list[int]] = []

    class Watched(DRFA):
        """Notes whom it draws."""

        def select(self, state, clients, count, generator):
            cohorts.append(super().select(state, clients, count, generator))
            return cohorts[-1]

    class Drawn(FedAvg):
        """FedAvg with these cohorts."""

        def select(self, state, clients, count, generator):
            return cohorts[state.round - 1]

    changes = {**DRFA_ON_FOUR, **CNN_WITH_BN, "train.participation": 1.0}
    ours = simulate(make(changes).replace(method=Watched(gamma=0.0, bn=bn)))
    assert any(len(set(cohort)) < 3 for cohort in cohorts)
    plain = simulate(make({**changes, "method.name": "fedavg"}).replace(method=Drawn(bn=bn)))
    for name, tensor in plain.coordinator.state.shared.items():
        assert torch.equal(tensor, ours.coordinator.state.shared[name])
    kept = dict(states(ours))
    for client, state in states(plain):
        assert all(torch.equal(tensor, kept[client].tensors[name]) for name, tensor in state.tensors.items())
        assert state.drawn["train"] == kept[client].drawn["train"]


@pytest.mark.parametrize("bn", ["shared", "local"])
def test_the_score_is_the_loss_of_the_mean_of_caught_models(make: Make, bn: str):
    """Over all of a client's samples: as the model w', with the client's own batch norms, is scored on them."""
    arrived: dict[int, float] = {}

    class Watched(DRFA):
        """Notes what comes."""

        def merge_scores(self, state: ServerState, replies: Replies) -> ServerState:
            arrived.update({client: up["risk"].item() for client, up in replies})
            return super().merge_scores(state, replies)

    experiment = make({**DRFA_ON_FOUR, **CNN_WITH_BN, "train.rounds": 1, "train.steps": 5})
    simulation = simulate(experiment.replace(method=Watched(score_batches="all", bn=bn)))
    state, when = simulation.coordinator.state, simulation.coordinator.schedule[1]
    caught, kept = state.down.of("scored"), dict(states(simulation))
    assert not torch.equal(caught["head.weight"], state.shared["head.weight"])
    assert arrived
    for client, risk in arrived.items():
        environment = next(e for e in simulation.federated.environments if e.client == client)
        train = replace(environment, samples=simulation.federated.clients[client].train)
        score = scored(simulation, caught | Tensors(kept[client].tensors), train, when)
        assert risk == pytest.approx(score.loss, rel=1e-9)


def test_caught_models_are_contiguous_whatever_layout_they_trained_in(make: Make, monkeypatch: pytest.MonkeyPatch):
    ups: list[Tensors] = []
    monkeypatch.setattr(coordinator, "check_answer", lambda setup, answer, *rest: ups.append(answer.up))
    experiment = make({**DRFA_ON_FOUR, **CNN_WITH_BN, "train.rounds": 1})
    simulate(experiment, engine=Sequential(Kernels(channels_last=True)))
    convolutions = [tensor for up in ups for tensor in up.values() if tensor.ndim == 4 and tensor.shape[1] > 1]
    assert convolutions
    assert all(tensor.is_contiguous() for tensor in convolutions)


def test_what_it_refuses(make: Make):
    with refuses("method.weighting = 'samples'", "DRFA", "'uniform'"):
        make({"method.name": "drfa", "method.weighting": "samples"}).check()
    with refuses("method.floor = 0.5", "2 clients", "below 1 / 2"):
        Simulation(make({"method.name": "drfa", "method.floor": 0.5}))
