"""What each client keeps between rounds, and the store that holds it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

OptimiserState = dict[str, dict[str, dict[str, Tensor]]]
"""By objective, parameter and kind, such as momentum."""


@dataclass(frozen=True)
class ClientState:
    """A client's own: it never leaves the client.

    Attributes:
        tensors: the tensors of client scope, by full name.
        optimisers: optimiser state that is kept, by objective, parameter and kind.
        drawn: how many batches it has drawn since the start, by stage.
    """

    tensors: dict[str, Tensor]
    optimisers: OptimiserState = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)

    def flat(self) -> dict[str, Tensor]:
        """Everything as named tensors, for a file."""
        flat = {json.dumps(["tensor", name]): tensor for name, tensor in self.tensors.items()}
        flat |= flat_optimisers(self.optimisers)
        return flat | {json.dumps(["drawn", stage]): torch.tensor(count) for stage, count in self.drawn.items()}

    @classmethod
    def from_flat(cls, flat: Mapping[str, Tensor]) -> Self:
        """The inverse of :meth:`flat`."""
        tensors, optimisers, drawn = {}, optimisers_from_flat(flat), {}
        for key, tensor in flat.items():
            match json.loads(key):
                case ["tensor", name]:
                    tensors[name] = tensor
                case ["optimiser", *_]:
                    pass
                case ["drawn", stage]:
                    drawn[stage] = int(tensor)
                case other:
                    raise ValueError(f"A client state holds no {other}.")
        return cls(tensors, optimisers, drawn)


def flat_optimisers(optimisers: OptimiserState) -> dict[str, Tensor]:
    """Optimiser state as named tensors, for a file."""
    return {
        json.dumps(["optimiser", objective, parameter, kind]): tensor
        for objective, parameters in optimisers.items()
        for parameter, kinds in parameters.items()
        for kind, tensor in kinds.items()
    }


def optimisers_from_flat(flat: Mapping[str, Tensor]) -> OptimiserState:
    """The inverse of :func:`flat_optimisers`; other tensors are left alone."""
    optimisers: OptimiserState = {}
    for key, tensor in flat.items():
        match json.loads(key):
            case ["optimiser", objective, parameter, kind]:
                optimisers.setdefault(objective, {}).setdefault(parameter, {})[kind] = tensor
    return optimisers


class ClientStore(Protocol):
    """Client states by client id; a client that never took part has none.

    A state that was put is not changed afterwards, nor is one that was got.
    """

    def begin(self, position: int) -> None:
        """A round begins, after which ``position`` rounds will be done."""

    def get(self, client: int) -> ClientState | None:
        """The state of one client."""

    def peek(self, client: int) -> ClientState | None:
        """As :meth:`get`, for a look that says nothing of which states will be needed."""

    def put(self, client: int, state: ClientState) -> None:
        """Replace the state of one client."""

    def ids(self) -> Sequence[int]:
        """The clients that have a state, sorted; no state is read for that."""

    def __contains__(self, client: int) -> bool:
        """Whether a client has a state; it is not read for that."""

    def items(self) -> Iterator[tuple[int, ClientState]]:
        """Every client that has a state, in id order, one at a time."""


class MemoryStore:
    """A store in memory, for runs without a folder."""

    def __init__(self) -> None:
        self._states: dict[int, ClientState] = {}

    def begin(self, position: int) -> None:
        """Nothing depends on it."""

    def get(self, client: int) -> ClientState | None:
        """The state of one client."""
        return self._states.get(client)

    def peek(self, client: int) -> ClientState | None:
        """The state of one client."""
        return self._states.get(client)

    def put(self, client: int, state: ClientState) -> None:
        """Replace the state of one client."""
        self._states[client] = state

    def ids(self) -> Sequence[int]:
        """The clients that have a state, sorted."""
        return sorted(self._states)

    def __contains__(self, client: int) -> bool:
        """Whether a client has a state."""
        return client in self._states

    def items(self) -> Iterator[tuple[int, ClientState]]:
        """Every client that has a state, in id order."""
        return iter(sorted(self._states.items()))
