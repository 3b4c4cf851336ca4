"""FedSDR's dependence, personal loss, environments and merge by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import Make, at, losses, simulate
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Client, joined
from fedshift.core.contract import Batch, ServerState
from fedshift.core.net import Net
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedsdr import EnvironmentHead, FedSDR, dependence
from fedshift.runs import simulation as simulation_module
from fedshift.runs.simulation import Simulation
from refusal import refuses

# The dependence -----------------------------------------------------------------------------------

U = torch.tensor([1.0, 1.0, -1.0, -1.0])
V = torch.tensor([1.0, -1.0, 1.0, -1.0])  # uncorrelated with U
ONE_CLASS = torch.zeros(4, dtype=torch.int64)


def test_the_dependence_by_hand():
    """Four samples of one class with every pair of signs (u, v).

    phi = (u, 0), psi = (0, v): the covariance is 0. phi = (u, v), psi = (v, 0): ||Cov(phi, psi)||^2 = 1,
    ||Cov(phi, phi)||^2 = 2, ||Cov(psi, psi)||^2 = 1: 1 / sqrt(2). phi = psi: 1.
    """
    nothing = torch.zeros(4)
    u, v, both = (torch.stack(pair, dim=1) for pair in ((U, nothing), (nothing, V), (U, V)))
    assert dependence(u, v, ONE_CLASS).item() == pytest.approx(0, abs=1e-7)
    assert dependence(both, v.flip(1), ONE_CLASS).item() == pytest.approx(2**-0.5)
    assert dependence(u, u, ONE_CLASS).item() == pytest.approx(1)


def test_classes_do_not_cancel_and_are_no_dependence_themselves():
    """Psi = phi in one class and -phi in the other has no covariance over both, and is as dependent as can be.

    What is constant within classes depends on y alone: 0, although the overall correlation of such features is 1.
    """
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    phi, psi, sign = torch.cat([U, U])[:, None], torch.cat([V, V])[:, None], (1 - 2 * y)[:, None]
    assert (phi * sign * phi).mean() == 0
    assert dependence(phi, sign * phi, y).item() == pytest.approx(1)
    assert dependence(phi + 10 * sign, psi - 10 * sign, y).item() == pytest.approx(0, abs=1e-7)
    assert dependence(sign.float(), sign.float(), y).item() == 0


@given(st.integers(0, 1000), st.floats(1e-2, 1e2), st.integers(1, 4))
def test_it_is_between_0_and_1_and_knows_no_scale(seed: int, scale: float, classes: int):
    generator = torch.Generator().manual_seed(seed)
    phi, psi = (torch.randn(12, d, generator=generator, dtype=torch.float64) for d in (3, 5))
    y = torch.randint(classes, (12,), generator=generator)
    value = dependence(phi, psi, y).item()
    assert 0 <= value <= 1 + 1e-12
    assert dependence(scale * phi + 3, psi, y).item() == pytest.approx(value)
    assert dependence(psi, phi, y).item() == pytest.approx(value)


def test_features_that_are_constant_within_classes_have_a_finite_gradient():
    y = torch.tensor([0, 0, 1, 1])
    for phi, psi in ((torch.zeros(4, 2), torch.randn(4, 2)), (torch.randn(4, 2), torch.zeros(4, 2))):
        phi.requires_grad_()
        dependence(phi, psi, y).backward()
        assert phi.grad is not None
        assert not phi.grad.any()


def test_the_personal_loss_by_hand():
    """Phi(x) = Psi(x) = x, logits (0, u + v), and e(Psi(x), 1) = (0, v), of four samples (u, v) of class 1; lam = 3.

    Logits u + v are 2, 0, 0, -2: CE = (log(1 + e^-2) + 2 log 2 + log(1 + e^2)) / 4 = 0.9100376. Within the class
    ||Cov(logits, e)||^2 = E[(u + v) v]^2 = 1, of the logits with themselves E[(u + v)^2]^2 = 4, of e 1: D = 1/2; of
    the logits with Psi it would be 2 / sqrt(8). In round 1 there is no D.
    """
    head, psi, e = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), EnvironmentHead(2, 2, 2)
    head.weight.data = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    net = Net({"personal_encoder": nn.Identity(), "personal_head": head, "shortcut": psi, "environment_head": e})
    batch = Batch(torch.stack([U, V], dim=1), ONE_CLASS + 1)
    received = {
        "shortcut.weight": torch.eye(2),
        "environment_head.of_each.weight": torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]),
        "environment_head.of_each.bias": torch.zeros(4),
    }
    method = FedSDR(lam=3.0)
    terms = losses(method.personal_terms(), net, batch, at(round=2, rounds=2, received=received))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"personal": 0.9100376, "dependence": 1.5}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert head.weight.grad is not None
    assert psi.weight.grad is None
    assert losses(method.personal_terms(), net, batch, at(received=received)).keys() == {"personal"}


def test_removal_takes_a_known_shortcut_out_of_the_personal_model():
    """Plain training (round 1) leans on v, which agrees with y at 95%, as the cause u is noisy; removal does not."""
    generator = torch.Generator().manual_seed(95)
    y = torch.randint(2, (400,), generator=generator)
    agrees, sign = torch.rand(400, generator=generator) < 0.95, 2.0 * y - 1
    x = torch.stack([sign, sign * (2.0 * agrees - 1)], dim=1) + 0.5 * torch.randn(400, 2, generator=generator)
    x[:, 0] += torch.randn(400, generator=torch.Generator().manual_seed(5))
    received = {  # Psi(x) = v, and e = (0, v) in either class
        "shortcut.weight": torch.tensor([[0.0, 1.0]]),
        "environment_head.of_each.weight": torch.tensor([[0.0], [1.0], [0.0], [1.0]]),
        "environment_head.of_each.bias": torch.zeros(4),
    }
    leans = []
    for round in (1, 2):
        encoder, head, psi = nn.Linear(2, 1), nn.Linear(1, 2), nn.Linear(2, 1, bias=False)
        encoder.weight.data, head.weight.data = torch.ones(1, 2), torch.tensor([[-1.0], [1.0]])
        parts = {"shortcut": psi, "environment_head": EnvironmentHead(1, 2, 2)}
        net = Net({"personal_encoder": encoder, "personal_head": head, **parts})
        optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.02)
        for _ in range(300):
            optimiser.zero_grad()
            context = at(round=round, rounds=2, received=received)
            sum(losses(FedSDR(lam=10.0).personal_terms(), net, Batch(x, y), context).values()).backward()
            optimiser.step()
        cause, shortcut = encoder.weight.data.flatten().abs().tolist()
        leans.append(shortcut / cause)
    assert leans[0] > 1
    assert leans[1] < 0.1


# Environments -------------------------------------------------------------------------------------


def test_the_environment_loss_by_hand():
    """Psi(x) = x; two classes and two environments, e's rows by (class, environment): (1, -1), (0, 2), no bias.

    x = 1 of class 0 in environment 1: logits (1, -1), -log p = log(1 + e^2) = 2.1269280. x = 0.5 of class 1 in
    environment 1: logits (0, 1), log(1 + e^-1) = 0.3132617. Mean 1.2200949.
    """
    encoder, head = nn.Identity(), EnvironmentHead(1, 2, 2)
    head.of_each.weight.data = torch.tensor([[1.0], [-1.0], [0.0], [2.0]])
    head.of_each.bias.data.zero_()
    batch = Batch(
        torch.tensor([[1.0], [0.5]]), torch.tensor([0, 1]), environment=torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    )
    risk = FedSDR().environment_risk(Net({"shortcut": encoder, "environment_head": head}), batch, at())
    assert risk.item() == pytest.approx(1.2200949, abs=1e-6)


def test_each_environment_weighs_the_same_in_the_shortcut_model():
    """Clients 0 and 1 are of environment 0, client 2 of environment 1, client 3 half of each.

    Environment 0 is kept 1 + 1 + 1/2, environment 1 by 1 + 1/2: weights 2/5, 2/5, 2/3 and 1/5 + 1/3 = 8/15, in all 2.
    Psi: (2/5 * 1 + 2/5 * 3 + 2/3 * 6 + 8/15 * 15) / 2 = (0.4 + 1.2 + 4 + 8) / 2 = 6.8; the model's plain mean 25 / 4.
    """
    shares = [(1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    ups = [
        Tensors({"head.w": torch.tensor(w), "shortcut.w": torch.tensor(w), "environments": torch.tensor(share)})
        for w, share in zip((1.0, 3.0, 6.0, 15.0), shares, strict=True)
    ]
    state = ServerState(Tensors({"head.w": torch.tensor(0.0), "shortcut.w": torch.tensor(0.0)}), clients=4)
    merged = FedSDR().merge(state, Replies(enumerate(ups)))
    assert merged.shared["head.w"].item() == pytest.approx(6.25)
    assert merged.shared["shortcut.w"].item() == pytest.approx(6.8)
    weighed = FedSDR().merge(state, Replies(enumerate(up | {"samples": torch.tensor(7)} for up in ups)))
    assert weighed.shared["shortcut.w"].item() == pytest.approx(6.8)


def across_domains(federation: FederatedData) -> FederatedData:
    """Two clients: one with all samples of two domains, one with those of the third."""
    one, two, three = federation.clients
    both = Client(0, "both", "both", joined([one.train, two.train]))
    clients = (both, replace(three, id=1))
    environments = tuple(replace(each, client=0 if each.client in (0, 1) else 1) for each in federation.environments)
    return replace(federation, clients=clients, environments=environments)


def test_a_client_may_have_several_environments(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A client of two domains sends halves, and its batches in the discovery are of both."""
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    ups: dict[int, list[float]] = {}

    class Watched(FedSDR):
        """Notes the environments of batches and of replies."""

        def environment_risk(self, net, batch, context):
            seen[int(context.client)] |= set(batch.environment.argmax(dim=1).tolist())
            return super().environment_risk(net, batch, context)

        def merge(self, state, replies):
            ups.update({client: up["environments"].tolist() for client, up in replies})
            return super().merge(state, replies)

    made = simulation_module.make_federated
    monkeypatch.setattr(simulation_module, "make_federated", lambda *given: across_domains(made(*given)))
    experiment = make({"method.name": "fedsdr", "protocol": {"name": "in-domain"}, "train.batch": 16})
    simulate(experiment.replace(method=Watched()))
    assert ups == {0: [0.5, 0.5, 0.0], 1: [0.0, 0.0, 1.0]}
    assert seen == {0: {0, 1}, 1: {2}}


def test_a_single_environment_is_refused_with_the_fix(make: Make):
    model = replace(Simulation(make()).setup.model, environments=1)
    with refuses("FedSDR", "train in a single", "data.train_p"):
        FedSDR().parts(model)
