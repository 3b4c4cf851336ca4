"""What a notebook shows: one output that moves, one message for an error, and a short text for every value."""

from __future__ import annotations

import html
import re
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedshift
from conftest import Make, at, simulate
from fedshift import page
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.runs.events import Progress
from fedshift.runs.simulation import make_federated

LONGEST = 700  # characters; an experiment's changed settings are the most there is


# One display --------------------------------------------------------------------------------------


class Cell:
    """A notebook's cell as IPython's display functions see it: outputs by display id, each replaced by its updates."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        versions = [data]
        self.outputs.append(versions)
        return SimpleNamespace(update=lambda data, raw: versions.append(data))


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """This process as a kernel."""
    cell = Cell()
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None), display=cell)
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]  # it stands for the module
    monkeypatch.setitem(sys.modules, "IPython.display", cell)  # type: ignore[arg-type]  # it stands for the module
    return cell


def test_a_cell_has_one_output_that_moves_and_ends_with_lines(make: Make, cell: Cell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedshift.reporting.live.SECONDS_BETWEEN_DRAWINGS", 0.0)
    comparison = fedshift.compare([make(), make({"seed": 1})])
    (versions,) = cell.outputs
    shown = [version["text/plain"] for version in versions]
    texts = [html.unescape(re.sub(r"<[^>]+>", "", version["text/html"])) for version in versions]
    assert [text.strip() for text in texts] == [text.strip() for text in shown]
    assert any("of 2 rounds" in text for text in shown)
    first, second = shown[-1].splitlines()
    assert first.startswith(f"1/2 {comparison.runs[0].path.name}  done: 8 steps in ")
    assert second.startswith(f"2/2 {comparison.runs[1].path.name}  done: 8 steps in ")


# Errors -------------------------------------------------------------------------------------------


def test_an_error_is_its_message_and_the_traceback_is_there_when_asked_for():
    """IPython calls _render_traceback_ while it handles the error, and %tb calls it again afterwards."""
    error = UnknownNameError("method", "a", ["b"])
    try:
        raise error
    except FedshiftError as caught:
        assert caught._render_traceback_() == [f"UnknownNameError: {error}", "(%tb shows where it was raised.)"]
    later = error._render_traceback_()
    assert later == traceback.format_exception(error)
    assert "raise error" in "".join(later)


# Texts of values ----------------------------------------------------------------------------------


@pytest.fixture
def values(make: Make, tmp_path: Any) -> list[Any]:
    """One of everything that a session in a notebook may come across."""
    experiment = make({"method.name": "client2vec", "method.base": "fediir", "train.lr": 1e-4})
    comparison = fedshift.compare(make(), progress=Progress())
    index = {"name": "dsa-ign", "epochs": 1, "feedforward": 8, "encoder": {"name": "offline", "size": 16}}
    indexed = make({"method": {"name": "client2vec", "index": {**index, "width": 8, "heads": 2}}})
    simulation = simulate(indexed)
    stages = simulation.setup.stages
    exchanges = [exchange for stage in stages for exchange in stage.exchanges]
    phases = [phase for exchange in exchanges for phase in exchange.phases]
    objectives = [one for phase in phases if isinstance(phase, page.Phase) for one in phase.objectives]
    samples = simulation.federated.clients[0].train
    state = simulation.coordinator.state
    ups = [(0, page.Tensors(state.shared)), (1, page.Tensors(state.shared))]
    received = page.Down(state.shared)
    work = page.LocalWork(received, state.shared, torch.tensor([3, 4]), state.shared, state.shared, samples, 5, 0.1)
    streams = simulation.setup.streams
    return [
        *(simulation.setup.model, streams, simulation.federated, simulation.federated.clients[0], samples),
        simulation.federated.environments[0],
        *(experiment, indexed, *comparison.runs, *comparison.rows()),
        *fedshift.estimate(make()),
        *(stages, *stages, *exchanges, *phases, *objectives, *simulation.coordinator.schedule),
        *(state, state.shared, page.Up(state.shared), received, work, page.Replies(ups), page.Replies()),
        *(at(received=state.shared), page.Batch(samples.x, samples.y), page.Part(nn.Linear(3, 3), "down", apart=True)),
        *(exchanges[0].uploads[0], page.Optimiser(clip=1.0), page.Draw((2, 3)), simulation.federated.inputs),
        *(fedshift.index(indexed, progress=Progress()), make_federated(indexed), page.Range(0.1, 1.0)),
        *(indexed.data.load(streams), page.Net({"a": nn.Linear(3, 3)})),
        *(fedshift.Column("sex", ("f", "m")), fedshift.Preparation("site", columns=(fedshift.Column("age"),))),
        fedshift.Unlabelled(samples.x),
        fedshift.Predictions(("well", "ill"), ("a.csv",), (0,), torch.tensor([[0.5, 0.5]]), Problems("files")),
    ]


def test_every_value_has_a_short_text(values: list[Any]):
    """No tensor's numbers, no address, no line break; of containers, how many there are of what."""
    for value in values:
        text = repr(value)
        assert 0 < len(text) < LONGEST, (type(value), text)
        assert "\n" not in text, text
        assert "tensor(" not in text, text
        assert " at 0x" not in text, text


def test_texts_say_what_matters(make: Make, monkeypatch: pytest.MonkeyPatch):
    assert repr(fedshift.FedSR()) == "FedSR()"
    assert repr(fedshift.FedSR(l2r=0.05, bn="local")) == "FedSR(bn='local', l2r=0.05)"
    assert eval(repr(fedshift.FedSR(l2r=0.05)), {"FedSR": fedshift.FedSR}) == fedshift.FedSR(l2r=0.05)
    stage = page.Stage("train", 9, (page.Exchange("train"),))
    assert repr(stage).startswith("Stage(name='train', rounds=9, exchanges: 1")
    comparison = fedshift.compare(make(), progress=Progress())
    expected = str(comparison)
    assert "fedavg" in expected
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # where rich would show there what is printed
    assert repr(comparison) == str(comparison) == expected
    assert repr(comparison.runs[0]) == f"Run('{comparison.runs[0].path}')"
