"""FedAvgM: momentum on the server.

Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual
classification, 2019: v <- beta v + (w_t - mean_k w_k), w_{t+1} = w_t - v, with v = 0 at first.

Choices:

- The server's learning rate is 1, and momentum is the update above; the paper's experiments take Nesterov's form.
- Only trainable parameters have momentum; batch-norm statistics are averaged.
- It is written as w_{t+1} = mean_k w_k - beta v_t, which is the same number and makes beta = 0 FedAvg to the last
  bit.
- The search holds Client2Vec's grid, which ends at 1 (v never forgets); the paper's ends at 0.997.
- The mean that the velocity follows is over the clients that answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedshift.core.contract import Part, ServerState
from fedshift.core.model import ModelBuilder
from fedshift.core.net import mirror
from fedshift.core.tensors import Replies
from fedshift.methods.fedavg import FedAvg
from fedshift.settings.spec import Momentum, setting


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """FedAvg whose server goes on in the direction of past rounds; beta = 0 is FedAvg."""

    paper: ClassVar[str] = "Hsu, Qi and Brown, arXiv:1909.06335, 2019"

    beta: Momentum = setting(0.9, help="server momentum", source="the momentum update of v", search=(0.1, 0.5, 1.0))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, and the velocity v of each parameter on the server."""
        parts = super().parts(model)
        velocity = mirror({name: part.module for name, part in parts.items()})
        return {**parts, "velocity": Part(velocity, "server")}

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """With m = mean_k w_k: w <- m - beta v and v <- beta v + (w - m); tensors without a velocity: the mean."""
        mean, carried = replies.mean(), self.beta * state.server.of("velocity")
        velocity = carried + (state.shared - mean)
        return state.updated(mean | (mean - carried) | velocity.under("velocity"))
