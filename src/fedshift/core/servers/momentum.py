"""Momentum on the server.

Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual classification, 2019:
v <- beta v + (w - mean_k w_k), w <- w - lr v, with v = 0 at first. It is Reddi et al.'s Algorithm 1 with SGD.

Choices: momentum is the update above; the paper's experiments take Nesterov's form. It is written as
w <- mean_k w_k - beta v_before + (1 - lr) v, which is the same number and makes beta = 0 and lr = 1 the mean to the
last bit. The search holds Client2Vec's grid of beta, which ends at 1 (v never forgets); the paper's ends at 0.997.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedshift.core.contract import ServerState
from fedshift.core.servers.server import ServerOptimiser
from fedshift.core.tensors import Tensors
from fedshift.spec import LearningRate, setting
from fedshift.spec import Momentum as Factor


class Momentum(ServerOptimiser):
    """The server goes on in the direction of past rounds; beta = 0 and lr = 1 is the mean."""

    beta: Factor = setting(0.9, help="server momentum", source="the momentum update of v", search=(0.1, 0.5, 1.0))
    lr: LearningRate = setting(1.0, help="the server's learning rate", source="Reddi et al., Algorithm 1: eta")

    def starts(self) -> Mapping[str, float]:
        """The velocity v."""
        return {"velocity": 0.0}

    def step(self, state: ServerState, mean: Tensors) -> Tensors:
        """With m = mean_k w_k: v <- beta v + (w - m) and w <- w - lr v."""
        carried = self.beta * self.kept(state, "velocity")
        velocity = carried + (state.shared - mean)
        return (mean - carried) + (1 - self.lr) * velocity | velocity.under("velocity")
