"""What each client stores between rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

OptimiserState = dict[str, dict[str, dict[str, Tensor]]]
"""Keyed by objective, parameter and kind, such as momentum."""


@dataclass(frozen=True)
class ClientState:
    """A client's private state, which never leaves the client."""

    tensors: dict[str, Tensor]  # the tensors of client scope, by full name
    optimisers: OptimiserState = field(default_factory=dict)  # stored optimiser state, by objective, parameter and kind
    drawn: dict[str, int] = field(default_factory=dict)  # number of batches drawn since the start, by stage
    trained: bool = True  # whether private values of training, or of an exchange's ``keep``, have been stored

    def flat(self) -> dict[str, Tensor]:
        flat = {json.dumps(["tensor", name]): tensor for name, tensor in self.tensors.items()}
        flat |= flat_optimisers(self.optimisers)
        flat |= {} if self.trained else {json.dumps(["untrained"]): torch.zeros(())}
        return flat | {json.dumps(["drawn", stage]): torch.tensor(count) for stage, count in self.drawn.items()}

    @classmethod
    def from_flat(cls, flat: Mapping[str, Tensor]) -> Self:
        """The inverse of :meth:`flat`."""
        tensors, optimisers, drawn, trained = {}, optimisers_from_flat(flat), {}, True
        for key, tensor in flat.items():
            match json.loads(key):
                case ["tensor", name]:
                    tensors[name] = tensor
                case ["optimiser", *_]:
                    pass
                case ["drawn", stage]:
                    drawn[stage] = int(tensor)
                case ["untrained"]:
                    trained = False
                case other:
                    raise ValueError(f"A client state contains no {other}.")
        return cls(tensors, optimisers, drawn, trained)


def flat_optimisers(optimisers: OptimiserState) -> dict[str, Tensor]:
    return {
        json.dumps(["optimiser", objective, parameter, kind]): tensor
        for objective, parameters in optimisers.items()
        for parameter, kinds in parameters.items()
        for kind, tensor in kinds.items()
    }


def optimisers_from_flat(flat: Mapping[str, Tensor]) -> OptimiserState:
    """The inverse of :func:`flat_optimisers`; other tensors are ignored."""
    optimisers: OptimiserState = {}
    for key, tensor in flat.items():
        match json.loads(key):
            case ["optimiser", objective, parameter, kind]:
                optimisers.setdefault(objective, {}).setdefault(parameter, {})[kind] = tensor
    return optimisers
