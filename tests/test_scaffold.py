"""SCAFFOLD's correction, both variates and the merge by hand; what it refuses, sends and reveals; who is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, at, first_messages, local_work, simulate, states
from fedshift.core.contract import Batch, LocalWork, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.scaffold import SCAFFOLD
from refusal import refuses

PLAIN: dict[str, Any] = {"train.momentum": 0.0, "train.lr": 0.05, "train.rounds": 3, "method.name": "scaffold"}


def one_image_net() -> tuple[Net, Batch, nn.Parameter]:
    """An image x = 2, y = 0; logits (x, -x), so that CE = log(1 + e^-4), with the gradient (-0.0359724, 0.0359724)."""
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[1.0], [-1.0]])
    modules = {"encoder": nn.Identity(), "head": head}
    own = holder({"head.weight": torch.tensor([[0.5], [2.0]])})
    return Net({**modules, "own_variate": own}), Batch(torch.tensor([[2.0]]), torch.tensor([0])), head.weight


def test_loss_and_gradient_by_hand():
    """With c = (1, 1) and c_k = (0.5, 2): the term is <(0.5, -1), (1, -1)> = 1.5, and its gradient (0.5, -1).

    The gradient of the whole is that of CE - c_k + c: (-0.0359724 + 0.5, 0.0359724 - 1). Option I measures, for two
    such images, twice the gradient of CE alone, without the correction.
    """
    net, batch, w = one_image_net()
    context = at(received={"variate.head.weight": torch.ones(2, 1), "head.weight": w.detach().clone()})
    terms = SCAFFOLD().objective("train").evaluate(net, batch, context)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.0181499, "correction": 1.5}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert w.grad is not None
    assert w.grad.flatten().tolist() == pytest.approx([0.4640276, -0.9640276], abs=1e-6)
    twice = Batch(batch.x.repeat(2, 1), batch.y.repeat(2))
    (measured,) = SCAFFOLD().gradient(net, twice, at()).values()
    assert measured.flatten().tolist() == pytest.approx([-0.0719448, 0.0719448], abs=1e-6)


def work(**measured: float) -> LocalWork:
    """A client with c_k = 0.2, c = 0.5, w_t = 1, w_k = 0.4 after K = 3 steps at 0.1; and a batch norm that stays."""
    sums = {f"gradient.{name}.w": value for name, value in measured.items()}
    down = {"head.w": 1.0, "head.running_mean": 0.0, "variate.head.w": 0.5, "variate.norm.w": 0.0}
    return local_work(
        trained=Tensors({"head.w": torch.tensor(0.4), "head.running_mean": torch.tensor(3.0)}),
        private=Tensors({"own_variate.head.w": torch.tensor(0.2), "own_variate.norm.w": torch.tensor(0.0)}),
        received=Tensors({name: torch.tensor(value) for name, value in down.items()}),
        measured=Tensors({name: torch.tensor(value) for name, value in sums.items()}),
        steps=3,
        seen=dict.fromkeys(sums, 5),
    )


def test_both_variates_by_hand():
    """Option II: 0.2 - 0.5 + 0.6 / 0.3 = 1.7, a change of 1.5. Option I: 8 / 5 samples = 1.6, a change of 1.4.

    What is not sent has neither.
    """
    measured = work(head=8.0, norm=9.0, projector=9.0)
    for method, own, c_k in ((SCAFFOLD(variate="steps"), work(), 1.7), (SCAFFOLD(), measured, 1.6)):
        kept = {name: value.item() for name, value in method.keep(own).items()}
        sent = {name: value.item() for name, value in method.upload(own).items()}
        assert kept == pytest.approx({"own_variate.head.w": c_k, "own_variate.norm.w": 0.0})
        assert sent == pytest.approx({"change.head.w": c_k - 0.2, "change.norm.w": 0.0})


def test_a_merge_by_hand():
    """Two of four clients: w = (0.4 + 0.8) / 2 and c = 0.5 + 2/4 * (1.5 - 0.5) / 2 = 0.75; weighted 1 : 3, w = 0.7."""
    down, shared = Tensors({"variate.head.w": torch.tensor(0.5)}), Tensors({"head.w": torch.tensor(1.0)})
    state = ServerState(shared, down, clients=4)
    ups = [
        Up({"head.w": torch.tensor(w), "change.head.w": torch.tensor(change)})
        for w, change in ((0.4, 1.5), (0.8, -0.5))
    ]
    merged = SCAFFOLD().merge(state, Replies(enumerate(ups)))
    assert merged.shared["head.w"].item() == pytest.approx(0.6)
    assert merged.down["variate.head.w"].item() == pytest.approx(0.75)
    weighted = SCAFFOLD().merge(state, Replies(enumerate(ups), (1.0, 3.0)))
    assert weighted.shared["head.w"].item() == pytest.approx(0.7)
    assert weighted.down["variate.head.w"].item() == pytest.approx(0.5)  # the weighted change is 0


# Runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variate", ["gradient", "steps"])
def test_with_variates_of_zero_it_is_fedavg(make: Make, variate: Any):
    """Every round of clients that keep their zeros, to the bit."""

    class Zero(SCAFFOLD):
        """SCAFFOLD whose variates stay as they are."""

        def new_variate(self, work):
            return work.private.of("own_variate")

    plain = simulate(make({**PLAIN, "method.name": "fedavg"})).coordinator.state.shared
    ours = simulate(make(PLAIN).replace(method=Zero(variate=variate))).coordinator.state.shared
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


@pytest.mark.parametrize("variate", ["gradient", "steps"])
@pytest.mark.parametrize("bn", ["shared", "local"])
def test_c_is_the_mean_of_the_clients_variates(make: Make, variate: str, bn: str):
    """With everybody in every round. A first c_k of option II is (w_0 - w_k) / (K eta); of what stays it is 0."""
    changes = {**PLAIN, **CNN_WITH_BN, "train.precision": "float64", "method.variate": variate, "method.bn": bn}
    simulation = simulate(make(changes))
    c = simulation.coordinator.state.down.of("variate")
    kept = [Tensors(state.tensors).of("own_variate") for _, state in states(simulation)]
    for name, tensor in c.items():
        torch.testing.assert_close(tensor, (kept[0] + kept[1])[name] / 2)
        assert simulation.setup.scopes[name] != "client" or not tensor.any()
    assert c["head.weight"].any()
    first = first_messages(make(changes))
    sent, arrived = first["train", "down"], first["train", "up"]
    if variate == "steps":
        expected = (sent["head.weight"] - arrived["head.weight"]) / (2 * 0.05)
        torch.testing.assert_close(arrived["change.head.weight"], expected)


def test_an_absent_client_stands_still_and_a_late_one_does_not(make: Make):
    """The server's c is the mean of all c_k as long as nobody was late: an absent client's change is none."""
    changes = {**PLAIN, "data.domains": 4, "partition": {"name": "iid", "clients": 2}, "train.precision": "float64"}
    for missing, together in ({"train.absent": 0.4}, True), ({"train.late": 0.4}, False):
        simulation = simulate(make({**changes, **missing}))
        assert simulation.coordinator.missing
        zero = simulation.site.initial
        kept = {client: Tensors(state.tensors) for client, state in states(simulation)}
        every = [kept.get(client, zero).of("own_variate") for client in simulation.coordinator.names]
        mean = torch.stack([own["head.weight"] for own in every]).mean(dim=0)
        c = simulation.coordinator.state.down["variate.head.weight"]
        assert torch.allclose(mean, c, atol=1e-12) == together


# What it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"train.momentum": 0.9}, "train.momentum = 0.9"), ({"train.optimiser": "adam"}, "train.optimiser = 'adam'")],
)
def test_option_two_refuses_what_is_not_plain_sgd(make: Make, changes: dict[str, Any], words: str):
    with refuses(words, "SGD", "train.momentum = 0", "method.variate = 'gradient'"):
        make({**PLAIN, **changes, "method.variate": "steps"}).check()
    make({**PLAIN, **changes}).check()
    make({**PLAIN, "train.weight_decay": 0.1, "method.variate": "steps"}).check()
