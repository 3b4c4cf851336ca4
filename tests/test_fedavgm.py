"""FedAvgM's server update against numbers derived by hand and a second computation in float64."""

from __future__ import annotations

import pytest
import torch

from fedshift.core.contract import ServerState
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedavgm import FedAvgM


def state(w: float) -> ServerState:
    """One parameter w, one batch-norm statistic of 10, and no velocity yet."""
    shared = Tensors({"encoder.w": torch.tensor([w]), "encoder.running_mean": torch.tensor([10.0])})
    return ServerState(shared, server=Tensors({"velocity.encoder.w": torch.zeros(1)}), clients=2)


def replies(*values: float) -> Replies:
    ups = [Tensors({"encoder.w": torch.tensor([w]), "encoder.running_mean": torch.tensor([w])}) for w in values]
    return Replies(enumerate(ups))


def test_two_rounds_by_hand():
    """Beta = 0.9, w_0 = 1, v_0 = 0.

    Round 1: the mean of 0.5 and 0.7 is 0.6; v = 0.9 * 0 + (1 - 0.6) = 0.4; w = 1 - 0.4 = 0.6.
    Round 2: the mean of 0.3 and 0.5 is 0.4; v = 0.9 * 0.4 + (0.6 - 0.4) = 0.56; w = 0.6 - 0.56 = 0.04.
    The statistic is the mean of what came, 0.4.
    """
    method = FedAvgM(server={"beta": 0.9})
    once = method.merge(state(1.0), replies(0.5, 0.7))
    assert once.shared["encoder.w"].item() == pytest.approx(0.6)
    assert once.server["velocity.encoder.w"].item() == pytest.approx(0.4)
    twice = method.merge(once, replies(0.3, 0.5))
    assert twice.shared["encoder.w"].item() == pytest.approx(0.04, abs=1e-6)
    assert twice.server["velocity.encoder.w"].item() == pytest.approx(0.56)
    assert twice.shared["encoder.running_mean"].item() == pytest.approx(0.4)
