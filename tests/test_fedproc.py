"""FedProc's contrast, weight and prototypes by hand, and one round of a run computed again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import CNN_WITH_BN, Make, at, linear, net_of, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.classes import SUMS
from fedshift.methods.fedproc import FedProc, prototype_contrast


def test_the_contrast_by_hand():
    """Prototypes (2, 0) and (0, 3), z = (5, 0), tau = 0.5: similarities over tau are 2 and 0.

    For y = 0 it is log(1 + e^-2) = 0.1269280, for y = 1 log(1 + e^2) = 2.1269280. Without the positive in the sum,
    0 - 2 = -2 and 2 - 0 = 2. The gradient for y = 0 is across z alone: d cos(z, c)/dz = (c - cos z)/|z|, so
    e^0 / (e^2 + e^0) / 0.5 * (0, 1) / 5 = (0, 0.0476812).
    """
    z = torch.tensor([[5.0, 0.0], [5.0, 0.0]], requires_grad=True)
    y, prototypes, known = torch.tensor([0, 1]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.ones(2).bool()
    ours = prototype_contrast(z, y, prototypes, known, 0.5, "all")
    assert ours.tolist() == pytest.approx([0.1269280, 2.1269280], abs=1e-6)
    assert prototype_contrast(z, y, prototypes, known, 0.5, "others").tolist() == pytest.approx([-2.0, 2.0])
    ours[0].backward()
    assert z.grad[0].tolist() == pytest.approx([0, 0.0476812], abs=1e-6)


def net(counts: list[int]) -> Net:
    """Z = x; logits (z_0, z_1, 0); prototypes (2, 0) and (0, 3), and none of class 2."""
    prototypes = holder({"value": torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])})
    parts = {"encoder": nn.Identity(), "head": linear([1.0, 0.0], [0.0, 1.0], [0.0, 0.0]), "prototypes": prototypes}
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


def test_it_is_the_cross_entropy_alone_until_there_are_prototypes():
    """Of representations of length 1, whatever the round."""
    batch = Batch(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1, 0]))
    fresh = net([0, 0, 0])
    terms = FedProc(projection="none").objective("train").evaluate(fresh, batch, at(round=2, rounds=9))
    assert terms["prototypical"].item() == 0
    risk = F.cross_entropy(fresh.head(F.normalize(batch.x, dim=1)), batch.y)
    torch.testing.assert_close(terms["cross_entropy"], risk)


def test_prototypes_are_merged_by_class_count():
    """test_classes.py has the means; the models' mean is uniform: (1 + 4) / 2."""
    ups = [([[6.0], [0.0]], [3, 0], 1.0), ([[2.0], [8.0]], [1, 2], 4.0)]
    replies = Replies(
        (k, Up({SUMS: torch.tensor(sums), "class_counts.value": torch.tensor(counts), "w": torch.tensor(w)}))
        for k, (sums, counts, w) in enumerate(ups)
    )
    down = {"prototypes.value": torch.tensor([[9.0], [9.0]]), "class_counts.value": torch.tensor([8, 8])}
    state = FedProc().merge(ServerState(Tensors({"w": torch.tensor(0.0)}), Tensors(down)), replies)
    assert state.down["prototypes.value"].tolist() == [[2.0], [4.0]]
    assert state.down["class_counts.value"].tolist() == [4, 2]
    assert state.shared["w"].item() == 2.5


@pytest.mark.parametrize("changes", [{}, {"projection": "mlp"}, {"unit_length": False}])
def test_one_round_computed_again(make: Make, changes: dict[str, Any]):
    """What a client sends is the sum of its trained model's representations, in evaluation mode, sample by sample."""
    arrived: list[Up] = []

    class Watched(FedProc):
        def merge(self, state, replies):
            arrived.extend(up for _, up in replies)
            return super().merge(state, replies)

    method = Watched(projection_dim=5, **changes)
    simulation = simulate(make(CNN_WITH_BN).replace(method=method), rounds=1)
    total, in_use = 0, net_of(simulation)
    for client, up in zip(simulation.federated.clients, arrived, strict=True):
        for part in method.moves():
            in_use.parts[part].load_state_dict(dict(up.of(part)))
            in_use.parts[part].eval()
        own = torch.zeros_like(up[SUMS])
        for x, y in zip(client.train.x, client.train.y, strict=True):
            with torch.no_grad():
                own[y] += method.encode(in_use, Batch(x.unsqueeze(0)), {}).z[0]
        torch.testing.assert_close(up[SUMS], own, rtol=1e-4, atol=1e-5)
        total += own
    down = simulation.coordinator.state.down
    counts = torch.cat([client.train.y for client in simulation.federated.clients]).bincount()
    torch.testing.assert_close(down["prototypes.value"], total / counts.unsqueeze(1), rtol=1e-4, atol=1e-5)
    assert torch.equal(down["class_counts.value"], counts)
