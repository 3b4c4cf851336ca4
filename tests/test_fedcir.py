"""FedCiR's losses, gradients, server step and estimate against numbers derived by hand; what is sent, and when."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import CNN_WITH_BN, Make, at, linear, resident, simulate
from fedshift.core.contract import Batch, Objective, Optimiser, Part, Phase, Term
from fedshift.core.messages import Up
from fedshift.core.method import Averaging
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods import METHODS
from fedshift.methods.fedcir import FedCiR
from fedshift.methods.generator import log_mixture, make_generator
from fedshift.runs.simulation import Simulation
from fedshift.streams import Draw
from test_fedsr import Fixed


class Shifted(nn.Module):
    """A generator by hand: noise plus ``shift`` for label 0, minus it for label 1."""

    def __init__(self, shift):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, noise, y):
        return noise + self.shift * (1 - 2 * y.unsqueeze(1))


def one_dimensional_net():
    """Mu = 1, sigma = 2; logits (z, -z); G(y, eps) = eps +- 1; q(z|0) = N(3, 0.5^2), q(z|1) = N(9, 9^2)."""
    gaussians = holder({"mean": torch.tensor([[3.0], [9.0]]), "sigma": torch.tensor([[0.5], [9.0]])})
    parts = {"encoder": Fixed([1.0], [2.0]), "head": linear(1.0, -1.0), "generator": Shifted(1.0)}
    return Net({**parts, "gaussians": gaussians})


def one_image():
    """One image of class 0; eps = 0.5; G is requested class 1 with the noise 0.25."""
    noise = {"eps": torch.tensor([[0.5]]), "labels": torch.tensor([1]), "noise": torch.tensor([[0.25]])}
    return Batch(torch.zeros(1, 1), torch.tensor([0])), noise


# The client's objective -------------------------------------------------------------------------


def test_loss_and_gradient_by_hand():
    """Weights 0.5 (reg) and 0.1 (align), at the image above.

    z = 1 + 2 * 0.5 = 2. CE = log(1 + e^-4) = 0.0181499; dCE/dz = -2 / (1 + e^4) = -0.0359724.
    G(1, 0.25) = 0.25 - 1 = -0.75, logits (-0.75, 0.75), so L_reg = log(1 + e^-1.5) = 0.2014133 (Eq. 12).
    L_align = log 0.5 - log 2 + (2^2 + (1 - 3)^2) / (2 * 0.25) - 1/2 = 15.5 - log 4 = 14.1137056 (Eq. 17 with
      sigma(x); with the printed sigma_w1(y) read as sigma_g(y) it would be 15.5).
      d/dmu = (1 - 3) / 0.25 = -8; d/dsigma = -1/2 + 2 / 0.25 = 7.5.
    d/dmu = -0.0359724 - 0.8 = -0.8359724; d/dsigma = 0.5 * -0.0359724 + 0.75 = 0.7320138; L_reg moves neither.
    d/dw_0 = (sigmoid(4) - 1) * 2 + 0.5 * sigmoid(-1.5) * -0.75 = -0.0359724 - 0.0684096 = -0.1043820; w_1 opposite.
    """
    net = one_dimensional_net()
    batch, noise = one_image()
    terms = FedCiR(l_reg=0.5, l_align=0.1).objective("train").evaluate(net, batch, at(round=2, noise=noise))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.0181499, "reg": 0.5 * 0.2014133, "align": 0.1 * 14.1137056}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert net.encoder.mu.grad.item() == pytest.approx(-0.8359724, abs=1e-6)
    assert net.encoder.sigma.grad.item() == pytest.approx(0.7320138, abs=1e-6)
    assert net.head.weight.grad.flatten().tolist() == pytest.approx([-0.1043820, 0.1043820], abs=1e-6)
    assert net.generator.shift.grad is None


@pytest.mark.parametrize("d", [1, 3])
def test_the_weight_of_the_alignment_is_a_dimensions(d: int):
    """Dimensions that are each as the one above have the same term: 0.1 * 14.1137056, however many they are.

    The head's logits are of the first dimension; G plays no part.
    """
    one = one_dimensional_net()
    rows = Tensors(one.of("gaussians")).map(lambda row: row.repeat(1, d))
    head = nn.Linear(d, 2)
    net = Net({"encoder": Fixed([1.0] * d, [2.0] * d), "head": head, "gaussians": holder(dict(rows))})
    batch, noise = Batch(torch.zeros(1, 1), torch.tensor([0])), {"eps": torch.zeros(1, d)}
    terms = METHODS.get("fedalign")(l_align=0.1).objective("train").evaluate(net, batch, at(round=2, noise=noise))
    assert terms["align"].item() == pytest.approx(0.1 * 14.1137056, abs=1e-6)


def test_a_term_without_weight_is_left_out_and_asks_for_no_noise(make: Make):
    """In round 1 there is none of them."""
    spec = Simulation(make()).setup.model
    batch, noise = one_image()
    of_g = {"eps", "labels", "noise"}
    for method, terms, draws in (
        (FedCiR(l_reg=0.5, l_align=0.1), {"cross_entropy", "reg", "align"}, of_g),
        (METHODS.get("fedreg")(), {"cross_entropy", "reg"}, of_g),
        (METHODS.get("fedalign")(), {"cross_entropy", "align"}, {"eps"}),
    ):
        objective, net = method.objective("train"), one_dimensional_net()
        assert objective.evaluate(net, batch, at(round=2, noise=noise)).keys() == terms
        assert objective.evaluate(net, batch, at(round=1, noise=noise)).keys() == {"cross_entropy"}
        assert method.draws(spec, 4).keys() == draws
    assert FedCiR().draws(spec, 4)["labels"] == Draw((4,), "integers", 3)  # uniform over the tiny data's 3 classes
    assert FedCiR().draws(spec, 4)["noise"] == Draw((4, 2))  # half of d = 4


# The generator ----------------------------------------------------------------------------------


def test_the_generator_reads_noise_then_the_label():
    """With identity weights and fresh statistics it gives relu([noise || one-hot]) / sqrt(1 + 1e-5).

    It has a separate Adam, whatever [train] sets.
    """
    g = make_generator(classes=3, noise=2, hidden=5, dim=5).eval()
    for layer in (g.body[0], g.body[3]):
        layer.weight.data, layer.bias.data = torch.eye(5), torch.zeros(5)
    z = g(torch.tensor([[2.0, -3.0]]), torch.tensor([1]))
    torch.testing.assert_close(z, torch.tensor([[2.0, 0.0, 0.0, 1.0, 0.0]]) / (1 + 1e-5) ** 0.5)
    (objective,) = FedCiR(generator_lr=0.003).server_phases()[0].objectives
    assert objective.optimiser == Optimiser("adam", lr=0.003, weight_decay=0.0)


def two_heads(samples=()):
    """Heads with logits (log 9 * z, 0) and (0, 0): at z = 1 class 0 has the probabilities 0.9 and 0.5."""
    ups = [{"head.weight": torch.tensor([[slope], [0.0]])} for slope in (math.log(9), 0.0)]
    for up, count in zip(ups, samples, strict=False):
        up["samples"] = torch.tensor(count)
    return Replies((client, Up(up)) for client, up in enumerate(ups))


def server_net():
    """G(0, 0) = 1; the server's own head has the logits (5z, 0), which must play no part."""
    return Net({"head": linear(5.0, 0.0), "generator": Shifted(1.0)})


def test_the_generator_meets_the_mixture_of_probabilities():
    """Eq. 15 at z = 1, y = 0: -log((0.9 + 0.5) / 2) = -log 0.7 = 0.3566749.

    The mean of the losses would be (0.1053605 + 0.6931472) / 2 = 0.3992539, and the averaged head, with the
    logit log 3, would give -log 0.75 = 0.2876821.
    Gradient: -(log 9 * 0.9 * 0.1) / (0.9 + 0.5) = -0.1412501.
    """
    net = server_net()
    noise = {"labels": torch.tensor([0]), "noise": torch.zeros(1, 1)}
    consensus = FedCiR().consensus(net, Batch(torch.empty(0)), at(noise=noise, replies=two_heads()))
    assert consensus.item() == pytest.approx(0.3566749, abs=1e-6)
    consensus.backward()
    assert net.generator.shift.grad.item() == pytest.approx(-0.1412501, abs=1e-6)
    assert net.head.weight.grad is None


def test_clients_weigh_in_the_mixture_as_in_the_average():
    """Three and one samples: 3/4 * 0.9 + 1/4 * 0.5 = 0.8. Drawn twice, a client counts twice: (2 * 0.9 + 0.5) / 3."""
    z, head = torch.ones(1, 1), linear(5.0, 0.0)
    assert log_mixture(head, two_heads((3, 1)), z).exp()[0, 0].item() == pytest.approx(0.8)
    one, other = two_heads()
    assert log_mixture(head, Replies([one, one, other]), z).exp()[0, 0].item() == pytest.approx(2.3 / 3)


def test_the_mixture_is_finite_where_probabilities_are_not():
    """Logits (-1000, 0) in both heads: class 0 has e^-1000, which is 0 in floating point, yet its log is -1000."""
    replies = Replies((k, Up({"head.weight": torch.tensor([[-1000.0], [0.0]])})) for k in range(2))
    mixture = log_mixture(linear(0.0, 0.0), replies, torch.ones(1, 1))
    assert mixture[0].tolist() == pytest.approx([-1000.0, 0.0], abs=1e-4)


def test_the_estimate_by_hand():
    """G = noise + 10 for class 0, noise - 10 for class 1.

    Class 0, noise (1, 2, 3, 6): mean 3 + 10 = 13; squared deviations 4 + 1 + 0 + 9 = 14, over n = 4: 3.5, whose
    root is 1.8708287 (over n - 1 it would be 2.1602469). Class 1, noise 5 four times: mean -5, sigma 0, hence the
    floor. Recorded: (1.8708287 + 0.01) / 2 = 0.9404144.
    """
    net = Net({"generator": Shifted(10.0)})
    noise = torch.tensor([[1.0, 2.0, 3.0, 6.0], [5.0] * 4]).unsqueeze(2)
    measured = FedCiR(sigma_floor=0.01).estimate(net, Batch(*torch.empty(2, 0)), at(noise={"noise": noise}))
    assert measured["gaussians.mean"].tolist() == [[13.0], [-5.0]]
    assert measured["gaussians.sigma"].flatten().tolist() == pytest.approx([1.8708287, 0.01])
    assert measured["sigma_g"].item() == pytest.approx(0.9404144)


# In a federation --------------------------------------------------------------------------------


def test_the_estimate_is_that_of_the_generator_as_clients_see_it(make: Make):
    """20,000 outputs of the new generator in evaluation mode, drawn again, have the same mean and deviation."""
    experiment = make({"method.name": "fedcir", "method.mle_samples": 20_000, "method.generator_lr": 0.1})
    simulation = simulate(experiment, rounds=1)
    g, down = resident(simulation).server.net.generator.eval(), simulation.coordinator.state.down
    g.load_state_dict(down.of("generator"))
    for label in range(3):
        noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(label))
        with torch.no_grad():
            z = g(noise, torch.full((20_000,), label))
        mean, sigma = down["gaussians.mean"][label], down["gaussians.sigma"][label]
        assert ((mean - z.mean(dim=0)).abs() < 0.05 * sigma).all()  # five standard errors of the difference
        torch.testing.assert_close(sigma, z.std(dim=0), rtol=0.05, atol=0)


class ByHand(Averaging):
    """FedAvg with a probabilistic encoder, written without any of the library's methods."""

    def parts(self, spec):
        return {"encoder": Part(spec.gaussian_encoder()), "head": Part(spec.head())}

    def phases(self):
        def draws(spec, batch):
            return {"eps": Draw((batch, spec.dim))}

        def loss(net, batch, context):
            mu, sigma = net.encoder(batch.x)
            return F.cross_entropy(net.head(mu + sigma * context.noise["eps"]), batch.y)

        return (Phase("train", (Objective("train", {"loss": Term(loss)}, ("encoder", "head"), draws),)),)


def test_without_weights_it_is_fedavg_with_a_probabilistic_encoder(make: Make):
    experiment = make({"method": {"name": "fedcir", "l_reg": 0, "l_align": 0}} | CNN_WITH_BN)
    bare = simulate(experiment).coordinator.state
    by_hand = simulate(experiment.replace(method=ByHand())).coordinator.state
    assert bare.tensors.keys() == by_hand.tensors.keys()
    assert all(torch.equal(tensor, by_hand.tensors[name]) for name, tensor in bare.tensors.items())
