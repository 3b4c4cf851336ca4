"""FedRep's two phases by hand, what stays, and without a personal part FedAvg."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from conftest import CNN_WITH_BN, Make, simulate, states
from fedshift.methods.fedrep import FedRep
from quadratics import PLAIN


class Factor(nn.Module):
    """One number w, 1 at first; z is multiplied by it. Given three columns, its logits are those."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w, self.width = nn.Parameter(torch.ones(())), width

    def forward(self, z: Tensor) -> Tensor:
        return self.w * z.flatten(1)[:, : self.width]


def product(net, context):
    """1/2 (h u - c_k)^2 of the encoder's u and the head's h, with c = (3, -1)."""
    return (net.head.w * net.encoder.w - torch.tensor([3.0, -1.0])[context.client]).square() / 2


class Product(FedRep):
    """u is shared and h personal."""

    def parts(self, model):
        return {name: replace(p, module=Factor(3)) for name, p in super().parts(model).items()}

    def risk(self, net, batch, context):
        return product(net, context)


def test_a_round_by_hand(make: Make):
    """Two steps of h, then one of u, of 0.1, from u = h = 1.

    Client 0: h = 1 - 0.1 (1 - 3) = 1.2, then 1.2 - 0.1 (1.2 - 3) = 1.38; u = 1 - 0.1 (1.38 - 3) 1.38 = 1.22356.
    Client 1: h = 1 - 0.1 (1 + 1) = 0.8, then 0.8 - 0.1 (0.8 + 1) = 0.62; u = 1 - 0.1 (0.62 + 1) 0.62 = 0.89956.
    The server: u = (1.22356 + 0.89956) / 2 = 1.06156. It has no h.
    """
    method = Product(head_steps=2, encoder_steps=1, unit="steps")
    simulation = simulate(make({**PLAIN, "train.rounds": 1}).replace(method=method))
    assert set(simulation.coordinator.state.tensors) == {"encoder.w"}
    assert simulation.coordinator.state.shared["encoder.w"].item() == pytest.approx(1.06156, abs=1e-6)
    assert [state.tensors["head.w"].item() for _, state in states(simulation)] == pytest.approx([1.38, 0.62], abs=1e-6)


@pytest.mark.parametrize("bn", ["shared", "local"])
def test_without_a_personal_part_it_is_fedavg_to_the_bit(make: Make, bn: str):
    """Of as many steps: there is nothing to move first, and all that moves then is shared."""
    changes = {"train.rounds": 3, "train.steps": 3, "method.bn": bn, **CNN_WITH_BN}
    nothing = {"method.name": "fedrep", "method.personal": "none", "method.encoder_steps": 3, "method.unit": "steps"}
    ours, plain = simulate(make({**changes, **nothing})), simulate(make(changes))
    one, other = ours.coordinator.state.shared, plain.coordinator.state.shared
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


def test_ten_epochs_of_the_head_and_one_of_the_encoder(make: Make):
    """27 samples in batches of 4 are 6 steps an epoch: 66 steps.

    The encoder moves in the last six alone, so does what its batch norms count.
    """
    simulation = simulate(make({"method.name": "fedrep", **CNN_WITH_BN}), rounds=1)
    assert [state.drawn for _, state in states(simulation)] == [{"train": 66}] * 2
    assert simulation.coordinator.state.shared["encoder.1.num_batches_tracked"].item() == 6
