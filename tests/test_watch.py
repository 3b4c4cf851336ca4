"""What a user sees of runs that continue: in a terminal, a notebook, and from another process by their events."""

from __future__ import annotations

import html
import io
import json
import logging
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import fedshift
import fresh
from conftest import Make, at, interrupt_after, simulate
from fedshift import files, page
from fedshift.cli.app import app
from fedshift.core.contract import Stage
from fedshift.core.setup import Round
from fedshift.errors import DiskError, FedshiftError, Problems, UnknownNameError
from fedshift.reporting.follow import RunWatch, WatchedRun, follow
from fedshift.reporting.live import LOADING, LiveProgress
from fedshift.reporting.run_status import scores_text
from fedshift.runs import runner, scheduling
from fedshift.runs.events import PlannedStage, Progress, RunEvents, moment
from fedshift.runs.find import write_grid
from fedshift.runs.locks import locked
from fedshift.runs.run import EVENTS, Run, Times
from fedshift.runs.schema import Timed
from fedshift.runs.simulation import make_federated
from fedshift.study.api import compare
from fedshift.study.grid import override
from refusal import refuses

TRAIN = Stage("train", 1000, ())
RECORD = {
    "bytes_down": 0,
    "bytes_up": 0,
    "terms": {},
    "environments": [
        {"environment": name, "role": role, "model": "global", "accuracy": accuracy, "loss": 0.5}
        for name, role, accuracy in (("light", "test", 0.25), ("light", "test", 0.5), ("dark", "validation", 0.75))
    ],
}


class Clock:
    """A clock that continues only when it is set."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def quiet_console() -> Console:
    return Console(file=io.StringIO(), width=120)


def printed(progress: LiveProgress) -> list[str]:
    """The lines that were printed so far."""
    return progress.console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO


def begun(
    path: Path, clock: Clock, rounds: int, steps: float, done: int = 0, progress: Progress | None = None
) -> RunEvents:
    """A run that begins, and writes its events to a file."""
    run = RunEvents("berlin-run", progress, path, done, clock)
    run.begin([PlannedStage(name="train", rounds=rounds, steps=steps)])
    return run


def written(path: Path) -> list[dict[str, Any]]:
    """The events of a file, as tables."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def watching(path: Path, clock: Callable[[], float] = time.time) -> tuple[RunWatch, LiveProgress]:
    """A display of all there is now."""
    display = LiveProgress(0, quiet_console(), clock)
    watch = RunWatch(path, display, clock)
    watch.look()
    return watch, display


def a_folder(path: Path) -> Path:
    """The folder of a run that has started, as far as anybody inspects it here."""
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    (path / "experiment.toml").write_text("")
    return path


def one_round(run: RunEvents, clock: Clock, number: int, seconds: float = 1.0) -> None:
    """A round of two clients and the server: 4 and 2 steps."""
    run.begin_round(Round(TRAIN, number))
    run.begin_task("train", 2, 4, 1000 * number, 500 * number)
    for _ in range(2):
        clock.now += seconds / 3
        run.steps(2)
        run.answered()
    run.begin_task("server", 0, 2, 1000 * number, 500 * number)
    clock.now += seconds / 3
    run.steps(2)
    run.round(number, 1000 * (number + 1), 500 * (number + 1))


# What is written --------------------------------------------------------------------------------


def test_progress_is_a_line_in_half_a_second_in_the_long_run(tmp_path: Path):
    """1000 rounds of 10 ms: 20 lines of progress, and the few that a quiet time allows; then all else at once."""
    clock, path = Clock(), tmp_path / EVENTS
    log = begun(path, clock, 1000, 6.0)
    for number in range(1, 1001):
        one_round(log, clock, number, 0.01)
    assert 20 <= sum(event["kind"] == "progress" for event in written(path)) <= 25
    before = len(written(path))
    log.evaluated(RECORD)
    log.note("A word.")
    log.end()
    events = written(path)[before:]
    assert [event["kind"] for event in events] == ["progress", "evaluated", "note", "end"]
    assert events[0]["position"] == 1000
    rows = [(row["environment"], row["role"], row["accuracy"]) for row in events[1]["environments"]]
    assert rows == [("light", "test", 0.375), ("dark", "validation", 0.75)]
    assert {event["who"] for event in events} == {"berlin-run"}
    assert events[-1]["when"] == moment(clock.now)


def test_a_full_disk_for_its_file_stops_no_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is logged once."""
    append = files.append

    def full(path: Path, line: str, *, soon: bool = False) -> None:
        if soon:
            raise DiskError(f"'{path}' cannot be written: No space left on device.")
        append(path, line)

    monkeypatch.setattr(files, "append", full)
    folder = runner.start(make(), Progress())
    assert folder.finished
    assert folder.damage() == ""
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_run_that_goes_on_adds_to_its_file_and_a_damaged_one_harms_nothing(make: Make):
    experiment = make({"train.rounds": 4, "run.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = Run.open(scheduling.run_path(experiment))
    with (folder.path / EVENTS).open("ab") as file:
        file.write(
            b'\xff\n[1]\n{"kind": "end"}\n' + b"[" * 100_000 + b'\n{"when": "2026-13-01T00:00:00Z", "kind": "end"}\n5'
        )
    runner.resume(runner.below(folder.path), Progress())
    assert folder.finished
    assert folder.damage() == ""
    assert (folder.path / EVENTS).read_bytes().count(b'"begin"') == 2
    kinds = [event.kind for event in WatchedRun(folder).new()]
    assert [kind for kind in kinds if kind in ("begin", "end")] == ["begin", "end"]
    (folder.path / EVENTS).unlink()
    assert folder.damage() == ""


# The same picture -------------------------------------------------------------------------------


def test_a_watch_shows_what_the_run_shows(tmp_path: Path):
    """From its start, and for who comes in the middle: the same view; 2 of 10 rounds are left after 80 s."""
    folder, clock = a_folder(tmp_path / "run"), Clock()
    live = LiveProgress(1, quiet_console(), clock)
    log = begun(folder / EVENTS, clock, 10, 6.0, progress=live)
    from_start, shown_from_start = watching(folder, clock)
    for number in range(1, 9):
        one_round(log, clock, number, 10.0)
        from_start.look()
    log.evaluated(RECORD)
    from_start.look()
    _, shown_late = watching(folder, clock)
    texts = []
    for display in (live, shown_from_start, shown_late):
        with display.console.capture() as seen:
            display.console.print(display.view())
        texts.append(seen.get())
    assert texts[0] == texts[1] == texts[2]
    assert "0:20 left" in texts[0].splitlines()[0]
    log.end()
    from_start.look()
    assert from_start.over
    assert printed(shown_from_start)[-1] == printed(live)[-1]


def test_a_run_that_nobody_carries_out_is_noticed_and_may_go_on(tmp_path: Path):
    folder, clock = a_folder(tmp_path / "run"), Clock()
    log = begun(folder / EVENTS, clock, 10, 6.0)
    one_round(log, clock, 1)
    watch, shown = watching(folder, clock)
    clock.now += 3.5
    with locked(folder):
        watch.look()
        assert printed(shown) == []
    watch.look()
    assert "round 1 of 10" in printed(shown)[-1]
    assert f"`fedshift resume {folder}`" in printed(shown)[-1]
    assert not watch.over
    log = begun(folder / EVENTS, clock, 10, 6.0, done=1)
    watch.look()
    assert "continues from round 1" in printed(shown)[-1]
    log.evaluated(RECORD)
    log.end()
    watch.look()
    assert "1/1 berlin-run  done: " in printed(shown)[-1]
    assert watch.over


def test_runs_that_nobody_begins_are_noted(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A comparison of two that was interrupted before the second began; it is noted once."""
    monkeypatch.setattr("fedshift.reporting.follow.STALLED", 0.0)
    first, second = make({"seed": 0}), make({"seed": 1})
    write_grid([first, second], scheduling.run_path(first).parent)
    runner.start(first, Progress())
    path = scheduling.run_path(first).parent
    watch, shown = watching(path)
    watch.look()
    assert watch.expected == 2
    finished, stalled = printed(shown)
    assert f"1/2 {first.run_name}  finished" in finished
    assert f"`fedshift resume {path}`" in stalled
    runner.start(second, Progress())
    console = quiet_console()
    follow(path, console)
    assert f"2/2 {second.run_name}" in console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO


def test_events_of_sites_are_lines(tmp_path: Path):
    folder, clock = a_folder(tmp_path / "run"), Clock()
    live = LiveProgress(1, quiet_console(), clock)
    run = begun(folder / EVENTS, clock, 10, 6.0, progress=live)
    at = {"who": "berlin", "stage": "train", "round": 3}
    run.site(**at, what="answered", exchange="train", seconds=4.21, bytes_up=45000)
    run.site(**at, what="failed", exchange="pairs", why="data\x1b[1m")
    answered, failed = printed(live)
    assert answered.endswith("berlin  answered train/3 in 4.2 s, 45 kB up")
    assert failed.endswith("berlin  failed train/3 (pairs): data\\x1b[1m")
    assert printed(watching(folder, clock)[1]) == [answered, failed]


# Finished runs ----------------------------------------------------------------------------------


def test_scores_of_a_finished_run_are_those_of_its_records(make: Make):
    folder = runner.start(make({"train.rounds": 2, "evaluate.every": 1}), Progress())
    (before,) = printed(watching(folder.path)[1])
    assert re.search(r"test [\d.]+", before)
    lines = (folder.path / EVENTS).read_text().splitlines()
    forged = [re.sub(r'"accuracy": ?[\d.]+', '"accuracy": 0.999', each) for each in lines]
    assert forged != lines
    for changed in (forged, [each for each in lines if '"evaluated"' not in each]):
        (folder.path / EVENTS).write_text("\n".join(changed) + "\n")
        assert printed(watching(folder.path)[1]) == [before]


def test_scores_of_a_finished_run_with_damaged_records_are_not_shown(make: Make):
    folder = runner.start(make(), Progress())
    (folder.path / "records.jsonl").write_text("")
    (shown,) = printed(watching(folder.path)[1])
    assert "records.jsonl" in shown
    assert not re.search(r"test [\d.]+", shown)


def test_a_place_without_runs(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with refuses(f"'{path}'", "run folder"):
            CliRunner().invoke(app, ["watch", str(path)], catch_exceptions=False)


# From process to process ------------------------------------------------------------------------


PAUSING = """
import os, signal
from dataclasses import dataclass
import fedshift
from fedshift.methods.fedavg import FedAvg
pauses = [signal.SIGSTOP]

@fedshift.METHODS.register("pausing")
class Pausing(FedAvg):
    \"""FedAvg that stops in the middle until it is continued.\"""

    def risk(self, net, batch, context):
        if context.round == 3 and pauses:
            os.kill(os.getpid(), pauses.pop())
        return super().risk(net, batch, context)
"""


def test_a_killed_process_is_noticed_and_ctrl_c_ends_the_watching_only(tiny_document: dict[str, Any], tmp_path: Path):
    """The watch is started before the run, which stops in its third round of four."""
    watch = fresh.start(fresh.fedshift, "watch", "--wait", str(tmp_path / "runs"))
    fresh.until(lambda: "Waiting for a run" in watch.stdout + watch.stderr, watch)
    (tmp_path / "pausing.py").write_text(PAUSING)
    document = override(tiny_document, {"train.rounds": 4, "run.checkpoint_every": 1}) | {"method": {"name": "pausing"}}
    (tmp_path / "paused.toml").write_text(tomli_w.dumps(document))
    plugins = "--plugin", str(Path(__file__).parent / "tiny.py"), "--plugin", "pausing.py"
    run = fresh.start(fresh.fedshift, "run", "paused.toml", *plugins, cwd=tmp_path)
    assert run.stopped(), run
    (folder,) = tmp_path.glob("runs/*/*/")
    assert "No process" not in watch.stdout
    run.kill()
    fresh.until(lambda: f"`fedshift resume {folder}`" in watch.stdout, watch)
    watch.send_signal(signal.SIGINT)
    assert watch.wait() == 130, watch
    assert "Interrupted" in watch.stderr


STEPPED = Timed(start=0, stop=5, seconds=6.0, evaluation=3.0, together=3, engine="vectorised")
HUNDRED = Stage("train", 100, ())


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
    return {**RECORD, "environments": rows}


def showing(progress: LiveProgress, name: str, rounds: int = 10, done: int = 0, **stages: tuple[int, int]) -> RunEvents:
    """A run that begins, of one stage of 5 steps a round or of other stages (their rounds and steps)."""
    run = RunEvents(name, progress, None, done, progress._get_time)
    of_run = stages or {"train": (rounds, 5)}
    run.begin([PlannedStage(name=stage, rounds=each[0], steps=each[1]) for stage, each in of_run.items()])
    return run


def carry_out(clock: Clock, run: RunEvents, first: int, last: int, seconds: float = 1.0) -> None:
    """Rounds from ``first`` to ``last``, each of 5 steps at its end."""
    for number in range(first, last + 1):
        run.begin_round(Round(HUNDRED, number))
        clock.now += seconds
        run.steps(5)
        run.round(number, 1000, 500)


def has(line: str, *words: str) -> bool:
    """Whether a line has these words, in this order."""
    return re.search(".*".join(map(re.escape, words)), line) is not None


# A terminal -------------------------------------------------------------------------------------


def test_a_run_alone(clock: Clock):
    """It continues from round 2 of 10: after 4 rounds in 4 s, 4 s are left. Its title is no markup."""
    progress = display(1, clock)
    assert seen(progress) == [LOADING]
    run = showing(progress, "[red]first", 10, 2)
    carry_out(clock, run, 3, 6)
    run.evaluated(scores(0.5, 0.25, 0.35))
    bar, doing, pace, last = seen(progress)
    assert has(bar, "1/1 [red]first", "6 of 10", "50.0", "30.0", "0:04")
    assert has(doing, "train", "6 of 10")
    assert has(pace, "5 steps", "1 kB down", "500 B up")
    assert last == "light test 50.0 v0 validation 25.0 v1 validation 35.0"
    run.end()
    assert seen(progress) == []
    goes_on, done = printed(progress)
    assert has(goes_on, "round 2")
    assert has(done, "1/1 [red]first", "20 steps", "0:04", "50.0", "25.0")


def test_runs_that_advance_together(clock: Clock):
    """After 8 s two of four runs are done to 0.4 each, one was reused: 1.2 + 1 runs to come take 22 s."""
    progress = display(4, clock)
    progress.reused("before")
    a, b = showing(progress, "a"), showing(progress, "b")
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
    run = showing(progress, "[i]only", 30)
    carry_out(clock, run, 1, 15, 2.0)
    run.evaluated(scores(0.5, 0.25))
    carry_out(clock, run, 16, 20, 2.0)
    run.failed("The loss of 'a\nb' is not finite.")
    lines = printed(progress)
    assert len(lines) == 5
    assert has(lines[0], "1/1 [i]only", "5 of 30", "2.5 steps", "1 kB down", "500 B up", "0:50")
    assert has(lines[3], "1/1 [i]only", "light test 50.0", "v0 validation 25.0")
    assert has(lines[4], "1/1 [i]only", "round 20 of 30", "0:40", "a\\nb")


def test_means_over_clients_and_of_many_environments_the_worst():
    """3 environments of 2 clients: 3 lines. 20 environments: two lines; the mean of 0.00, 0.05, ..., 0.95 is 0.475."""

    def record(names: list[str], accuracies: list[float]) -> dict[str, Any]:
        pairs = zip(names, accuracies, strict=True)
        rows = [{"environment": n, "role": "test", "model": "own", "accuracy": a, "loss": 2 * a} for n, a in pairs]
        return {**RECORD, "environments": rows}

    few = scores_text(record(["a", "b", "c"] * 2, [0.1, 0.2, 0.3, 0.5, 0.6, 0.7]))
    assert few == "a test 30.0  b test 40.0  c test 50.0"
    many = scores_text(record([f"e{i}" for i in range(20)], [i / 20 for i in range(20)]))
    assert many == "mean test 47.5  worst (e0) test 0.0"


# What it took -----------------------------------------------------------------------------------


def test_shared_time_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Training 6/3 + 4 + 2/2 = 7 s, evaluation 3/3 + 1 + 0 = 2 s; up to round 6 the first two.

    The first line is of a time when no memory was recorded.
    """
    changes = [
        {},
        {"seconds": 4.0, "evaluation": 1.0, "together": 1, "engine": "sequential", "stop": 6, "memory": 70},
        {"seconds": 2.0, "evaluation": 0.0, "together": 2, "stop": 7, "memory": 90},
    ]
    lines = "\n".join(STEPPED.model_copy(update=change).model_dump_json(exclude_none=True) for change in changes)
    monkeypatch.setattr(Run, "_manifest", property(lambda _: SimpleNamespace(files={})))
    monkeypatch.setattr("fedshift.runs.run.read_file", lambda *_, **__: lines.encode())
    run = Run(tmp_path)
    assert run.times == Times(7, 2, ("vectorised", "sequential"), 90)
    assert run.times_until(6) == Times(6, 2, ("vectorised", "sequential"), 70)


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
        *(at(received=state.shared), page.Batch(samples.x, samples.y)),
        page.Part(nn.Linear(3, 3), "down", on_request=True),
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
