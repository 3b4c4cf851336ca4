"""FINCH on small sets, and FPL's losses and clusters by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from conftest import at, linear, values
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.classes import COUNTS, SUMS
from fedshift.methods.finch import finch
from fedshift.methods.fpl import FPL


@pytest.mark.parametrize(
    ("degrees", "clusters"),
    [
        ([30], [0]),
        ([30, 90], [0, 0]),
        ([0, 5, 12, 97, 90, 200], [0, 0, 0, 1, 1, 1]),
        ([0, 27, 10, 34, 19], [0, 0, 0, 0, 0]),  # a chain: 0 is nearest to 10, 10 to 19, 19 to 27, and 27 and 34 agree
        ([0, 10, 20, 180], [0, 0, 0, 0]),  # 180 is nearest to 20, as 10 is
        ([0, 182, 2, 20, 22, 210, 180, 212], [0, 1, 0, 0, 0, 1, 1, 1]),
    ],
)
def test_finch_on_points_of_the_unit_circle(degrees: list[int], clusters: list[int]):
    """In the last, four pairs are linked first, whose means at 1, 21, 181 and 211 degrees make two; then comes one."""
    angles = torch.tensor(degrees).double().deg2rad()
    assert finch(torch.stack([angles.cos(), angles.sin()], dim=1)).tolist() == clusters


def net(number: list[int]) -> Net:
    """Z = x; logits (z_0, z_1, 0); class 0 has the clusters (2, 0) and (0, 1), class 1 has (0, 3), class 2 none."""
    prototypes = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
    parts = {"encoder": nn.Identity(), "head": linear([1.0, 0.0], [0.0, 1.0], [0.0, 0.0])}
    server = {"prototypes": holder({"value": prototypes}), COUNTS: holder({"value": torch.tensor(number)})}
    return Net({**parts, **server})


def test_the_loss_and_its_gradient_by_hand():
    """Z = (5, 0) of class 0 and (0, 2) of class 2; tau = 0.5.

    Similarities over tau of the first are 2 and 0 of its own class, 0 of class 1: -log((e^2 + 1) / (e^2 + 2)) =
    0.1126169. The mean of its clusters is (1, 0.5): (4^2 + 0.5^2) / 2 = 8.125. The second has no prototype. In the mean
    over both the halves are left, and with the weights 2 and 3, 0.1126169 and 12.1875.
    Only across z does the contrast change: ds/dz = (0, 1) / 5 for (0, 1) and (0, 3). With P = e^2 + 1 and A = e^2 + 2
    its gradient is (1/tau) (2/A - 1/P) / 5 = 0.0375244 upwards; the consistency's is 2 (4, -0.5) / 2 = (4, -0.5). In
    the weighted mean they are (0, 0.0375244) and (6, -0.75), and 0 of the second.
    """
    z = torch.tensor([[5.0, 0.0], [0.0, 2.0]], requires_grad=True)
    objective = FPL(temperature=0.5, contrast=2.0, consistency=3.0).objective("train")
    terms = objective.evaluate(net([2, 1, 0]), Batch(z, torch.tensor([0, 2])), at())
    numbers = values(terms)
    assert (numbers["contrast"], numbers["consistency"]) == pytest.approx((0.1126169, 12.1875), abs=1e-6)
    (terms["contrast"] + terms["consistency"]).backward()
    across = (2 / (math.e**2 + 2) - 1 / (math.e**2 + 1)) / 0.5 / 5
    torch.testing.assert_close(z.grad, torch.tensor([[6.0, across - 0.75], [0.0, 0.0]]))


def test_it_is_the_cross_entropy_alone_until_there_are_prototypes():
    z = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    terms = FPL().objective("train").evaluate(net([0, 0, 0]), Batch(z, torch.tensor([0, 1, 2, 2, 1, 0])), at())
    assert (terms["contrast"].item(), terms["consistency"].item()) == (0, 0)
    (terms["contrast"] + terms["consistency"]).backward()
    assert not z.grad.any()


def test_the_server_clusters_the_means_of_each_class():
    """Clients' means of class 0: (1, 0), (3, 0.3), (0, 2) and (0.2, 4); two are nearest to each other, and two.

    So its clusters are (2, 0.15) and (0.1, 3), whatever the counts. Of class 1 one client has (5, 5) as mean. No client
    has class 2, which keeps what it had.
    """
    sums = [[[2, 0], [0, 0], [0, 0]], [[3, 0.3], [15, 15], [0, 0]], [[0, 2], [0, 0], [0, 0]], [[2, 40], [0, 0], [0, 0]]]
    counts = [[2, 0, 0], [1, 3, 0], [1, 0, 0], [10, 0, 0]]
    replies = Replies(
        (k, Up({SUMS: torch.tensor(s).float(), f"{COUNTS}.value": torch.tensor(n), "w": torch.tensor(float(k))}))
        for k, (s, n) in enumerate(zip(sums, counts, strict=True))
    )
    down = {"prototypes.value": torch.full((2, 3, 2), 7.0), f"{COUNTS}.value": torch.tensor([1, 2, 2])}
    state = FPL().merge(ServerState(Tensors({"w": torch.tensor(0.0)}), Tensors(down)), replies)
    assert state.down[COUNTS].tolist() == [2, 1, 2]
    expected = torch.tensor([[[2.0, 0.15], [5.0, 5.0], [7.0, 7.0]], [[0.1, 3.0], [0.0, 0.0], [7.0, 7.0]]])
    torch.testing.assert_close(state.down["prototypes"], expected)
    assert state.shared["w"].item() == 1.5
