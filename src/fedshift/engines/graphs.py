"""A training step as a CUDA graph: launched as one, where launching its small kernels one by one takes the time.

The first step runs as it is, so that libraries and optimisers have what they allocate once. The second is recorded, and
from then on the recording is replayed on the same memory, into which each step's batches and noise are copied. What
stays the same within a round (what was received, the round's number) is part of the recording, which lives as long as
the clients' tensors do: a round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Replayable(Protocol):
    """What a step is given."""

    @property
    def changing(self) -> list[Tensor]:
        """The tensors that are another in every step."""

    def copied(self) -> Self:
        """The same, with memory of its own for these."""


Step = Callable[[Any], list[Tensor]]


class CudaRecording:
    """A function's work on the current CUDA device; recording it does none of it."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            self.output = function()

    def replay(self) -> None:
        """Do the work again; the output is written again."""
        self._graph.replay()


def replayed(step: Step, record: type[CudaRecording] = CudaRecording) -> Step:
    """The same step, recorded when it is called for the second time.

    Args:
        step: a function of what is given, which writes to tensors that stay where they are.
        record: what records work.
    """
    recording: CudaRecording | None = None
    mine: Replayable | None = None

    def run(given: Replayable) -> list[Tensor]:
        nonlocal recording, mine
        if mine is None:
            mine = given.copied()
            return step(mine)
        for own, new in zip(mine.changing, given.changing, strict=True):
            own.copy_(new)
        if recording is None:
            fixed = mine
            recording = record(lambda: step(fixed))
        recording.replay()
        return [tensor.clone() for tensor in recording.output]

    return run
