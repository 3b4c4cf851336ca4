"""FedIIR's probe, moving mean and second-order penalty by hand, and in a run."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from conftest import Make, at, linear, net_of, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.net import Net
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fediir import FedIIR

GRADIENT = 0.0359724  # of one image z = 2, y = 0, logits (z, -z): p_1 z = 2 / (1 + e^4)


def one_dimensional_net() -> Net:
    """Z = w x with w = 1; logits (z, -z)."""
    return Net({"encoder": linear(1.0), "head": linear(1.0, -1.0)})


def test_the_probe_by_hand():
    """Images x = 2, y = 0 and x = 0, y = 1: the first has the gradient -+0.0359724, the second, with z = 0, none.

    Summed over the batch; the run below divides by the client's samples.
    """
    batch = Batch(torch.tensor([[2.0], [0.0]]), torch.tensor([0, 1]))
    measured = FedIIR().head_gradient(one_dimensional_net(), batch, at())
    assert measured["gradient.head.weight"].flatten().tolist() == pytest.approx([-GRADIENT, GRADIENT], abs=1e-6)


def gradients(*values: float, **more: list[int]) -> Replies:
    ups = [Tensors({"gradient.head.weight": torch.tensor([value])}) for value in values]
    for name, each in more.items():
        ups = [up | {name: torch.tensor(number)} for up, number in zip(ups, each, strict=True)]
    return Replies(enumerate(ups))


def test_the_moving_mean_by_hand():
    """Memory 0.95: g = 0.05 * mean(1, 3) = 0.1, then 0.95 * 0.1 + 0.05 * 4 = 0.295. Other tensors stay."""
    shared, g = Tensors({"head.weight": torch.tensor([7.0])}), Tensors({"invariant.head.weight": torch.zeros(1)})
    state = ServerState(shared, g, clients=2)
    once = FedIIR().merge_probe(state, gradients(1.0, 3.0))
    assert once.down["invariant.head.weight"].item() == pytest.approx(0.1)
    twice = FedIIR().merge_probe(once, gradients(4.0, 4.0))
    assert twice.down["invariant.head.weight"].item() == pytest.approx(0.295)
    assert twice.shared == state.shared
    weighted = FedIIR(ema=0.0).merge_probe(state, gradients(1.0, 3.0, samples=[1, 3]))
    assert weighted.down["invariant.head.weight"].item() == pytest.approx(2.5)  # (1 + 9) / 4


def test_the_penalty_by_hand():
    """One image x = 2, y = 0, lam = 0.5: against g = 0 it is 0.5 * 2 * (q z)^2; against the gradient itself 0.

    q = sigmoid(-2z) = 1 / (1 + e^4) = 0.0179862 and q z = 0.0359724. Its gradient is of second order, through q:
    d/dw = 2 q z (q - 2 q (1 - q) z) * 2 = 4 * 0.0359724 * (0.0179862 - 0.0706508) = -0.0075779, and for the head's
    first row 2 q z * z * -q (1 - q) z = -0.0050830.
    """
    batch = Batch(torch.tensor([[2.0]]), torch.tensor([0]))
    method, net = FedIIR(lam=0.5), one_dimensional_net()
    objective = method.objective("train")
    terms = objective.evaluate(net, batch, at(received={"invariant.head.weight": torch.zeros(2, 1)}))
    assert terms["cross_entropy"].item() == pytest.approx(0.0181499, abs=1e-6)
    assert terms["invariance"].item() == pytest.approx(GRADIENT**2, rel=1e-4)
    of_encoder, of_head = torch.autograd.grad(terms["invariance"], [net.encoder.weight, net.head.weight])
    assert of_encoder.item() == pytest.approx(-0.0075779, abs=1e-6)
    assert of_head.flatten().tolist() == pytest.approx([-0.0050830, 0.0050830], abs=1e-6)
    own = {"invariant.head.weight": method.head_gradient(net, batch, at())["gradient.head.weight"]}
    assert objective.evaluate(net, batch, at(received=own))["invariance"].item() == pytest.approx(0, abs=1e-12)


def test_a_run_stores_the_moving_mean_and_sends_it_at_once(make: Make):
    """Three rounds with memory 0.5, the full-data gradients computed again in float64 at each round's model.

    What is sent to train is g after this round's probe, and g continues from round to round.
    """
    received = []

    class Recorded(FedIIR):
        """Remembers what had arrived at every step of training."""

        def risk(self, net, batch, context):
            received.append(context.received)
            return super().risk(net, batch, context)

    experiment = make({"train.rounds": 3, "evaluate.batch": 10})
    simulation = simulate(experiment.replace(method=Recorded(ema=0.5)))
    g = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in (("weight", (3, 4)), ("bias", (3,)))}
    assert len(received) == 12  # three rounds, two clients, two steps
    for down in received[::4]:
        fresh = net_of(simulation)
        fresh.encoder.load_state_dict(down.of("encoder"))
        encoder, w, b = fresh.encoder.double(), down["head.weight"].double(), down["head.bias"].double()
        means = []
        for client in simulation.federated.clients:
            z = encoder(client.train.x.double()).detach()
            error = ((z @ w.T + b).softmax(dim=1) - F.one_hot(client.train.y, 3)) / len(z)
            means.append({"weight": error.T @ z, "bias": error.sum(dim=0)})
        encoder.float()
        g = {name: 0.5 * old + 0.5 * (means[0][name] + means[1][name]) / 2 for name, old in g.items()}
        for name, expected in g.items():
            torch.testing.assert_close(down[f"invariant.head.{name}"].double(), expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(simulation.coordinator.state.down["invariant.head.bias"], received[-1]["invariant.head.bias"])
