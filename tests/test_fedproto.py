"""FedProto's distance, its gradient and its prediction by hand, and what it is without the distance."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, at, linear, simulate, states, values
from fedshift.core.contract import Batch
from fedshift.core.net import Net, holder
from fedshift.methods.fedproto import FedProto


def net(counts: list[int]) -> Net:
    """Z = x; logits (z_0, z_1, 0); prototypes (2, 0) and (0, 3), and none of class 2."""
    prototypes = holder({"value": torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])})
    parts = {"encoder": nn.Identity(), "head": linear([1.0, 0.0], [0.0, 1.0], [0.0, 0.0]), "prototypes": prototypes}
    return Net({**parts, "class_counts": holder({"value": torch.tensor(counts)})})


@pytest.mark.parametrize(
    ("pull", "distance", "gradient"),
    [
        ("means", 2.5, [[0, 0], [0, 0], [1, -2], [0, 0]]),
        ("samples", 1.625, [[0.5, 0], [-0.5, 0], [0.25, -0.5], [0, 0]]),
    ],
)
def test_the_distance_and_its_gradient_by_hand(
    pull: Literal["means", "samples"], distance: float, gradient: list[list[float]]
):
    """Z = (4, 0) and (0, 0) of class 0, (1, 1) of class 1 and (9, 9) of class 2, which has no prototype; d = 2.

    Means: (2, 0) is its prototype; (1, 1) - (0, 3) = (1, -2), of which the mean square is 2.5: 0 + 2.5. Its gradient is
    2 (1, -2) / 2. Samples: 2^2 / 2 = 2, 2 and 2.5 over four samples are 1.625; gradients are 2 (z - G) / 2 / 4.
    lam = 2 doubles all of it.
    """
    z = torch.tensor([[4.0, 0.0], [0.0, 0.0], [1.0, 1.0], [9.0, 9.0]], requires_grad=True)
    terms = (
        FedProto(lam=2.0, pull=pull)
        .objective("train")
        .evaluate(net([3, 1, 0]), Batch(z, torch.tensor([0, 0, 1, 2])), at())
    )
    assert values(terms)["distance"] == pytest.approx(2 * distance)
    terms["distance"].backward()
    torch.testing.assert_close(z.grad, 2 * torch.tensor(gradient).float())


def test_a_class_that_the_batch_lacks_is_not_drawn():
    """Z = (0, 0) of class 0 alone, whose prototype is (2, 0): 2^2 / 2."""
    terms = FedProto().objective("train").evaluate(net([3, 1, 0]), Batch(torch.zeros(1, 2), torch.tensor([0])), at())
    assert values(terms)["distance"] == pytest.approx(2.0)


def test_the_nearest_prototype_predicts():
    """||z - G||^2 of z = (1, 1) is 1 + 1 = 2 and 1 + 4 = 5; class 2, which has none, is as far as the farthest.

    The first has 1 / (1 + 2 e^-3) = 0.9094430. Before there are prototypes all classes are equal. Logits of the head
    are (1, 1, 0): e / (2 e + 1) = 0.4223188.
    """
    x = torch.tensor([[1.0, 1.0]])
    assert FedProto().predict(net([3, 1, 0]), x, {}).exp()[0, 0].item() == pytest.approx(0.9094430, abs=1e-6)
    assert FedProto().predict(net([0, 0, 0]), x, {}).exp()[0].tolist() == pytest.approx([1 / 3] * 3)
    by_head = FedProto(inference="head").predict(net([3, 1, 0]), x, {})
    assert by_head.exp()[0, 0].item() == pytest.approx(0.4223188, abs=1e-6)


def test_without_the_distance_it_is_local_training_to_the_bit(make: Make):
    """While prototypes are exchanged all the same."""
    changes = {"train.rounds": 3, **CNN_WITH_BN}
    ours = simulate(make({**changes, "method": {"name": "fedproto", "lam": 0.0}}))
    alone = dict(states(simulate(make({**changes, "method.name": "single"}))))
    for client, state in states(ours):
        assert all(torch.equal(state.tensors[name], tensor) for name, tensor in alone[client].tensors.items())
    assert ours.coordinator.state.down["prototypes.value"].abs().sum() > 0
