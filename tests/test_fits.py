"""Models that cannot fit are refused before they are made; those that cannot be asked are made as ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import Make
from fedshift import memory
from fedshift.core.model import COPIES, Model, ModelBuilder, Shape
from fedshift.models import MODELS
from fedshift.models.small import MLP
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams
from refusal import refuses


def builder(model: Model) -> ModelBuilder:
    return ModelBuilder(model, (3, 8, 8), 4, Streams(0), 2)


@pytest.mark.parametrize("changes", [{"model.dim": 65536}, {"model.hidden": [65536, 65536]}], ids=str)
def test_a_model_that_cannot_fit_is_refused_before_it_is_made(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with refuses("encoder", "MLP", "memory is free", "model.dim"):
        Simulation(make({"model.hidden": [10**4], **changes}))


@given(dim=st.integers(1, 64), hidden=st.lists(st.integers(1, 64), max_size=3), short=st.integers(1, 10**4))
def test_exactly_what_fits_is_made(dim: int, hidden: list[int], short: int):
    """The bytes that are asked for are those of the tensors, so many times, whatever the network's widths."""
    model = MLP(dim=dim, hidden=tuple(hidden))
    needed = COPIES * sum(tensor.nbytes for tensor in builder(model).encoder().state_dict().values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: needed)
        builder(model).encoder()
        patch.setattr(memory, "available", lambda: needed - short)
        with refuses("memory is free", "model.dim"):
            builder(model).encoder()


@pytest.mark.parametrize(
    ("name", "samples"), [("train.batch", 27), ("evaluate.batch", 30)], ids=["a training batch", "an evaluation batch"]
)
def test_a_batch_that_cannot_fit_is_refused_with_its_setting(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, samples: int
):
    """A batch has no more samples than there are to draw from, whatever is asked for."""
    refused: list[tuple[int, str]] = []
    monkeypatch.setattr(memory, "check", lambda nbytes, what, fix: refused.append((nbytes, fix)))
    Simulation(make({"train.batch": 1, "evaluate.batch": 1, name: 2**20}))
    sizes = {fix: nbytes for nbytes, fix in refused if fix.startswith("Lower ") and "batch" in fix}
    other = ({"train.batch", "evaluate.batch"} - {name}).pop()
    assert sizes[f"Lower {name}."] == samples * 100 * 4
    assert sizes[f"Lower {other}."] == 100 * 4
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available", lambda: samples * 400 - 1)
    with refuses(f"{samples} samples", "(1, 10, 10)", f"Lower {name}"):
        Simulation(make({"train.batch": 1, "evaluate.batch": 1, name: 2**20}))


class ReadsItself(nn.Linear):
    """Asks its own weight a question while it is made, which has no answer without memory."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out)
        self.largest = float(self.weight.abs().max())


class Odd(Model):
    """A plugin's model that cannot be built without memory."""

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), ReadsItself(shape[0] * shape[1] * shape[2], out))


def test_a_module_that_cannot_be_asked_is_made_as_ever():
    made = builder(Odd(dim=4)).encoder()
    assert made[1].largest == float(made[1].weight.abs().max())  # type: ignore[index]  # a Sequential


def test_asking_changes_no_initial_value_and_no_generator(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_rng_state()
    made = builder(MLP(dim=4)).encoder().state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(ModelBuilder, "_check_fits", lambda self, role, build: None)
    unasked = builder(MLP(dim=4)).encoder().state_dict()
    assert all(torch.equal(made[name], unasked[name]) for name in unasked)


def test_most_models_of_the_catalogue_can_be_asked(monkeypatch: pytest.MonkeyPatch):
    """A network of the catalogue is refused where nothing is free, so it is looked at and not passed by."""
    monkeypatch.setattr(memory, "available", lambda: 0)
    for name in ("mlp", "cnn", "digits-cnn", "cct-7-3x1"):
        with refuses("memory is free", "model.dim"):
            ModelBuilder(MODELS.get(name)(), (3, 32, 32), 4, Streams(0), 2).encoder()
