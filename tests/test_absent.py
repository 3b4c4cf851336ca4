"""Clients that do not answer: absent, late and back again, for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Make, evaluated, first_messages, go_on, names_sent, simulate, states
from fedshift.experiments import Experiment
from fedshift.methods.feddyn import FedDyn
from fedshift.runs.simulation import Simulation
from reference import EVERY_METHOD, POOLED, small
from test_methods import assert_same

DROPPED: dict[str, Any] = {
    "protocol": {"name": "in-domain"},
    "partition": {"name": "iid", "clients": 2},
    "train.rounds": 3,
    "train.lr": 0.02,  # FedPIN diverges at larger rates under plain SGD
    "train.absent": 0.25,
    "train.late": 0.25,
}


def dropped(make: Make, name: str, changes: dict[str, Any] | None = None) -> Experiment:
    """A method on six clients, half of which do not answer in an exchange."""
    return make({**small(name), **DROPPED, **(changes or {})})


def interrupted(experiment: Experiment, folder: Path) -> Simulation:
    """A run that is run one round at a time, each by a simulation that continues from the checkpoint before."""
    rounds = len(Simulation(experiment).coordinator.schedule)
    for position in range(1, rounds + 1):
        simulation = simulate(experiment, position, folder=folder)
        assert simulation.coordinator.position == position
    return simulation


def uploads_of(simulation: Simulation) -> dict[int, torch.Tensor]:
    """The head's weights that clients have sent, in order, whether or not they are merged."""
    ups: dict[int, torch.Tensor] = {}
    keep = simulation.site.keep

    def watched(job, outcome):
        ups[outcome.client] = outcome.up["head.weight"]
        return keep(job, outcome)

    simulation.site.keep = watched  # type: ignore[method-assign]  # a test's own
    return ups


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_every_method_goes_on_without_those_who_are_missing(make: Make, name: str, tmp_path: Path):
    """A round merges the answers and lists the absent clients, and numbers stay finite.

    A run that is interrupted after every round ends equal. The domains that train are scored.
    """
    experiment = dropped(make, name)
    whole = Simulation(experiment)
    coordinator, answered = whole.coordinator, 0
    for round in coordinator.schedule:
        up, before = coordinator.sent[1] + coordinator.ledger.bytes("telemetry"), len(coordinator.missing)
        go_on(whole)
        answered += coordinator.sent[1] + coordinator.ledger.bytes("telemetry") > up
        new = coordinator.missing[before:]
        assert all((entry["stage"], entry["round"]) == round.key for entry in new)
    assert answered
    assert {entry["why"] for entry in coordinator.missing} <= {"absent", "late"}
    assert name in POOLED or coordinator.missing
    assert all(tensor.isfinite().all() for tensor in coordinator.state.tensors.values())
    for _, state in states(whole):
        assert all(tensor.isfinite().all() for tensor in state.tensors.values())
    resumed = interrupted(experiment, tmp_path)
    assert_same(whole, resumed)
    assert coordinator.missing == resumed.coordinator.missing
    rows = evaluated(whole, coordinator.schedule[-1])["environments"]
    assert {row["role"] for row in rows} == {"test", "validation"}
    assert all(0 <= row["accuracy"] <= 1 and row["loss"] > 0 for row in rows)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_what_a_client_keeps_stands_still_while_it_does_not_take_part(make: Make, name: str):
    """Personal models, heads, variates and duals the same, to the bit; one of the two clients takes part in a round."""
    simulation, still = Simulation(make(small(name) | {"train.participation": 0.5, "train.rounds": 4})), 0
    for _ in simulation.coordinator.schedule:
        before = {client: (state.drawn, state.flat()) for client, state in states(simulation)}
        go_on(simulation)
        for client, state in states(simulation):
            drawn, tensors = before.get(client, ({}, {}))
            if state.drawn == drawn:
                still += 1
                assert all(torch.equal(tensor, tensors[key]) for key, tensor in state.flat().items())
    assert still or name in POOLED


def test_the_mean_is_over_those_who_answered(make: Make):
    """Round 1 of FedAvg: a late client trains and keeps its state, an absent one does not, and neither is merged."""
    simulation = Simulation(dropped(make, "fedavg"))
    site, coordinator = simulation.site, simulation.coordinator
    ups = uploads_of(simulation)
    go_on(simulation)
    why = {entry["client"]: entry["why"] for entry in coordinator.missing}
    assert set(why.values()) == {"absent", "late"}
    by_why = {id: why.get(name) for id, name in coordinator.names.items()}
    assert set(ups) == {id for id, reason in by_why.items() if reason != "absent"}
    assert set(site.store.ids()) == set(ups)
    answered = [ups[id] for id in sorted(ups) if by_why[id] is None]
    torch.testing.assert_close(coordinator.state.shared["head.weight"], torch.stack(answered).mean(dim=0))


def test_who_misses_the_probe_is_not_asked_to_train(make: Make):
    """FedIIR makes two exchanges a round: anyone who misses the first is not in the second."""
    coordinator = simulate(dropped(make, "fediir")).coordinator
    probe, train = (
        {(entry["round"], entry["client"]) for entry in coordinator.missing if entry["exchange"] == exchange}
        for exchange in ("probe", "train")
    )
    assert probe
    assert not probe & train


def test_feddyns_server_counts_those_who_answered(make: Make):
    """By hand, one round: h = -alpha/m sum_S (w_k - w_0) over the answers S, and w_1 = mean_S w_k - h/alpha."""
    experiment = dropped(make, "feddyn", {"train.rounds": 1})
    method = experiment.method
    assert isinstance(method, FedDyn)
    start = Simulation(experiment).coordinator.state.shared["head.weight"]
    simulation = Simulation(experiment)
    ups = uploads_of(simulation)
    go_on(simulation)
    coordinator = simulation.coordinator
    missing = {entry["client"] for entry in coordinator.missing}
    answered = [ups[id] for id in sorted(ups) if coordinator.names[id] not in missing]
    assert 0 < len(answered) < len(ups) <= 6
    h = -method.alpha / 6 * sum(w - start for w in answered)
    torch.testing.assert_close(coordinator.state.server["correction.head.weight"], h)
    expected = torch.stack(answered).mean(dim=0) - h / method.alpha
    torch.testing.assert_close(coordinator.state.shared["head.weight"], expected)


def test_telemetry_is_counted_and_can_be_switched_off(make: Make):
    """Two loss terms of FedProx and the steps: three scalars of 8 bytes a client and exchange, and their header."""
    on = simulate(make({"method.name": "fedprox"}), rounds=1)
    told = first_messages(on.experiment)["train", "telemetry"]
    assert set(told) == {"steps", "term.cross_entropy", "term.proximal"} == names_sent(on, "train", "telemetry")
    assert on.coordinator.ledger.bytes("telemetry") == 2 * len(told.to_bytes())
    off = simulate(make({"method.name": "fedprox", "evaluate.telemetry": False}), rounds=1)
    assert off.coordinator.ledger.bytes("telemetry") == 0
    assert "telemetry" not in off.coordinator.ledger.declaration()["train"]
    assert not off.coordinator.terms
    assert_same(on, off)
