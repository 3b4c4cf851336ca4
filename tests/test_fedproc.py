"""FedProc's contrast, weight and prototypes by hand, and one round of a run computed again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import CNN_WITH_BN, Make, at, net_of, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedproc import SUMS, FedProc, prototypical
from fedshift.runs.simulation import Simulation

X, Y = [1.0, 0.0], [0.0, 1.0]


def test_the_contrast_by_hand():
    """Prototypes (2, 0) and (0, 3), z = (5, 0), tau = 0.5: similarities over tau are 2 and 0.

    For y = 0 it is log(1 + e^-2) = 0.1269280, for y = 1 log(1 + e^2) = 2.1269280. Without the positive in the sum,
    0 - 2 = -2 and 2 - 0 = 2. The gradient for y = 0 is across z alone: d cos(z, c)/dz = (c - cos z)/|z|, so
    e^0 / (e^2 + e^0) / 0.5 * (0, 1) / 5 = (0, 0.0476812).
    """
    z = torch.tensor([[5.0, 0.0], [5.0, 0.0]], requires_grad=True)
    y, prototypes, known = torch.tensor([0, 1]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.ones(2).bool()
    ours = prototypical(z, y, prototypes, known, 0.5, "all")
    assert ours.tolist() == pytest.approx([0.1269280, 2.1269280], abs=1e-6)
    assert prototypical(z, y, prototypes, known, 0.5, "others").tolist() == pytest.approx([-2.0, 2.0])
    ours[0].backward()
    assert z.grad[0].tolist() == pytest.approx([0, 0.0476812], abs=1e-6)


@pytest.mark.parametrize("denominator", ["all", "others"])
@pytest.mark.parametrize("known", [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]])
def test_prototypes_that_are_not_there_are_in_no_sum(denominator: str, known: list[int]):
    """Values and gradients are finite, and equal a loop over the classes that have a prototype."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    prototypes = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    there = torch.tensor(known).bool()
    prototypes = prototypes * there.unsqueeze(1)
    ours = prototypical(z, torch.arange(3), prototypes, there, 0.3, denominator)
    ours.sum().backward()
    assert ours.isfinite().all() and z.grad.isfinite().all()
    for y in range(3):
        if not known[y]:
            continue  # of no use: its weight is 0
        similarity = {c: F.cosine_similarity(z[y], prototypes[c], dim=0).item() / 0.3 for c in range(3) if known[c]}
        among = [value for c, value in similarity.items() if denominator == "all" or c != y]
        expected = math.log(sum(map(math.exp, among))) - similarity[y] if among else 0.0
        assert ours[y].item() == pytest.approx(expected, abs=1e-12)


def net(counts: list[int]) -> Net:
    """Z = x; logits (z_0, z_1, 0); prototypes (2, 0) and (0, 3), and none of class 2."""
    head = nn.Linear(2, 3, bias=False)
    head.weight.data = torch.tensor([X, Y, [0.0, 0.0]])
    prototypes = holder({"value": torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])})
    parts = {"encoder": nn.Identity(), "head": head, "prototypes": prototypes}
    return Net({**parts, "class_counts": holder({"value": torch.tensor(counts)})})


def test_the_loss_by_hand():
    """Images (4, 0) of class 0 and (0, 2) of class 2, which are (1, 0) and (0, 1) at length 1; t = 1 of T = 4.

    a = 1 - 1/4 for the first; the second's class has no prototype, so it has its cross-entropy alone.
    Logits (1, 0, 0): CE = log(e + 2) - 1 = 0.5514447. Logits (0, 1, 0) for class 2: log(e + 2) = 1.5514447.
    cross_entropy = (0.25 * 0.5514447 + 1.5514447) / 2 = 0.8446530.
    prototypical = 0.75 * log(1 + e^-2) / 2 = 0.75 * 0.1269280 / 2 = 0.0475980.
    """
    batch = Batch(torch.tensor([[4.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 2]))
    objective = FedProc(projection="none").objective("train")
    terms = objective.evaluate(net([3, 1, 0]), batch, at(round=1, rounds=4))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.8446530, "prototypical": 0.0475980}, abs=1e-6
    )


@pytest.mark.parametrize(("t", "a"), [(1, 0.75), (2, 0.5), (3, 0.25), (4, 0.0)])
def test_the_weight_is_one_less_the_part_of_the_rounds_that_passed(t: int, a: float):
    """One image (1, 0) of class 0: CE = 0.5514447, L_proto = 0.1269280."""
    batch = Batch(torch.tensor([X]), torch.tensor([0]))
    terms = FedProc(projection="none").objective("train").evaluate(net([3, 1, 0]), batch, at(round=t, rounds=4))
    assert terms["cross_entropy"].item() == pytest.approx((1 - a) * 0.5514447, abs=1e-6)
    assert terms["prototypical"].item() == pytest.approx(a * 0.1269280, abs=1e-6)


def test_it_is_the_cross_entropy_alone_until_there_are_prototypes():
    """To the bit, gradients included, whatever the round."""
    batch = Batch(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1, 0]))
    fresh = net([0, 0, 0])
    terms = FedProc(projection="none").objective("train").evaluate(fresh, batch, at(round=2, rounds=9))
    assert terms["prototypical"].item() == 0
    sum(terms.values()).backward()
    weight = fresh.head.weight.detach().clone().requires_grad_()
    risk = F.cross_entropy(F.linear(F.normalize(batch.x, dim=1), weight), batch.y)
    risk.backward()
    torch.testing.assert_close(terms["cross_entropy"], risk)
    torch.testing.assert_close(fresh.head.weight.grad, weight.grad)


def test_prototypes_are_merged_by_class_count():
    """Four classes, two clients.

    Class 0: three samples with the sum (3, 6) and one with (5, 2): (8, 8) / 4 = (2, 2); the mean of their means (1, 2)
    and (5, 2) would be (3, 2). Class 1: two samples of the second client alone, (2, 4) / 2. Class 2: nobody's now, so
    (7, 7) of five samples stays. Class 3: nobody's ever, so zeros stay. The models' mean is uniform: (1 + 4) / 2.
    """
    ups = [
        ([[3.0, 6.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [3, 0, 0, 0], 1.0),
        ([[5.0, 2.0], [2.0, 4.0], [0.0, 0.0], [0.0, 0.0]], [1, 2, 0, 0], 4.0),
    ]
    replies = Replies(
        (k, Up({SUMS: torch.tensor(sums), "class_counts.value": torch.tensor(counts), "w": torch.tensor(w)}))
        for k, (sums, counts, w) in enumerate(ups)
    )
    before = torch.tensor([[9.0, 9.0], [9.0, 9.0], [7.0, 7.0], [0.0, 0.0]])
    down = {"prototypes.value": before, "class_counts.value": torch.tensor([8, 8, 5, 0])}
    state = FedProc().merge(ServerState(Tensors({"w": torch.tensor(0.0)}), Tensors(down)), replies)
    assert state.down["prototypes.value"].tolist() == [[2.0, 2.0], [1.0, 2.0], [7.0, 7.0], [0.0, 0.0]]
    assert state.down["class_counts.value"].tolist() == [4, 2, 5, 0]
    assert state.shared["w"].item() == 2.5


@pytest.mark.parametrize("changes", [{}, {"projection": "none"}, {"unit_length": False}])
def test_one_round_computed_again(make: Make, changes: dict[str, Any]):
    """What a client sends is the sum of its trained model's representations, in evaluation mode, sample by sample."""
    seen: dict[str, Any] = {}

    class Watched(FedProc):
        def merge(self, state, replies):
            seen["replies"] = replies
            return super().merge(state, replies)

    method = Watched(projection_dim=5, **changes)
    simulation = simulate(make(CNN_WITH_BN).replace(method=method), rounds=1)
    total = torch.zeros_like(simulation.coordinator.state.down["prototypes.value"])
    counts = torch.zeros(3, dtype=torch.int64)
    at_work = net_of(simulation)
    for client, (_, up) in zip(simulation.federated.clients, seen["replies"], strict=True):
        for part in method.moves():
            at_work.parts[part].load_state_dict(dict(up.of(part)))
            at_work.parts[part].eval()
        own = torch.zeros_like(total)
        for x, y in zip(client.train.x, client.train.y, strict=True):
            with torch.no_grad():
                own[y] += method.features(at_work, x.unsqueeze(0))[0]
            counts[y] += 1
        torch.testing.assert_close(up[SUMS], own, rtol=1e-4, atol=1e-5)
        total += own
    down = simulation.coordinator.state.down
    torch.testing.assert_close(down["prototypes.value"], total / counts.unsqueeze(1), rtol=1e-4, atol=1e-5)
    assert torch.equal(down["class_counts.value"], counts)


def test_the_last_of_one_round_is_fedavg_with_a_projection(make: Make):
    """T = 1 has a = 0 and no prototypes: FedAvg with unit length left out and no projection, to the bit."""
    changes = {"train.rounds": 1, "method": {"name": "fedproc", "projection": "none", "unit_length": False}}
    ours, plain = (simulate(make(one)).coordinator.state.shared for one in (changes, {"train.rounds": 1}))
    assert ours.keys() == plain.keys()
    assert all(torch.equal(tensor, plain[name]) for name, tensor in ours.items())


def test_what_is_sent_says_what_it_is(make: Make):
    setup = Simulation(make({"method.name": "fedproc"})).setup
    ((exchange,),) = (stage.exchanges for stage in setup.stages)
    beside = {name: what for name, what in setup.declaration(exchange).categories.items() if what != "model update"}
    assert beside == {"class_sums.value": "statistic", "class_counts.value": "count"}
    assert setup.declaration(exchange).reply["class_sums.value"] == (torch.float32, (3, 256))
    assert setup.declaration(exchange).reply["class_counts.value"] == (torch.int64, (3,))
