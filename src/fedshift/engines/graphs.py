"""A training step as a CUDA graph: one launch, where launching many small kernels takes most of the time.

The first step runs normally, so that libraries and optimisers allocate. The second is recorded, and then the recording
is replayed on the same memory, into which each step's batches and noise are copied. What stays constant within a round
(the Down, the round's number) is part of the recording, which lives as long as the clients' tensors do: a round.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Replayable(Protocol):
    """The inputs of a step."""

    @property
    def changing(self) -> list[Tensor]:
        """The tensors that change in every step."""

    def copied(self) -> Self:
        """The same, with separate memory for these."""


Step = Callable[[Any], list[Tensor]]


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's garbage collection: freeing an earlier graph or its memory would spoil a recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class CudaRecording:
    """A function's work on the current CUDA device, recorded without running it."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with uncollected(), torch.cuda.graph(self._graph):
            self.output = function()

    def replay(self) -> None:
        """Repeat the work, which overwrites the output."""
        self._graph.replay()


def replayed(step: Step, record: type[CudaRecording] = CudaRecording) -> Step:
    """The same step, recorded on its second call; it must write to tensors that stay in place."""
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
