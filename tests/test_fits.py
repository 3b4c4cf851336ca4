"""Models that cannot fit are refused before they are made; those that cannot be asked are made as ever."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import Make
from fedshift import memory
from fedshift.core.model import COPIES, Model, ModelBuilder, Shape
from fedshift.models.small import MLP
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams
from refusal import refuses


def builder(model: Model) -> ModelBuilder:
    return ModelBuilder(model, (3, 8, 8), 4, Streams(0), 2)


def test_a_model_that_cannot_fit_is_refused_before_it_is_made(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with refuses("encoder", "MLP", "memory is free", "model.dim"):
        Simulation(make({"model.hidden": [10**4], "model.dim": 65536}))


@given(dim=st.integers(1, 64), hidden=st.lists(st.integers(1, 64), max_size=3))
def test_exactly_what_fits_is_made(dim: int, hidden: list[int]):
    """The bytes that are asked for are those of the tensors, so many times, whatever the network's widths."""
    model = MLP(dim=dim, hidden=tuple(hidden))
    needed = COPIES * sum(tensor.nbytes for tensor in builder(model).encoder().state_dict().values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: needed)
        builder(model).encoder()
        patch.setattr(memory, "available", lambda: needed - 1)
        with refuses("memory is free", "model.dim"):
            builder(model).encoder()


@pytest.mark.parametrize(
    ("name", "samples"), [("train.batch", 27), ("evaluate.batch", 30)], ids=["a training batch", "an evaluation batch"]
)
def test_a_batch_that_cannot_fit_is_refused_with_its_setting(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, samples: int
):
    """A batch has no more samples than there are to draw from, whatever is asked for."""
    monkeypatch.setattr(memory, "available", lambda: samples * 400 - 1)
    with refuses(f"{samples} samples", "(1, 10, 10)", f"Lower {name}"):
        Simulation(make({"train.batch": 1, "evaluate.batch": 1, name: 2**20}))


class Odd(Model):
    """A plugin's model, which asks its own weight a question that has no answer without memory."""

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        layer = nn.Linear(shape[0] * shape[1] * shape[2], out)
        self.__dict__["largest"] = float(layer.weight.abs().max())
        return nn.Sequential(nn.Flatten(), layer)


def test_a_module_that_cannot_be_asked_is_made_as_ever():
    odd = Odd(dim=4)
    assert builder(odd).encoder()[1].weight.abs().max() == odd.__dict__["largest"]  # type: ignore[index]


def test_asking_changes_no_initial_value_and_no_generator(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_rng_state()
    made = builder(MLP(dim=4)).encoder().state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(ModelBuilder, "_check_fits", lambda self, role, build: None)
    unasked = builder(MLP(dim=4)).encoder().state_dict()
    assert all(torch.equal(made[name], unasked[name]) for name in unasked)
