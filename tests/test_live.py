"""What a user sees while runs go on, in a terminal and a notebook, and what the folder says they took."""

from __future__ import annotations

import html
import io
import re
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import fedshift
from conftest import Make, at, simulate
from fedshift import page
from fedshift.core.contract import Stage
from fedshift.core.setup import Round
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.reporting.live import LOADING, LiveProgress
from fedshift.reporting.run_status import scores_text
from fedshift.runs.events import PlannedStage, Progress, RunEvents
from fedshift.runs.run import Run, Times
from fedshift.runs.schema import Timed
from fedshift.runs.simulation import make_federated
from fedshift.study.api import compare
from test_watch import Clock
from test_watch import printed as written

STEPPED = Timed(start=0, stop=5, seconds=6.0, evaluation=3.0, together=3, engine="vectorised")
TRAIN = Stage("train", 100, ())


@pytest.fixture
def clock() -> Clock:
    return Clock()


def display(runs: int, clock: Clock, width: int = 120, height: int = 40) -> LiveProgress:
    """A display without a terminal."""
    return LiveProgress(runs, Console(file=io.StringIO(), width=width, height=height), clock)


def seen(progress: LiveProgress) -> list[str]:
    """The lines that a terminal shows now, with single spaces and without bars."""
    console = Console(file=io.StringIO(), width=progress.console.width)
    console.print(progress.view())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO
    return [" ".join(word for word in line.split() if word.strip("━╸╺")) for line in lines]


def scores(test: float, *validation: float) -> dict[str, Any]:
    """A record of one test environment and a validation environment for each further accuracy."""
    named = [("light", "test", test), *((f"v{i}", "validation", value) for i, value in enumerate(validation))]
    rows = [{"environment": n, "role": r, "model": "global", "accuracy": a, "loss": 2 * a} for n, r, a in named]
    return {"environments": rows}


def begun(progress: LiveProgress, name: str, rounds: int = 10, done: int = 0, **stages: tuple[int, int]) -> RunEvents:
    """A run that begins, of one stage of 5 steps a round or of other stages (their rounds and steps)."""
    run = RunEvents(name, progress, None, done, progress._get_time)
    of_run = stages or {"train": (rounds, 5)}
    run.begin([PlannedStage(name=stage, rounds=each[0], steps=each[1]) for stage, each in of_run.items()])
    return run


def carry_out(clock: Clock, run: RunEvents, first: int, last: int, seconds: float = 1.0) -> None:
    """Rounds from ``first`` to ``last``, each of 5 steps at its end."""
    for number in range(first, last + 1):
        run.begin_round(Round(TRAIN, number))
        clock.now += seconds
        run.steps(5)
        run.round(number, 1000, 500)


def has(line: str, *words: str) -> bool:
    """Whether a line has these words, in this order."""
    return re.search(".*".join(map(re.escape, words)), line) is not None


# A terminal -------------------------------------------------------------------------------------


def test_a_run_alone(clock: Clock):
    """It goes on from round 2 of 10: after 4 rounds in 4 s, 4 s are left. Its title is no markup."""
    progress = display(1, clock)
    assert seen(progress) == [LOADING]
    run = begun(progress, "[red]first", 10, 2)
    carry_out(clock, run, 3, 6)
    run.evaluated(scores(0.5, 0.25, 0.35))
    bar, doing, pace, last = seen(progress)
    assert has(bar, "1/1 [red]first", "6 of 10", "50.0", "30.0", "0:04")
    assert has(doing, "train", "6 of 10")
    assert has(pace, "5 steps", "1 kB down", "500 B up")
    assert last == "light test 50.0 v0 validation 25.0 v1 validation 35.0"
    run.end()
    assert seen(progress) == []
    goes_on, done = written(progress)
    assert has(goes_on, "round 2")
    assert has(done, "1/1 [red]first", "20 steps", "0:04", "50.0", "25.0")


def test_runs_that_advance_together(clock: Clock):
    """After 8 s two of four runs are done to 0.4 each, one was reused: 1.2 + 1 runs to come take 22 s."""
    progress = display(4, clock)
    progress.reused("before")
    a, b = begun(progress, "a"), begun(progress, "b")
    for number in range(1, 5):
        for run in (a, b):
            carry_out(clock, run, number, number)
    a.evaluated(scores(0.5, 0.25))
    b.note("Up to date.")
    first, second, doing, pace = seen(progress)
    assert has(first, "2/4 a", "4 of 10", "50.0", "25.0", "0:12")
    assert has(second, "3/4 b", "4 of 10", "0:12")
    assert has(doing, "train", "4 of 10")
    assert has(pace, "5 steps", "2 kB down", "1 kB up", "0:22")


def test_a_terminal_shows_runs_and_keeps_lines(tiny_document: dict[str, Any]):
    """The whole way, from a run to what a terminal is sent."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    with LiveProgress(1, terminal) as progress:
        progress.note("A word beforehand.")
        compare(tiny_document, progress=progress)
    text = terminal.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert text.count("A word beforehand.") == 1
    assert "done: " in text


# No terminal ------------------------------------------------------------------------------------


def test_without_a_terminal_there_is_a_line_in_ten_seconds(clock: Clock):
    progress = display(1, clock)
    run = begun(progress, "[i]only", 30)
    carry_out(clock, run, 1, 15, 2.0)
    run.evaluated(scores(0.5, 0.25))
    carry_out(clock, run, 16, 20, 2.0)
    run.failed("The loss of 'a\nb' is not finite.")
    lines = written(progress)
    assert len(lines) == 5
    assert has(lines[0], "1/1 [i]only", "5 of 30", "2.5 steps", "1 kB down", "500 B up", "0:50")
    assert has(lines[3], "1/1 [i]only", "light test 50.0", "v0 validation 25.0")
    assert has(lines[4], "1/1 [i]only", "round 20 of 30", "0:40", "a\\nb")


def test_means_over_clients_and_of_many_environments_the_worst():
    """3 environments of 2 clients: 3 lines. 20 environments: two lines; the mean of 0.00, 0.05, ..., 0.95 is 0.475."""

    def record(names: list[str], accuracies: list[float]) -> dict[str, Any]:
        pairs = zip(names, accuracies, strict=True)
        rows = [{"environment": n, "role": "test", "model": "own", "accuracy": a, "loss": 2 * a} for n, a in pairs]
        return {"environments": rows}

    few = scores_text(record(["a", "b", "c"] * 2, [0.1, 0.2, 0.3, 0.5, 0.6, 0.7]))
    assert few == "a test 30.0  b test 40.0  c test 50.0"
    many = scores_text(record([f"e{i}" for i in range(20)], [i / 20 for i in range(20)]))
    assert many == "mean test 47.5  worst (e0) test 0.0"


# What it took -----------------------------------------------------------------------------------


def test_shared_time_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Training 6/3 + 4 + 2/2 = 7 s, evaluation 3/3 + 1 + 0 = 2 s."""
    changes = [
        {},
        {"seconds": 4.0, "evaluation": 1.0, "together": 1, "engine": "sequential"},
        {"seconds": 2.0, "evaluation": 0.0, "together": 2},
    ]
    lines = "\n".join(STEPPED.model_copy(update=change).model_dump_json() for change in changes)
    monkeypatch.setattr(Run, "_manifest", property(lambda _: SimpleNamespace(files={})))
    monkeypatch.setattr("fedshift.runs.run.read_file", lambda *_, **__: lines.encode())
    assert Run(tmp_path).times == Times(7, 2, ("vectorised", "sequential"))


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
