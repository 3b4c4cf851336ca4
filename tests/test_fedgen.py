"""FedGen's losses of server and clients by hand: every local head teaches, by its class counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from conftest import at, linear
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedgen import FedGen, similarity


class Shifted(nn.Module):
    """A generator by hand: noise plus ``shift`` for label 0, minus it for label 1."""

    def __init__(self, shift: float):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, noise, y):
        return noise + self.shift * (1 - 2 * y.unsqueeze(1))


def server_loss(counts: list[list[int]]) -> tuple[dict[str, torch.Tensor], Net]:
    """Of two clients' heads and class counts. G(0, y) is 1 for label 0 and -1 for 1, each requested once.

    The server's own head plays no part.
    """
    net = Net({"head": linear(5.0, 0.0), "generator": Shifted(1.0)})
    noise = {"labels": torch.tensor([0.2, 0.7]), "noise": torch.zeros(2, 1)}
    replies = Replies(
        (k, Up({"head.weight": torch.tensor([[weight], [0.0]]), "class_counts.value": torch.tensor(count)}))
        for k, (weight, count) in enumerate(zip((math.log(9), 0.0), counts, strict=True))
    )
    (phase,) = FedGen().server_phases()
    (objective,) = phase.objectives
    return objective.evaluate(net, Batch(torch.empty(0)), at(noise=noise, replies=replies)), net


def test_the_loss_of_the_server_by_hand():
    """Client 0 has 3 of class 0 and 1 of class 1, client 1 has 1 and 0. Heads: (log 9 z, 0) and (0, 0).

    Label 0, z = 1: head 0 has -log 0.9 = 0.1053605, head 1 log 2 = 0.6931472, shares 3/4 and 1/4: 0.2523072.
    Label 1, z = -1: head 0 has -log 0.9 again and the whole share: 0.1053605. Mean: 0.1788338.
    Noise is the same for both, so the diversity term is exp(0) = 1.
    d/dz of -log softmax_0 of head 0 at z = 1 is -log 9 * 0.1, and the shift moves z by +1 and -1, with the same effect:
    gradient (3/4 + 1) / 2 * -0.2197225 = -0.1922572.
    If nobody had class 1, both labels would be 0 with z = 1, and 0.2523072 the mean.
    """
    terms, net = server_loss([[3, 1], [1, 0]])
    assert terms["taught"].item() == pytest.approx(0.1788338, abs=1e-6)
    assert terms["diversity"].item() == 1.0
    sum(terms.values()).backward()
    assert net.generator.shift.grad.item() == pytest.approx(-0.1922572, abs=1e-6)
    assert net.head.weight.grad is None
    assert server_loss([[3, 0], [1, 0]])[0]["taught"].item() == pytest.approx(0.2523072, abs=1e-6)


def test_the_diversity_by_hand():
    """Noise (0, 0) and (1, 1), made to (0, 0) and (2, 4).

    Squared distances have the mean 1 over dimensions, absolute ones 3. Two of the four pairs differ:
    exp(-1 * 3 * 2 / 4) = e^-1.5 = 0.2231302.
    """
    noise, z = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [2.0, 4.0]])
    assert similarity(noise, z).item() == pytest.approx(0.2231302, abs=1e-6)


def test_counts_are_merged_and_a_class_that_was_seen_stays_seen():
    """3 + 1 of class 0, nothing of class 1, of which there were 5 before, and of class 2 never. The head is a mean."""
    ups = [{"head.w": torch.tensor(w), "class_counts.value": torch.tensor([n, 0, 0])} for w, n in ((2.0, 3), (4.0, 1))]
    before = ServerState(Tensors({"head.w": torch.ones(())}), Tensors({"class_counts.value": torch.tensor([9, 5, 0])}))
    merged = FedGen().merge(before, Replies(enumerate(map(Up, ups))))
    assert merged.down["class_counts.value"].tolist() == [4, 5, 0]
    assert merged.shared["head.w"].item() == 3


# The client's objective ---------------------------------------------------------------------------


def client_net(counts: list[int]) -> Net:
    """Z = x; logits (z, -z); G(e, y) = e +- 1."""
    held = holder({"value": torch.tensor(counts)})
    return Net({"encoder": nn.Identity(), "head": linear(1.0, -1.0), "generator": Shifted(1.0), "class_counts": held})


BATCH = Batch(torch.tensor([[2.0]]), torch.tensor([0]))
NOISE = {
    "noise_of_batch": torch.tensor([[0.0]]),
    "labels": torch.tensor([0.1]),
    "noise": torch.tensor([[0.25]]),
}


def test_the_loss_of_a_client_by_hand():
    """One image x = 2 of class 0 in round 2; only class 1 was ever counted, so y~ = 1 although the draw is low.

    CE = log(1 + e^-4) = 0.0181499. a = b = 10 * 0.98 = 9.8.
    G(0.25, 1) = -0.75 has the logits (-0.75, 0.75): log(1 + e^-1.5) = 0.2014133, times a: 1.9738507.
    G(0, 0) = 1 has the logits (1, -1): q = (0.8807971, 0.1192029); the image p = (0.9820138, 0.0179862).
    KL(q || p) = 0.8807971 log(q_0/p_0) + 0.1192029 log(q_1/p_1) = 0.1296278, times b: 1.2703518.
    Gradient of the head's w_0 (w_1 opposite), each p - onehot times z, with sg on q:
    CE: (0.9820138 - 1) * 2 = -0.0359724; generated: a * 0.1824255 * -0.75 = -1.3408274;
    distilled: b * (0.9820138 - 0.8807971) * 2 = 1.9838471.
    """
    net = client_net([0, 5])
    terms = FedGen().objective("train").evaluate(net, BATCH, at(round=2, noise=NOISE))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.0181499, "generated": 1.9738507, "distilled": 1.2703518}, abs=1e-6
    )
    for term, gradient in zip(terms.values(), (-0.0359724, -1.3408274, 1.9838471), strict=True):
        (found,) = torch.autograd.grad(term, net.head.weight, retain_graph=True)
        assert found.flatten().tolist() == pytest.approx([gradient, -gradient], abs=1e-5)
    sum(terms.values()).backward()
    assert net.generator.shift.grad is None


def test_the_first_round_is_cross_entropy_alone_and_weights_fade_by_a_fiftieth_a_round():
    objective, net = FedGen().objective("train"), client_net([1, 1])
    first, early, late = (objective.evaluate(net, BATCH, at(round=t, noise=NOISE)) for t in (1, 7, 8))
    assert first.keys() == {"cross_entropy"}
    for name in ("generated", "distilled"):
        assert (late[name] / early[name]).item() == pytest.approx(0.98, rel=1e-5)
