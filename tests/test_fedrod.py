"""FedRoD's two risks by hand, with classes that a client lacks, and whose head predicts for whom."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from conftest import Make, at, linear, simulate
from fedshift.core.contract import Batch
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net
from fedshift.methods.fedrod import FedRoD, balanced
from fedshift.streams import Streams


def test_loss_and_gradients_by_hand():
    """One image x = 2 of class 0; z = s x with s = 1, h_G = (1, -1, 0.5), h_P = (0.5, 0, 1), counts (2, 1, 0).

    Generic logits (2, -2, 1), balanced (2 + log 2, -2, -inf): CE = log(1 + e^-4 / 2) = 0.0091162, with the
    probabilities (0.9909252, 0.0090748, 0). Gradient for h_G: (p - onehot) x = (-0.0181495, 0.0181495, 0); for s:
    sum of (p - onehot) h_G x = -0.0181495 - 0.0181495 = -0.0362990.
    Both heads: (3, -2, 3): CE = log(2 + e^-5) = 0.6965105, with p = (0.4983212, 0.0033577, 0.4983212). Gradient for
    h_P: (-1.0033577, 0.0067153, 0.9966423). h_G and s receive nothing of it.
    """
    encoder, head, own = linear(1.0), linear(1.0, -1.0, 0.5), linear(0.5, 0.0, 1.0)
    net = Net({"encoder": encoder, "head": head, "personal_head": own})
    batch = Batch(torch.tensor([[2.0]]), torch.tensor([0]))
    terms = FedRoD().objective("train").evaluate(net, batch, at(counts=[2, 1, 0]))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"balanced": 0.0091162, "personal": 0.6965105}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert head.weight.grad.flatten().tolist() == pytest.approx([-0.0181495, 0.0181495, 0.0], abs=1e-6)
    assert encoder.weight.grad.item() == pytest.approx(-0.0362990, abs=1e-6)
    assert own.weight.grad.flatten().tolist() == pytest.approx([-1.0033577, 0.0067153, 0.9966423], abs=1e-6)


def test_absent_classes_give_neither_infinities_nor_gradients():
    """Also where the client has a single class, whose balanced risk is then 0."""
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.tensor([0, 2, 2, 0, 2])
    loss = F.cross_entropy(balanced(logits, torch.tensor([2, 0, 3, 0]), 1.0), y)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert not gradient[:, [1, 3]].any()
    assert gradient[:, [0, 2]].any()
    single = F.cross_entropy(balanced(logits, torch.tensor([0, 0, 7, 0]), 1.0), torch.full((5,), 2))
    assert single.item() == 0


def test_the_generic_model_does_not_depend_on_the_personal_head(make: Make):
    """With a personal risk of zero, which still has a gradient, the shared tensors are the same to the bit."""

    class Alone(FedRoD):
        def personal_risk(self, net, batch, context):
            return 0 * net.personal_head.weight.sum()

    experiment = make({"method.name": "fedrod"})
    whole, alone = simulate(experiment), simulate(experiment.replace(method=Alone()))
    for name, tensor in whole.coordinator.state.shared.items():
        assert torch.equal(tensor, alone.coordinator.state.shared[name])


def test_gamma_is_the_exponent_of_the_counts():
    """Logits (2, -2) with counts (4, 1) and gamma = 1/2: (2 + log 2, -2), and CE = log(1 + e^-4 / 2) = 0.0091162."""
    net = Net({"encoder": linear(1.0), "head": linear(1.0, -1.0), "personal_head": linear(0.0, 0.0)})
    batch = Batch(torch.tensor([[2.0]]), torch.tensor([0]))
    terms = FedRoD(gamma=0.5).objective("train").evaluate(net, batch, at(counts=[4, 1]))
    assert terms["balanced"].item() == pytest.approx(0.0091162, abs=1e-6)


def test_a_client_predicts_with_the_sum_of_both_heads():
    """Logits (2, -2, 1) + (1, 0, 2) = (3, -2, 3), of the probabilities (0.4983212, 0.0033577, 0.4983212)."""
    net = Net({"encoder": linear(1.0), "head": linear(1.0, -1.0, 0.5), "personal_head": linear(0.5, 0.0, 1.0)})
    p = FedRoD().predict(net, torch.tensor([[2.0]]), {}).exp()
    assert p.flatten().tolist() == pytest.approx([0.4983212, 0.0033577, 0.4983212], abs=1e-6)


def test_the_personal_head_is_zero_at_first(make: Make):
    builder = ModelBuilder(make().model, (1, 10, 10), 3, Streams(0), clients=2)
    personal = FedRoD().parts(builder)["personal_head"].module
    assert not any(parameter.any() for parameter in personal.parameters())
