"""FedSR's loss, gradient and prediction against numbers derived by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from conftest import at, linear
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.methods import METHODS
from fedshift.methods.fedsr import ClassGaussians, FedSR, gaussian_kl


class Fixed(nn.Module):
    """An encoder that gives the same mu and sigma for every input."""

    def __init__(self, mu, sigma):
        super().__init__()
        self.mu, self.sigma = nn.Parameter(torch.tensor(mu)), nn.Parameter(torch.tensor(sigma))

    def forward(self, x):
        return self.mu.expand(len(x), -1), self.sigma.expand(len(x), -1)


def one_dimensional_net():
    """Mu = 1, sigma = 2; logits (z, -z); r(z|y) = N(0, 1) for both classes."""
    reference = ClassGaussians(2, 1, scaled=False)
    reference.spread.data.fill_(math.log(math.e - 1))  # softplus of it is 1
    return Net({"encoder": Fixed([1.0], [2.0]), "head": linear(1.0, -1.0), "reference": reference})


def test_loss_and_gradient_by_hand():
    """One image, one dimension, y = 0, eps = 0.5, weights 0.1 (L2R) and 0.3 (CMI).

    z = 1 + 2 * 0.5 = 2.
    CE = log(1 + e^(-2z)) = log(1 + e^-4) = 0.0181499; dCE/dz = -2 / (1 + e^4) = -0.0359724.
    L2R = z^2 = 4; d/dz = 2z = 4.
    CMI = log 1 - log 2 + (2^2 + 1^2) / 2 - 1/2 = 2 - log 2 = 1.3068528;
      d/dmu = mu = 1; d/dsigma = -1/sigma + sigma = 1.5; d/dm_y = -1; d/ds_y = 1 - 5 = -4.
    Loss = 0.0181499 + 0.4 + 0.3920558 = 0.8102057.
    dz/dmu = 1 and dz/dsigma = eps = 0.5, so
      d/dmu = -0.0359724 + 0.1 * 4 + 0.3 * 1 = 0.6640276,
      d/dsigma = 0.5 * (-0.0359724 + 0.4) + 0.3 * 1.5 = 0.6320138.
    s_y = softplus(p) = 1 at p = log(e - 1), ds_y/dp = sigmoid(p) = 1 - 1/e = 0.6321206, so
      d/dm_y = -0.3 and d/dp = 0.3 * -4 * 0.6321206 = -0.7585447.
    """
    net = one_dimensional_net()
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]))
    terms = FedSR(l2r=0.1, cmi=0.3).objective("train").evaluate(net, batch, at(noise={"eps": torch.tensor([[0.5]])}))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.0181499, "l2r": 0.4, "cmi": 0.3920558}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert net.encoder.mu.grad.item() == pytest.approx(0.6640276, abs=1e-6)
    assert net.encoder.sigma.grad.item() == pytest.approx(0.6320138, abs=1e-6)
    assert net.reference.mean.grad.tolist() == [[pytest.approx(-0.3, abs=1e-6)], [0.0]]
    assert net.reference.spread.grad.tolist() == [[pytest.approx(-0.7585447, abs=1e-6)], [0.0]]


def test_the_divergence_is_summed_over_dimensions_and_averaged_over_the_batch():
    generator = torch.Generator().manual_seed(0)
    mu, mean, s, spread = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    ours = gaussian_kl(mu, s.exp(), mean, spread.exp())
    theirs = kl_divergence(Normal(mu, s.exp()), Normal(mean, spread.exp())).sum(dim=1).mean()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)


def test_r_starts_at_mean_0_and_sigma_softplus_of_1():
    mean, sigma = ClassGaussians(3, 2, scaled=False)(torch.tensor([2, 0]))
    assert mean.tolist() == [[0, 0], [0, 0]]
    assert sigma.flatten().tolist() == pytest.approx([1.3132617] * 4)


def test_the_norm_form_by_hand():
    """Z = (3, 4): the squared norm is 25, the norm 5; with weight 0.1 the terms are 2.5 and 0.5."""
    net = Net({"encoder": nn.Identity(), "head": nn.Linear(2, 2)})
    batch = Batch(torch.tensor([[3.0, 4.0]]), torch.tensor([1]))
    for settings, expected in (({}, 2.5), ({"l2r_form": "norm"}, 0.5)):
        terms = METHODS.get("fedl2r")(l2r=0.1, **settings).objective("train").evaluate(net, batch, at())
        assert terms["l2r"].item() == pytest.approx(expected)


def test_the_scale_of_the_public_code_acts_inside_cmi_only():
    """C = 2 makes mu = 2, sigma = 4 there: CMI = -log 4 + (16 + 4) / 2 - 1/2 = 9.5 - log 4; L2R keeps z = 2."""
    net, batch = one_dimensional_net(), Batch(torch.zeros(1, 1), torch.tensor([0]))
    net.reference.scale = nn.Parameter(torch.tensor(2.0))
    objective = FedSR(l2r=0.1, cmi=1.0, cmi_scale=True).objective("train")
    terms = objective.evaluate(net, batch, at(noise={"eps": torch.tensor([[0.5]])}))
    assert terms["cmi"].item() == pytest.approx(9.5 - math.log(4))
    assert terms["l2r"].item() == pytest.approx(0.4)


def test_prediction_averages_softmax_over_samples():
    """Mu = 0, sigma = 1, logits (z, -z), samples z = 1 and z = -1: softmax_0 = 1/(1 + e^-2) and 1/(1 + e^2), mean 1/2.

    The mean of the *logits* would give 1/2 too, so a third sample z = 3 separates them:
    (0.8807971 + 0.1192029 + 0.9975274) / 3 = 0.6658425, while the mean logit 1 gives 0.8807971. Without any sample it
    is the mean's, which was 1.
    """
    net = one_dimensional_net()
    of_mean = FedSR(test_samples=0).predict(net, torch.zeros(1, 1), {}).exp()
    assert of_mean[0, 0].item() == pytest.approx(1 / (1 + math.exp(-2)))
    net.encoder.mu.data.fill_(0.0)
    net.encoder.sigma.data.fill_(1.0)
    eps = torch.tensor([1.0, -1.0, 3.0]).view(3, 1, 1)
    probabilities = FedSR(test_samples=3).predict(net, torch.zeros(1, 1), {"eps": eps}).exp()
    assert probabilities[0].tolist() == pytest.approx([0.6658425, 0.3341575])
