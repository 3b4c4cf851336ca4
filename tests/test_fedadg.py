"""FedADG's three losses by hand on scalars; what moves, what it is made of, and FedAvg as a limit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import Make, at, linear, simulate
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.methods.classes import smoothed_cross_entropy
from fedshift.methods.fedadg import FedADG
from fedshift.methods.generator import Conditional
from fedshift.runs.simulation import Simulation
from test_methods import small


def scalar_net() -> Net:
    """F(x) = x; logits (z, -z). With the code 0.5, D(y, z) = sigmoid(z +- 1), G(e, 0) = e + 2 and G(e, 1) = e."""
    discriminator = Conditional(2, nn.Sequential(linear([1.0, 2.0, -2.0]), nn.Sigmoid()))
    generator = Conditional(2, linear([1.0, 4.0, 0.0]))
    parts = {"encoder": nn.Identity(), "head": linear([1.0], [-1.0])}
    return Net({**parts, "generator": generator, "discriminator": discriminator})


METHOD = FedADG(code=0.5)
BATCH = Batch(torch.tensor([[1.0]]), torch.tensor([0]))


def evaluated(name: str) -> tuple[dict[str, Tensor], Net]:
    """The terms of one of the adversarial objectives at x = 1, y = 0, e = -3."""
    net, (_, adversarial) = scalar_net(), METHOD.phases()
    (objective,) = (one for one in adversarial.objectives if one.name == name)
    return objective.evaluate(net, BATCH, at(noise={"noise": torch.tensor([[-3.0]])})), net


def test_the_loss_of_the_discriminator_by_hand():
    """G(-3, 0) = -1, which D gives sigmoid(0) = 0.5; F(x) = 1 gets sigmoid(2) = 0.8807971.

    (1 - 0.5)^2 + 0.8807971^2 = 0.25 + 0.7758035 = 1.0258035. Its gradient for D's weights (z, code 0, code 1):
    -2 * 0.5 * 0.25 * (-1, 0.5, 0) + 2 * 0.8807971 * 0.1049936 * (1, 0.5, 0) = (0.4349562, -0.0325219, 0).
    Neither F nor G receives any.
    """
    terms, net = evaluated("discriminator")
    assert terms["discriminator"].item() == pytest.approx(1.0258035, abs=1e-6)
    terms["discriminator"].backward()
    gradient = net.parts["discriminator"].body[0].weight.grad.flatten()
    assert gradient.tolist() == pytest.approx([0.4349562, -0.0325219, 0.0], abs=1e-6)
    assert net.parts["generator"].body.weight.grad is None


def test_the_loss_of_the_model_by_hand():
    """Logits (1, -1): log p = (-0.1269280, -2.1269280); 0.9 and 0.1 of them: 0.3269280, times 0.85: 0.2778888.

    0.15 * (1 - 0.8807971)^2 = 0.15 * 0.0142093 = 0.0021314. Before, without D: 0.3269280.
    """
    terms, _ = evaluated("model")
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.2778888, "encoder": 0.0021314}, abs=1e-6
    )
    first, _ = METHOD.phases()
    (objective,) = first.objectives
    alone = objective.evaluate(scalar_net(), BATCH, at())
    assert {name: term.item() for name, term in alone.items()} == pytest.approx({"cross_entropy": 0.3269280}, abs=1e-6)


def test_the_generator_receives_a_gradient_by_hand():
    """D(0, G) = 0.5: 0.25. With dD = 0.25, its weights get 2 * 0.5 * 0.25 * (-3, 0.5, 0) = (-0.75, 0.125, 0)."""
    terms, net = evaluated("generator")
    assert terms["generator"].item() == pytest.approx(0.25)
    terms["generator"].backward()
    assert net.parts["generator"].body.weight.grad.flatten().tolist() == pytest.approx([-0.75, 0.125, 0.0])


def test_the_reference_distribution_depends_on_the_label():
    """The same noise gives e + 2 for class 0 and e for class 1."""
    context = at(noise={"noise": torch.full((2, 1), -3.0)})
    made = METHOD.generate(scalar_net(), Batch(torch.empty(2, 1), torch.tensor([0, 1])), context)
    assert made.flatten().tolist() == [-1.0, -3.0]


def test_g_and_d_are_of_the_published_form(make: Make):
    """G: FC 4096 LeakyReLU -> d ReLU from noise 2048; D: linear 1024 without bias -> FC 1024 LeakyReLU -> sigmoid."""
    simulation = Simulation(make({"method.name": "fedadg"}))
    method, model = simulation.setup.method, simulation.setup.model
    g, d = (method.parts(model)[name].module for name in ("generator", "discriminator"))
    forms = [[type(layer).__name__ for layer in module.body] for module in (g, d)]
    assert forms == [["Linear", "LeakyReLU", "Linear", "ReLU"], ["Linear", "Linear", "LeakyReLU", "Linear", "Sigmoid"]]
    shapes = [[tuple(layer.weight.shape) for layer in module.body if hasattr(layer, "weight")] for module in (g, d)]
    assert shapes == [[(4096, 2051), (4, 4096)], [(1024, 7), (1024, 1024), (1, 1024)]]
    assert d.body[0].bias is None


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_smoothing_is_that_of_torch_with_another_scale(smoothing: float):
    """Torch shares s among all C classes, the true one included: s C / (C - 1) there is s here."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    theirs = F.cross_entropy(logits, y, label_smoothing=smoothing * 5 / 4)
    assert smoothed_cross_entropy(logits, y, smoothing).mean().item() == pytest.approx(theirs.item(), rel=1e-12)


# In a federation ----------------------------------------------------------------------------------


def test_each_objective_moves_its_own_parts_only():
    """D first, then the model, then G."""
    objectives = FedADG().phases()[1].objectives
    assert [objective.moves for objective in objectives] == [("discriminator",), ("encoder", "head"), ("generator",)]


def test_without_adversary_and_smoothing_it_is_fedavg(make: Make):
    """Alpha = 1, s = 0, plain SGD: encoder and head take FedAvg's four steps a round."""
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0, "train.steps": 4}
    sizes = {key: value for key, value in small("fedadg").items() if key.startswith("method.")}
    fedavg = simulate(make(plain))
    ours = simulate(make({**plain, **sizes, "method.alpha": 1.0, "method.smoothing": 0.0}))
    for name, tensor in fedavg.coordinator.state.shared.items():
        torch.testing.assert_close(ours.coordinator.state.shared[name], tensor, rtol=1e-4, atol=1e-6)
