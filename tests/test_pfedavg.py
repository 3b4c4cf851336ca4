"""pFedAvg by hand, its global model beside FedAvg's to the bit, and the local phase after the last round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conftest import CNN_WITH_BN, Make, exchanged, go_on, simulate, states
from fedshift.core.tensors import Tensors
from fedshift.methods.pfedavg import PFedAvg
from fedshift.runs.simulation import Simulation
from quadratics import APART, PLAIN, OnQuadratics, at_rest, on_quadratics, own

__all__ = ["on_quadratics"]  # a fixture


def test_a_round_and_the_phase_after_it_by_hand(on_quadratics: OnQuadratics):
    """Two steps of 0.1 from 0. F_0' = w - 3, F_1' = 4 (w + 1).

    Client 0 takes w from 0 to 0.3 and 0.57, client 1 to -0.4 and -0.64: these predict, and w_1 = -0.035. From it
    client 0 goes to 0.2685 and 0.54165, client 1 to -0.421 and -0.6526: these predict in the end, and w_1 stays.
    """
    changes = {**PLAIN, "train.rounds": 1, "train.steps": 2}
    simulation = Simulation(on_quadratics.experiment(PFedAvg(), changes, APART))
    for expected in ([0.57, -0.64], [0.54165, -0.6526]):
        go_on(simulation)
        assert at_rest(simulation) == pytest.approx(-0.035)
        assert own(simulation) == pytest.approx(expected)
    assert simulation.coordinator.position == simulation.rounds


@pytest.mark.parametrize("bn", ["shared", "local"])
def test_it_is_fedavg_and_one_more_local_phase_to_the_bit(make: Make, bn: str):
    """The global model; the own ones of everybody, sampled before or not, from it; momentum and batch norm included."""
    changes = {"train.rounds": 3, "partition": {"name": "iid", "clients": 3}, "train.participation": 0.2}
    changes |= {"method.bn": bn, **CNN_WITH_BN}
    ours, plain = Simulation(make({**changes, "method.name": "pfedavg"})), simulate(make(changes))
    *training, _ = ours.coordinator.schedule
    for _ in training:
        go_on(ours)
    assert 0 < len(states(ours)) < 6
    go_on(ours)
    shared = plain.coordinator.state.shared
    assert all(torch.equal(ours.coordinator.state.shared[name], tensor) for name, tensor in shared.items())

    for client in plain.federated.clients:
        state = plain.site.state(client.id, {})
        plain.site.store.put(client.id, replace(state, drawn={}))  # the batches of the first phase
    when = plain.coordinator.schedule[-1]
    ups = exchanged(plain, when.stage.exchanges[0], when, plain.federated.clients)
    kept = dict(states(ours))
    assert len(ups) == len(kept) == 6
    for client, up in ups.items():
        local = Tensors(plain.site.state(client, {}).tensors).of_parts(("encoder",))
        for name, tensor in PFedAvg.local.renamed(up | local).items():
            assert torch.equal(kept[client].tensors[name], tensor)
    own = [replace(each, own=True) for each in ours.federated.environments if each.client is not None]
    assert {ours.evaluation.whose(each) for each in own} == {"own"}
