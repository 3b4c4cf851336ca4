"""Random streams keyed by purpose, so that no engine can change a result.

fedshift never draws from a global generator: a draw is named by (seed, purpose, key), for example ("batches", client,
epoch), and is the same in every engine and order. Third-party code that needs global generators is lent a stream.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Key = int | str


@dataclass(frozen=True)
class Streams:
    """The random streams of a run."""

    seed: int

    def generator(self, purpose: str, *key: Key) -> torch.Generator:
        """A fresh CPU generator for a purpose and key; equal arguments give equal draws."""
        name = repr((self.seed, purpose, *key)).encode()
        state = int.from_bytes(blake2b(name, digest_size=8).digest(), "little", signed=True)
        return torch.Generator().manual_seed(state)

    def permutation(self, n: int, purpose: str, *key: Key) -> Tensor:
        """A random order of 0..n-1, int64 of shape (n,)."""
        return torch.randperm(n, generator=self.generator(purpose, *key))

    @contextmanager
    def as_global(self, purpose: str, *key: Key, device: torch.device | None = None) -> Iterator[None]:
        """Seed the global generators of torch, NumPy and Python within this context, then restore them.

        Args:
            purpose: what is drawn.
            key: the draw's key.
            device: a CUDA device whose generator is seeded as well.
        """
        generator = self.generator(purpose, *key)
        devices = _with_generators(device)
        python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the global generator
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(generator.get_state())
            for each in devices:
                torch.cuda.set_rng_state(torch.Generator(each).manual_seed(generator.initial_seed()).get_state(), each)
            small = generator.initial_seed() % 2**32  # as NumPy wants it
            random.seed(small)
            np.random.seed(small)  # noqa: NPY002
            try:
                yield
            finally:
                random.setstate(python)
                np.random.set_state(legacy)  # noqa: NPY002


def _with_generators(device: torch.device | None) -> list[torch.device]:
    return [device] if device is not None and device.type == "cuda" else []


def global_states(device: torch.device) -> list[object]:
    """The states of the global generators, including the device's; equal as long as nothing is drawn."""
    torchs = [torch.get_rng_state(), *(torch.cuda.get_rng_state(each) for each in _with_generators(device))]
    numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return [random.getstate(), numpy["pos"], numpy["key"].tobytes(), *(state.numpy().tobytes() for state in torchs)]


@dataclass(frozen=True)
class Draw:
    """A random tensor that an objective or a prediction needs, drawn outside it so that it stays pure."""

    shape: tuple[int, ...]
    kind: Literal["normal", "uniform", "integers"] = "normal"
    high: int = 0

    def sample(self, generator: torch.Generator, device: torch.device) -> Tensor:
        """Draw on the CPU, then move: the device must not change the numbers."""
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
    return {name: draw.sample(generator, device) for name, draw in draws.items()}
