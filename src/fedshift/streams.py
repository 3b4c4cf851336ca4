"""Random streams keyed by what they are for, so that no engine can change a result.

Nothing in fedshift draws from a global generator: a draw is named by (seed, purpose, key), for
example ("batches", client, epoch), and is the same whichever engine makes it and in which order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import torch
from torch import Tensor

Key = int | str


@dataclass(frozen=True)
class Streams:
    """All the random streams of one run."""

    seed: int

    def generator(self, purpose: str, *key: Key) -> torch.Generator:
        """A fresh CPU generator for one purpose and key; equal arguments give equal draws."""
        name = repr((self.seed, purpose, *key)).encode()
        state = int.from_bytes(blake2b(name, digest_size=8).digest(), "little", signed=True)
        return torch.Generator().manual_seed(state)

    def permutation(self, n: int, purpose: str, *key: Key) -> Tensor:
        """A random order of 0..n-1, int64 of shape (n,)."""
        return torch.randperm(n, generator=self.generator(purpose, *key))

    @contextmanager
    def as_global(self, purpose: str, *key: Key) -> Iterator[None]:
        """Lend a stream to library code that only knows torch's global generator, then restore it."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.generator(purpose, *key).get_state())
            yield


@dataclass(frozen=True)
class Draw:
    """A random tensor that an objective or a prediction asks for, made outside it so that it stays pure."""

    shape: tuple[int, ...]
    kind: Literal["normal", "uniform", "integers"] = "normal"
    high: int = 0

    def sample(self, generator: torch.Generator, device: torch.device) -> Tensor:
        """Draw on the CPU, then move: a device must not change the numbers."""
        match self.kind:
            case "normal":
                drawn = torch.randn(self.shape, generator=generator)
            case "uniform":
                drawn = torch.rand(self.shape, generator=generator)
            case "integers":
                drawn = torch.randint(self.high, self.shape, generator=generator)
        return drawn.to(device)


Draws = dict[str, Draw]


def sample_draws(draws: Draws, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
    """Sample every named draw from one generator, in the order they are declared."""
    return {name: draw.sample(generator, device) for name, draw in draws.items()}
