"""SiloBN and FixBN: what stays, what is fixed, and when each of them is FedAvg to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conftest import CNN_WITH_BN, Make, at, go_on, linear, simulate, states
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fixbn import FixBN
from fedshift.methods.silobn import SiloBN
from fedshift.runs.simulation import Simulation

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def shared(simulation: Simulation) -> dict[str, Tensor]:
    return dict(simulation.coordinator.state.shared)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("name", ["silobn", "fixbn"])
def test_without_batch_norm_it_is_fedavg_to_the_bit(make: Make, name: str):
    changes = {**CNN_WITH_BN, "model.norm": "group", "model.groups": 1, "train.rounds": 3}
    assert_equal(shared(simulate(make(changes))), shared(simulate(make({**changes, "method.name": name}))))


def test_silobn_keeps_statistics_and_averages_scale_and_shift(make: Make):
    simulation = simulate(make({**CNN_WITH_BN, "method.name": "silobn"}))
    (_, one), (_, other) = states(simulation)
    assert {name.rpartition(".")[2] for name in one.tensors} == set(STATISTICS)
    assert not torch.equal(one.tensors["encoder.1.running_mean"], other.tensors["encoder.1.running_mean"])
    assert {"encoder.1.weight", "encoder.1.bias"} <= shared(simulation).keys()


def test_silobn_measures_the_statistics_of_unseen_clients_alone():
    assert SiloBN().reestimates(unseen=True)
    assert not SiloBN().reestimates(unseen=False)
    assert not SiloBN(cold="mean").reestimates(unseen=True)


def test_for_an_unseen_domain_silobn_is_fedavg_with_statistics_measured_again(make: Make):
    """Training does not use the statistics, and both measure them on the inputs to predict."""
    silobn = shared(simulate(make({**CNN_WITH_BN, "method.name": "silobn"})))
    fedavg = shared(simulate(make({**CNN_WITH_BN, "method.bn": "reestimate"})))
    assert_equal(silobn, {name: tensor for name, tensor in fedavg.items() if not name.endswith(STATISTICS)})
    assert SiloBN().reestimates(unseen=True) and FedAvg(bn="reestimate").reestimates(unseen=True)


def test_fixbn_is_fedavg_to_the_bit_until_statistics_are_fixed(make: Make):
    """The first two rounds of four; after them no statistic moves, and scale and shift still do."""
    changes = {**CNN_WITH_BN, "train.rounds": 4, "train.precision": "float64"}
    plain, ours = Simulation(make(changes)), Simulation(make({**changes, "method.name": "fixbn"}))
    for _ in range(2):
        go_on(plain)
        go_on(ours)
    before = shared(ours)
    assert_equal(shared(plain), before)
    for _ in range(2):
        go_on(ours)
    for name, tensor in shared(ours).items():
        assert torch.allclose(tensor, before[name], rtol=1e-12, atol=0) == name.endswith(STATISTICS)


@pytest.mark.parametrize(("rounds", "fixed"), [(1, []), (2, [2]), (5, [3, 4, 5])])
def test_statistics_are_fixed_after_half_of_the_rounds_but_never_in_the_first(rounds: int, fixed: list[int]):
    """T* is 1, 1 and 2; statistics that no batch has updated would not normalise anything."""
    ((objective,),) = (phase.objectives for phase in FixBN().phases())
    batch = Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    found = []
    for round in range(1, rounds + 1):
        norm = nn.BatchNorm1d(1)
        objective.loss(Net({"encoder": norm, "head": linear([1.0], [-1.0])}), batch, at(round=round, rounds=rounds))
        found += [round] if norm.running_mean.item() == 0 else []
    assert found == fixed


def test_fixed_statistics_by_hand():
    """Of z = x = 1 and 3 in one batch, running mean 0 and variance 4 - eps: 1/2 and 3/2 in the place of -1 and 1.

    With logits (z, -z) and the label 0 the loss is log(1 + e^(-2z)): log(1 + e^-1) = 0.3132617 and
    log(1 + e^-3) = 0.0485874, in the mean 0.1809245; by the batch's statistics log(1 + e^2) = 2.1269280 and
    log(1 + e^-2) = 0.1269280, in the mean 1.1269280, but for eps.
    """
    norm = nn.BatchNorm1d(1)
    norm.running_var.fill_(4 - norm.eps)
    net = Net({"encoder": norm, "head": linear([1.0], [-1.0])})
    ((objective,),) = (phase.objectives for phase in FixBN(fixed_after=2).phases())
    batch = Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    for round, loss, moved in ((3, 0.1809245, False), (2, 1.1269280, True)):
        value = objective.loss(net, batch, at(round=round, rounds=4))
        assert value.item() == pytest.approx(loss, abs=1e-4)
        assert (norm.running_mean.item() != 0) == moved
        assert norm.training
