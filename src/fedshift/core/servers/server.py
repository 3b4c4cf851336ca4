"""Server optimisers: their base, the plain mean, and momentum.

Reddi et al., Adaptive federated optimization, ICLR 2021, Algorithm 1 (FedOpt): with w the model that clients received
and mean_k w_k their mean, Delta = mean_k w_k - w replaces the negative gradient of any optimiser. Buffers, such as
batch-norm statistics, are the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from fedshift.core.contract import Part, ServerState
from fedshift.core.net import Net
from fedshift.core.tensors import Tensors
from fedshift.errors import FedshiftError
from fedshift.spec import LearningRate, Spec, setting
from fedshift.spec import Momentum as Factor


class ServerOptimiser(Spec):
    """How the server moves the global model, given the mean of its clients' models."""

    section: ClassVar[str] = "method.server"

    def starts(self) -> Mapping[str, float]:
        """The parts of the server with one number for every trained parameter, and the initial value."""
        return {}

    def step(self, state: ServerState, mean: Tensors) -> Tensors:
        """What differs from the mean of models, by full name: shared tensors and the optimiser's state."""
        raise NotImplementedError

    def parts(self, parts: Mapping[str, Part]) -> dict[str, Part]:
        """The optimiser's parts beside a method's; a FedshiftError if the method uses their names."""
        shared = {name: part.module for name, part in parts.items() if part.scope == "shared"}
        trained = dict(Net(shared).parameters())
        kept: dict[str, Part] = {}
        for name, start in self.starts().items():
            if name in parts:
                raise FedshiftError(f"The method has a part '{name}', which its server optimiser needs: rename it.")
            kept[name] = Part.state({key: torch.full_like(one, start) for key, one in trained.items()}, "server")
        return kept

    def kept(self, state: ServerState, name: str) -> Tensors:
        """The optimiser's state in a part; a FedshiftError if it is missing."""
        kept = state.server.of(name)
        if not kept:
            raise FedshiftError(
                f"The server has no '{name}' for its optimiser: a method on top of another takes the base's "
                "all_parts(base, model), not its parts()."
            )
        return kept


class Mean(ServerOptimiser):
    """The mean itself is the next model, as FedAvg has it."""

    def step(self, state: ServerState, mean: Tensors) -> Tensors:
        return Tensors()


class Momentum(ServerOptimiser):
    """The server continues in the direction of past rounds; beta = 0 and lr = 1 is the mean.

    Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual classification,
    2019: v <- beta v + (w - mean_k w_k), w <- w - lr v, with v = 0 at first. It is Algorithm 1 with SGD.

    Choices: the paper's experiments take Nesterov's form. The update is computed as
    w <- mean_k w_k - beta v_before + (1 - lr) v, so that beta = 0 and lr = 1 is the mean to the last bit. The search
    contains Client2Vec's grid of beta, which ends at 1 (v never forgets); the paper's ends at 0.997.
    """

    beta: Factor = setting(0.9, help="server momentum", source="the momentum update of v", search=(0.1, 0.5, 1.0))
    lr: LearningRate = setting(1.0, help="the server's learning rate", source="Reddi et al., Algorithm 1: eta")

    def starts(self) -> Mapping[str, float]:
        return {"velocity": 0.0}

    def step(self, state: ServerState, mean: Tensors) -> Tensors:
        """With m = mean_k w_k: v <- beta v + (w - m) and w <- w - lr v."""
        carried = self.beta * self.kept(state, "velocity")
        velocity = carried + (state.shared - mean)
        return (mean - carried) + (1 - self.lr) * velocity | velocity.under("velocity")
