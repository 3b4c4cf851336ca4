"""Methods of which a part of the model stays on the client, or at its initial values: FedPer, LG-FedAvg, FedBABU."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from conftest import CNN_WITH_BN, Make, evaluated, models_of, names_sent, simulate, states
from fedshift.core.tensors import Tensors
from fedshift.methods.fedbabu import FedBABU
from fedshift.methods.personal import Tuned
from quadratics import PLAIN
from test_fedrep import Factor, product


@pytest.mark.parametrize(("name", "own", "shared"), [("fedper", "head", "encoder"), ("lg-fedavg", "encoder", "head")])
def test_it_is_partialfed_with_that_part_for_every_client_to_the_bit(make: Make, name: str, own: str, shared: str):
    """Which averages it as well, for the unseen; test_partialfed.py has its rounds by hand. With batch norm."""
    changes = {"train.rounds": 3, **CNN_WITH_BN}
    ours = simulate(make({**changes, "method.name": name}))
    partial = simulate(make({**changes, "method": {"name": "partialfed", "own": [own]}}))
    averaged = ours.coordinator.state.shared
    assert {tensor.partition(".")[0] for tensor in averaged} == {shared}
    assert all(torch.equal(partial.coordinator.state.shared[name], tensor) for name, tensor in averaged.items())
    theirs = dict(states(partial))
    for client, state in states(ours):
        last = Tensors(theirs[client].tensors).of("last")
        assert state.tensors.keys() == last.keys() - {"done"}
        assert all(torch.equal(last[name], tensor) for name, tensor in state.tensors.items())


@pytest.mark.parametrize(("name", "shared"), [("lg-fedavg", "head.weight"), ("fedproto", "prototypes.value")])
def test_the_unseen_have_every_clients_encoder(make: Make, name: str, shared: str):
    """The domain held out is scored with the two clients' models, and with what the server broadcasts."""
    simulation = simulate(make({"method.name": name, **CNN_WITH_BN}), rounds=1)
    (unseen,) = (each for each in simulation.federated.environments if each.client is None)
    models = models_of(simulation, unseen)
    kept = [state.tensors for _, state in states(simulation)]
    state = simulation.coordinator.state
    broadcast = {**state.shared, **state.down}
    assert len(models) == len(kept) == 2
    for model, own in zip(models, kept, strict=True):
        encoder = Tensors(own).of("encoder")
        assert encoder and all(torch.equal(model.of("encoder")[name], tensor) for name, tensor in encoder.items())
        assert torch.equal(model[shared], broadcast[shared])
    row = evaluated(simulation, simulation.coordinator.schedule[0])["environments"][-1]
    assert (row["model"], row["models"]) == ("unseen", 2)


class Product(FedBABU):
    """1/2 (h u - c_k)^2 of the encoder's u and the head's h, with c = (3, -1)."""

    def parts(self, model):
        parts = {name: replace(part, module=Factor(3)) for name, part in super().parts(model).items()}
        return parts | {"tuned": replace(parts["tuned"], module=Tuned(Factor(3), Factor(3)))}

    def risk(self, net, batch, context):
        return product(net, context)


@pytest.mark.parametrize(
    ("finetune", "ends"),
    [
        ("all", [(1.2, 1.2), (0.8, 0.8)]),
        ("head", [(1.0, 1.2), (1.0, 0.8)]),
        ("encoder", [(1.2, 1.0), (0.8, 1.0)]),
    ],
)
def test_fedbabu_by_hand(make: Make, finetune: Literal["all", "head", "encoder"], ends: list[tuple[float, float]]):
    """Steps of 0.1 from u = h = 1; in a round of one step u = 1.2 and 0.8, whose mean is 1, and h stays at 1.

    Tuning by one step, e = h u - c = -2 and 2: what is tuned is 1 + 0.2 and 1 - 0.2.
    """
    method = Product(finetune_steps=1, finetune=finetune)
    simulation = simulate(make({**PLAIN, "train.rounds": 2, "train.steps": 1}).replace(method=method))
    shared = simulation.coordinator.state.shared
    assert (shared["encoder.w"].item(), shared["head.w"].item()) == pytest.approx((1.0, 1.0))
    found = [
        (state.tensors["tuned.encoder.w"].item(), state.tensors["tuned.head.w"].item())
        for _, state in states(simulation)
    ]
    assert found == [pytest.approx(end) for end in ends]


def test_the_head_of_fedbabu_is_the_initial_one_until_it_is_tuned(make: Make):
    """To the bit, with momentum and weight decay; it is never sent back. What is tuned differs between clients."""
    changes = {"train.rounds": 3, "train.weight_decay": 0.1, **CNN_WITH_BN}
    simulation = simulate(make({**changes, "method": {"name": "fedbabu", "finetune_steps": 2}}))
    state, start = simulation.coordinator.state, simulation.setup.shapes
    assert all(torch.equal(tensor, start[f"head.{name}"]) for name, tensor in state.shared.of("head").items())
    assert not torch.equal(state.shared["encoder.0.weight"], start["encoder.0.weight"])
    assert {name.partition(".")[0] for name in names_sent(simulation, "train", "up")} == {"encoder"}
    one, other = (Tensors(state.tensors).of("tuned")["head.weight"] for _, state in states(simulation))
    assert not torch.equal(one, state.shared["head.weight"])
    assert not torch.equal(one, other)
