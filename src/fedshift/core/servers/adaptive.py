"""Adaptive server optimisers: each parameter's step is divided by the size of its past steps.

Reddi et al., Adaptive federated optimization, ICLR 2021, Algorithm 2. With Delta = mean_k w_k - w:

    m <- beta1 m + (1 - beta1) Delta
    v <- v + Delta^2                                     Adagrad
    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)       Yogi
    v <- beta2 v + (1 - beta2) Delta^2                   Adam
    w <- w + lr m / (sqrt(v) + tau)

Choices: m = 0 and v = tau^2 at first, the least that the algorithm allows, with no bias correction, as in the paper.
beta1 = 0.9 (Adagrad: 0), beta2 = 0.99 and tau = 1e-3 are from the paper's experiments; they tune lr for each task over
half powers of ten, so 0.01 is only where a search starts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated

import torch
from annotated_types import Interval

from fedshift.core.contract import ServerState
from fedshift.core.servers.server import ServerOptimiser
from fedshift.core.tensors import Tensors
from fedshift.spec import LearningRate, Positive, Range, setting

Decay = Annotated[float, Interval(ge=0, lt=1)]
FIRST, SECOND = "first_moment", "second_moment"  # m and v


class Adaptive(ServerOptimiser):
    """The base of the three."""

    lr: LearningRate = setting(
        0.01, help="the server's learning rate", source="Algorithm 2: eta", search=Range(1e-3, 1, log=True)
    )
    beta1: Decay = setting(0.9, help="decay of the mean step m", source="Algorithm 2")
    tau: Positive = setting(1e-3, help="adaptivity: added to sqrt(v)", source="Algorithm 2")

    def starts(self) -> Mapping[str, float]:
        return {FIRST: 0.0, SECOND: self.tau**2}

    def step(self, state: ServerState, mean: Tensors) -> Tensors:
        delta = mean - state.shared
        m = self.beta1 * self.kept(state, FIRST) + (1 - self.beta1) * delta
        v = self.second(self.kept(state, SECOND), (delta * delta).only(m))
        w = state.shared + self.lr * (m / (v.map(torch.sqrt) + self.tau))
        return w | m.under(FIRST) | v.under(SECOND)

    @abstractmethod
    def second(self, v: Tensors, squares: Tensors) -> Tensors:
        """The next v, from the last v and Delta^2."""


class ServerAdagrad(Adaptive):
    """Adagrad on the server: steps are divided by the root of the sum of all past squares, so they become smaller."""

    beta1: Decay = setting(0.0, help="decay of the mean step m", source="Algorithm 2; experiments: 0")

    def second(self, v: Tensors, squares: Tensors) -> Tensors:
        return v + squares


class ServerAdam(Adaptive):
    """Adam on the server: the mean of past steps, divided by the root of the running mean of their squares."""

    beta2: Decay = setting(0.99, help="decay of the mean square v", source="Algorithm 2")

    def second(self, v: Tensors, squares: Tensors) -> Tensors:
        return self.beta2 * v + (1 - self.beta2) * squares


class ServerYogi(Adaptive):
    """Yogi on the server: Adam whose mean square falls slowly, so that rare large steps are not forgotten at once."""

    beta2: Decay = setting(0.99, help="how slowly v follows the squares", source="Algorithm 2")

    def second(self, v: Tensors, squares: Tensors) -> Tensors:
        return v - (1 - self.beta2) * (squares * (v - squares).map(torch.sign))
