"""A client's own copy: its names, its distance from the global model, what the unseen get, and how it is made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, go_on, linear, local_work, models_of, scored, states
from fedshift.core.net import Net
from fedshift.core.tensors import Tensors
from fedshift.methods.ditto import Ditto
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.personal import FineTuning, PersonalCopy
from fedshift.runs.simulation import Simulation

OWN = PersonalCopy("own")


# PersonalCopy ---------------------------------------------------------------------------------------


def test_the_distance_is_that_of_trained_weights_that_were_received():
    """w_t: encoder 2, batch norm (scale 4, shift 1, mean 7, variance 5), head (1, -2).

    The copy has 0 everywhere but for its batch norm's scale, 1. 2^2 + (1^2 + 2^2) = 9, and with the batch norm's scale
    and shift (4 - 1)^2 + 1^2 more, 19. Its statistics are not weights. A batch norm that stays on the client is not
    received, and 9 is all.
    """
    own = {"own_encoder": nn.Sequential(linear(0.0), nn.BatchNorm1d(1)), "own_head": linear(0.0, 0.0)}
    net = Net({"encoder": nn.Sequential(linear(0.0), nn.BatchNorm1d(1)), "head": linear(0.0, 0.0), **own})
    local = {"encoder.0.weight": torch.tensor([[2.0]]), "head.weight": torch.tensor([[1.0], [-2.0]])}
    norm = {"weight": 4.0, "bias": 1.0, "running_mean": 7.0, "running_var": 5.0}
    shared = local | {f"encoder.1.{name}": torch.tensor([value]) for name, value in norm.items()}
    assert OWN.distance(net, Tensors(local)).item() == 9
    assert OWN.distance(net, Tensors(shared)).item() == 19
    OWN.distance(net, Tensors(shared)).backward()
    moved = {name for name, parameter in net.parameters() if parameter.grad is not None}
    assert moved == {"own_encoder.0.weight", "own_encoder.1.weight", "own_encoder.1.bias", "own_head.weight"}
    assert net.own_head.weight.grad.flatten().tolist() == [-2.0, 4.0]  # 2 (v - w)


class Unread(Sequence[Tensors]):
    """What clients keep, which must not be read."""

    def __getitem__(self, place):
        raise AssertionError("A client's own tensors were read.")

    def __len__(self):
        return 2


@pytest.mark.parametrize("bn", ["shared", "reestimate"])
def test_the_unseen_are_given_the_global_model_and_nobodys_own_is_read(make: Make, bn: str):
    simulation = Simulation(make(CNN_WITH_BN).replace(method=Ditto(bn=bn)))
    shared = simulation.coordinator.state.shared
    (given,) = simulation.setup.unseen(simulation.coordinator.state, Unread(), Ditto.local.names)
    assert given.keys() == {f"personal_{name}" for name in shared}
    assert all(torch.equal(given[f"personal_{name}"], tensor) for name, tensor in shared.items())


@pytest.mark.parametrize("bn", ["local", "statistics"])
def test_with_local_batch_norms_the_unseen_are_given_their_mean_beside_the_global_weights(make: Make, bn: str):
    """The statistics 2 and 4 of the clients' shared encoders: 3, for the shared encoder and in the copy's place.

    Those of the copies, 20 and 40, belong to other weights and are not taken. Counts of 1 and 4 batches make 2 (2.5).
    """
    simulation = Simulation(make(CNN_WITH_BN).replace(method=Ditto(bn=bn)))
    state, initial = simulation.coordinator.state, simulation.setup.initial("client")
    clients = []
    for mean, count in ((2, 1), (4, 4)):
        values = {True: mean, False: count}
        shared, copy = initial.of_parts(("encoder",)), initial.of_parts(("personal_encoder",))
        own = shared.map(lambda tensor, values=values: torch.full_like(tensor, values[tensor.is_floating_point()]))
        clients.append(own | copy.map(lambda tensor, mean=mean: torch.full_like(tensor, 10 * mean)))
    (given,) = simulation.setup.unseen(state, clients, Ditto.local.names)
    norms = initial.of("encoder")
    assert given.of("encoder").keys() == norms.keys()
    for name, tensor in given.of("encoder").items():
        assert (tensor == (3 if tensor.is_floating_point() else 2)).all()
        assert torch.equal(tensor, given[f"personal_encoder.{name}"])
    assert all(torch.equal(given[f"personal_{name}"], tensor) for name, tensor in state.shared.items())


# FineTuning -----------------------------------------------------------------------------------------


def test_keep_tuned_makes_the_tuned_model_the_copy_with_the_clients_own_batch_norms():
    """What was trained and the batch norms that stay; neither other parts, nor the copy of before, nor w_t."""

    def tensors(**values: float) -> Tensors:
        return Tensors({name.replace("__", "."): torch.tensor([value]) for name, value in values.items()})

    work = local_work(
        trained=tensors(encoder__w=1, head__w=2, invariant__w=3),
        private=tensors(encoder__mean=4, auxiliary__w=5, tuned__encoder__w=6, tuned__head__w=6, tuned__done=0),
        received=tensors(encoder__w=8, head__w=8),
    )
    promoted = {name: tensor.item() for name, tensor in FineTuning().keep_tuned(work).items()}
    assert promoted == {"tuned.encoder.w": 1, "tuned.encoder.mean": 4, "tuned.head.w": 2, "tuned.done": 1}


@pytest.mark.parametrize("bn", ["shared", "local"])
def test_tuning_moves_each_clients_copy_and_predicts_with_it(make: Make, bn: str):
    """From the global model of the end; the unseen, and everyone before, are predicted for with the global model."""
    simulation = Simulation(make(CNN_WITH_BN).replace(method=FineTuning(finetune_steps=3, bn=bn)))
    environments = [replace(each, own=True) for each in simulation.federated.environments]
    *training, tuning = simulation.coordinator.schedule
    for when in (*training, tuning):
        go_on(simulation)
        for environment in environments:
            (model,) = models_of(simulation, environment)
            ours, plain = (scored(simulation, model, environment, tuning, each) for each in (None, FedAvg()))
            assert (ours == plain) == (when is not tuning or environment.client is None)
    assert all(state.tensors["tuned.done"] == 1 for _, state in states(simulation))
