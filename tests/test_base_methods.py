"""What holds for all five methods that Client2Vec builds on: their state is resumed, kept at home, and in use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import CNN_WITH_BN, Make, evaluated, go_on, simulate, states
from fedshift.methods.client2vec.client2vec import Client2Vec
from fedshift.runs.simulation import Simulation

HELD = {  # a tensor of the method's own, and where it is held
    "fedavgm": ("velocity.head.weight", "server"),
    "feddyn": ("dual.head.weight", "client"),
    "moon": ("previous.encoder.0.weight", "client"),
    "fediir": ("invariant.head.weight", "down"),
    "fedlc": (None, None),
}


def everything(simulation: Simulation) -> dict[str, torch.Tensor]:
    server = simulation.coordinator.state
    held = {**server.shared, **server.down, **server.server}
    for client, state in states(simulation):
        held |= {f"{client}/{name}": tensor for name, tensor in state.flat().items()}
    return held


def own(simulation: Simulation, name: str, where: str) -> list[torch.Tensor]:
    if where == "client":
        return [state.tensors[name] for _, state in states(simulation)]
    return [getattr(simulation.coordinator.state, where)[name]]


@pytest.mark.parametrize("name", HELD)
def test_a_run_resumed_from_its_checkpoint_is_the_same_run(make: Make, tmp_path: Path, name: str):
    changes = {"method.name": name, "method.bn": "local", "train.rounds": 4, "train.participation": 0.5}
    experiment = make(changes | CNN_WITH_BN)
    whole = simulate(experiment)
    simulate(experiment, rounds=2, folder=tmp_path)
    again = simulate(experiment, folder=tmp_path)
    mine, theirs = everything(again), everything(whole)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("name", [name for name, (held, _) in HELD.items() if held])
def test_what_a_method_holds_changes_every_round(make: Make, name: str):
    """So that the test above would miss it if it were lost."""
    simulation = Simulation(make({"method.name": name, "train.rounds": 3} | CNN_WITH_BN))
    seen: list[torch.Tensor] = []
    for _ in simulation.coordinator.schedule:
        go_on(simulation)
        held, *_ = own(simulation, *HELD[name])
        assert held.any()
        assert not any(torch.equal(held, before) for before in seen)
        seen.append(held.clone())


@pytest.mark.parametrize("name", HELD)
def test_no_message_names_what_stays(make: Make, name: str):
    simulation = simulate(make({"method.name": name, "method.weighting": "samples"} | CNN_WITH_BN))
    carried = {name for entry in simulation.coordinator.ledger.entries for name, _, _ in entry.signature}
    stays = ("velocity.", "dual.", "correction.", "previous.")
    assert not any(tensor.startswith(stays) for tensor in carried)
    assert "samples" in carried


@pytest.mark.parametrize("name", HELD)
def test_it_trains_under_client2vec(make: Make, name: str):
    """All three uses at once; what the method holds is in use there too."""
    index = {"name": "dsa-ign", "epochs": 1, "feedforward": 16, "encoder": {"name": "offline", "size": 64}}
    experiment = make(CNN_WITH_BN).replace(method=Client2Vec(base=name, index=index))
    simulation = simulate(experiment)
    terms = evaluated(simulation, simulation.coordinator.schedule[-1])["terms"]["dark"]
    assert {"cross_entropy", "index_orth", "index_dist"} <= terms.keys()
    held, where = HELD[name]
    if held and where:
        assert all(tensor.any() for tensor in own(simulation, held, where))
