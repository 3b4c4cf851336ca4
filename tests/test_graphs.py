"""Steps that are recorded and replayed; what stands for CUDA's recording does the work when it is replayed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from conftest import CNN_WITH_BN, Make, at, simulate
from fedshift.core.contract import Batch
from fedshift.engines import graphs
from fedshift.engines.banks import SideBySide, Stacked
from fedshift.engines.kernels import Kernels
from fedshift.engines.vectorised import Vectorised
from test_methods import small, tensors_of


class Again(graphs.CudaRecording):
    """As a CUDA graph, it writes each output to the same memory."""

    made: int = 0

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        self.function = function
        self.output: list[Tensor] = []
        Again.made += 1

    def replay(self) -> None:
        output = self.function()
        self.output = [mine.copy_(new) for mine, new in zip(self.output or output, output, strict=True)]


def given(x: Tensor, received: Tensor) -> SideBySide:
    return SideBySide(Mock(received=received), at(), Batch(x, x), {"z": x + 1})


def test_the_second_call_is_recorded_and_later_ones_read_what_they_are_given():
    """X + (x + 1) + w with w = 10: 11 for x = 0, 13 for 1, 15 for 2; the recording sees w where it is."""
    calls: list[Tensor] = []

    def step(now: SideBySide) -> list[Tensor]:
        calls.append(now.batch.x)
        return [now.batch.x + now.noise["z"] + now.bank.received]

    w = torch.tensor([10.0])
    run = graphs.replayed(step, Again)
    outputs = [run(given(torch.tensor([float(k)]), w)) for k in range(4)]
    assert [output.item() for (output,) in outputs] == [11, 13, 15, 17]  # kept outputs are copies
    assert len({x.data_ptr() for x in calls}) == 1


@pytest.mark.parametrize("name", ["fedpin", "fraug"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_replayed_round_is_the_same_round(make: Make, monkeypatch: pytest.MonkeyPatch, name: str, optimiser: str):
    changes: dict[str, Any] = {"train.steps": 4, "train.optimiser": optimiser, "train.lr": 0.01}
    experiment = make(small(name) | CNN_WITH_BN | changes)
    plain = simulate(experiment, engine=Vectorised(Kernels()))
    Again.made = 0
    monkeypatch.setattr(Stacked, "recorded", lambda bank, step: graphs.replayed(step, Again))
    replayed = simulate(experiment, engine=Vectorised(Kernels()))
    assert Again.made >= 2
    mine, theirs = tensors_of(replayed), tensors_of(plain)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_recordings_are_freed_without_garbage_collection(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A graph that is collected while the next is recorded spoils it: CUDA frees nothing during a recording."""
    made: list[weakref.ref[Again]] = []

    class Watched(Again):
        def __init__(self, function: Callable[[], list[Tensor]]) -> None:
            super().__init__(function)
            made.append(weakref.ref(self))

    monkeypatch.setattr(Stacked, "recorded", lambda bank, step: graphs.replayed(step, Watched))
    with graphs.uncollected():
        simulate(make(small("fedsr") | {"train.steps": 4}), engine=Vectorised(Kernels()))
        assert made
        assert not [each for each in made if each() is not None]


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_collection_pauses_and_is_as_before(collects: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gc, "isenabled", lambda: collects)
    calls: list[str] = []
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))
    with pytest.raises(RuntimeError), graphs.uncollected():
        assert calls == ["disable"]
        raise RuntimeError
    assert calls == ["disable", "enable"] if collects else ["disable"]
