"""FedLC's calibrated cross-entropy by hand, with absent classes, and against a plain loop in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from conftest import at
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.methods.fedlc import FedLC


def loss_of(logits: torch.Tensor, y: list[int], counts: list[int], **settings):
    """FedLC's loss where the encoder gives the logits and the head passes them on."""
    net = Net({"encoder": nn.Identity(), "head": nn.Identity()})
    objective = FedLC(**settings).objective("train")
    return objective.evaluate(net, Batch(logits, torch.tensor(y)), at(counts=counts))["cross_entropy"]


@pytest.mark.parametrize(
    ("denominator", "counts", "expected"),
    [
        ("all", [16, 1, 81], math.log(math.exp(0.5) + math.exp(-1) + math.exp(5 / 3)) - 0.5),
        ("others", [16, 1, 81], math.log(math.exp(-1) + math.exp(5 / 3)) - 0.5),
        ("all", [16, 0, 81], math.log(math.exp(0.5) + math.exp(5 / 3)) - 0.5),
        ("others", [16, 0, 81], 5 / 3 - 0.5),
    ],
)
def test_the_loss_by_hand(denominator: str, counts: list[int], expected: float):
    """Logits (1, 0, 2), y = 0, tau = 1: n^(-1/4) of 16, 1, 81 is 1/2, 1, 1/3, so they become (1/2, -1, 5/3).

    An absent class leaves the sum.
    """
    logits = torch.tensor([[1.0, 0.0, 2.0]])
    assert loss_of(logits, [0], counts, denominator=denominator).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_the_gradient_is_finite_and_absent_classes_receive_none(denominator: str):
    """With "all" it is softmax - one-hot over the classes present, so each row's gradient sums to 0.

    A client of one class has nothing to distinguish.
    """
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss_of(logits, [0, 3, 3, 0], [7, 0, 2, 30, 0], denominator=denominator).backward()
    assert (logits.grad[:, [1, 4]] == 0).all()
    assert (logits.grad[:, [0, 2, 3]] != 0).all()
    torch.testing.assert_close(logits.grad.sum(dim=1), torch.zeros(4), rtol=0, atol=1e-6)
    logits.grad = None
    loss = loss_of(logits, [2] * 4, [0, 0, 9, 0, 0], denominator=denominator)
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()
