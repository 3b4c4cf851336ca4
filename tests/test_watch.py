"""Runs that are watched from another process, by the events that they write."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console
from typer.testing import CliRunner

import fresh
from conftest import Make, interrupt_after
from fedshift import files
from fedshift.cli.app import app
from fedshift.cli.options import folder_names
from fedshift.core.contract import Round, Stage
from fedshift.errors import DiskError
from fedshift.reporting.follow import RunWatch, WatchedRun, follow
from fedshift.reporting.live import LiveProgress
from fedshift.reporting.run_status import site_line
from fedshift.runs import runner
from fedshift.runs.events import PlannedStage, Progress, RunEvents, SiteEvent, read_event
from fedshift.runs.find import write_grid
from fedshift.runs.run import EVENTS, Run, locked
from fedshift.study.grid import override
from fedshift.written import moment
from refusal import refuses

START = 1_700_000_000.0
TRAIN = Stage("train", 1000, ())
RECORD = {
    "environments": [
        {"environment": name, "role": role, "model": "global", "accuracy": accuracy, "loss": 0.5}
        for name, role, accuracy in (("light", "test", 0.25), ("light", "test", 0.5), ("dark", "validation", 0.75))
    ]
}


class Clock:
    """A clock that goes on only when it is set."""

    now = START

    def __call__(self) -> float:
        return self.now


def quiet_console() -> Console:
    return Console(file=io.StringIO(), width=120)


def text(progress: LiveProgress) -> str:
    """What a terminal shows now."""
    console = quiet_console()
    console.print(progress.view())
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO


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
    """The folder of a run that has begun, as far as anybody looks at it here."""
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


def test_a_task_is_written_at_once_though_steps_came_fast_before(tmp_path: Path):
    """It may be the last event for long: 500 steps in 5 s, then the server begins."""
    clock = Clock()
    log = begun(tmp_path / EVENTS, clock, 2, 500.0)
    log.begin_round(Round(TRAIN, 1))
    log.begin_task("train", 1, 500, 0, 0)
    for _ in range(500):
        clock.now += 0.01
        log.steps(1)
    log.begin_task("server", 0, 7, 0, 0)
    events = written(tmp_path / EVENTS)
    assert len(events) < 16
    assert events[-1]["task"] == {"exchange": "server", "clients": 0, "steps": 7, "done": 0, "answered": 0}
    assert (events[-1]["steps"], events[-1]["of_round"]) == (500, 500)


def test_a_full_disk_for_its_file_stops_no_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is logged once."""

    def full(path: Path, line: str) -> None:
        raise DiskError(f"'{path}' cannot be written: No space left on device.")

    monkeypatch.setattr(files, "append_soon", full)
    folder = runner.start(make(), Progress())
    assert folder.finished
    assert folder.damage() == ""
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_run_that_goes_on_adds_to_its_file_and_a_damaged_one_harms_nothing(make: Make):
    experiment = make({"train.rounds": 4, "run.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = Run.open(runner.run_path(experiment))
    with (folder.path / EVENTS).open("ab") as file:
        file.write(b'\xff\n[1]\n{"kind": "end"}\n{"when": "202')
    runner.resume(runner.below(folder.path), Progress())
    assert folder.finished
    assert folder.damage() == ""
    assert (folder.path / EVENTS).read_bytes().count(b'"begin"') == 2
    kinds = [event.kind for event in WatchedRun(folder).new()]
    assert [kind for kind in kinds if kind in ("begin", "end")] == ["begin", "end"]
    (folder.path / EVENTS).unlink()
    assert folder.damage() == ""


@pytest.mark.parametrize(
    "line",
    [
        b"5",
        b'{"when": "2026-13-01T00:00:00Z", "kind": "end", "who": "a"}',
        b'{"when": "2026-11-01T00:00:00Z", "kind": "begin", "who": "a", "rounds": 1, "done": 0, "stages": []}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_event_is_left_out(tmp_path: Path, line: bytes):
    with pytest.raises(ValueError, match=r"."):
        read_event(line)
    (tmp_path / EVENTS).write_bytes(line + b'\n{"when": "2026-11-01T00:00:00Z", "kind": "end", "who": "a"}\nnot yet')
    file = WatchedRun(Run(tmp_path))
    assert [event.kind for event in file.new()] == ["end"]
    assert file.new() == []
    assert file.grown


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
    assert text(shown_late) == text(shown_from_start) == text(live)
    assert "0:20 left" in text(live).splitlines()[0]
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
    assert "goes on from round 1" in printed(shown)[-1]
    log.evaluated(RECORD)
    log.end()
    watch.look()
    assert "1/1 berlin-run  done: " in printed(shown)[-1]
    assert watch.over


def test_a_finished_run_whose_end_could_not_be_written_is_over(tmp_path: Path):
    folder, clock = a_folder(tmp_path / "run"), Clock()
    log = begun(folder / EVENTS, clock, 10, 6.0)
    log.evaluated(RECORD)
    watch, shown = watching(folder, clock)
    (folder / "summary.json").write_text("{}")
    clock.now += 60
    watch.look()
    assert watch.over
    assert "1/1 berlin-run  done: " in printed(shown)[-1]


def test_runs_that_nobody_begins_are_noted(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A comparison of two that was interrupted before the second began; it is noted once."""
    monkeypatch.setattr("fedshift.reporting.follow.STALLED", 0.0)
    first, second = make({"seed": 0}), make({"seed": 1})
    write_grid([first, second], runner.run_path(first).parent)
    runner.start(first, Progress())
    path = runner.run_path(first).parent
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


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (
            {"what": "answered", "stage": "train", "round": 3, "exchange": "train", "seconds": 4.21, "bytes_up": 45000},
            "2026-11-22T06:52:43Z  berlin  answered train/3 in 4.2 s, 45 kB up",
        ),
        (
            {"what": "failed", "stage": "train", "round": 3, "exchange": "pairs", "why": "data\x1b[1m"},
            "2026-11-22T06:52:43Z  berlin  failed train/3 (pairs): data\\x1b[1m",
        ),
    ],
)
def test_events_of_sites_are_lines(tmp_path: Path, more: dict[str, Any], shown: str):
    event = SiteEvent(when="2026-11-22T06:52:43.123456Z", who="berlin", **more)
    assert site_line(event) == shown
    folder, clock = a_folder(tmp_path / "run"), Clock()
    live = LiveProgress(1, quiet_console(), clock)
    begun(folder / EVENTS, clock, 10, 6.0, progress=live).site(who="berlin", **more)
    assert printed(live) == printed(watching(folder, clock)[1]) != []


# Finished runs ----------------------------------------------------------------------------------


def _accurate(lines: list[str]) -> list[str]:
    """Events of which every accuracy is 0.999."""
    return [re.sub(r'"accuracy": [\d.]+', '"accuracy": 0.999', each) for each in lines]


def _never_scored(lines: list[str]) -> list[str]:
    return [each for each in lines if '"evaluated"' not in each]


@pytest.mark.parametrize("change", [_accurate, _never_scored])
def test_scores_of_a_finished_run_are_those_of_its_records(make: Make, change: Callable[[list[str]], list[str]]):
    folder = runner.start(make({"train.rounds": 2, "evaluate.every": 1}), Progress())
    (before,) = printed(watching(folder.path)[1])
    assert re.search(r"test [\d.]+", before)
    lines = (folder.path / EVENTS).read_text().splitlines()
    (folder.path / EVENTS).write_text("\n".join(change(lines)) + "\n")
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


def test_folders_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "rows").touch()
    assert folder_names("r") == ["runs/"]
    assert folder_names(f"{tmp_path}/runs/t") == [f"{tmp_path}/runs/tiny/"]
    assert folder_names("none/") == []


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

    def loss(self, net, batch, context):
        if context.round == 3 and pauses:
            os.kill(os.getpid(), pauses.pop())
        return super().loss(net, batch, context)
"""


def paused(tiny_document: dict[str, Any], tmp_path: Path) -> fresh.Process:
    """A run that has stopped in its third round of four: it stays there until it is continued."""
    (tmp_path / "pausing.py").write_text(PAUSING)
    document = override(tiny_document, {"train.rounds": 4, "run.checkpoint_every": 1}) | {"method": {"name": "pausing"}}
    (tmp_path / "paused.toml").write_text(tomli_w.dumps(document))
    plugins = "--plugin", str(Path(__file__).parent / "tiny.py"), "--plugin", "pausing.py"
    run = fresh.start(fresh.fedshift, "run", "paused.toml", *plugins, cwd=tmp_path)
    assert run.stopped(), run
    return run


def test_a_killed_process_is_noticed_and_ctrl_c_ends_the_watching_only(tiny_document: dict[str, Any], tmp_path: Path):
    """The watch is begun before the run."""
    watch = fresh.start(fresh.fedshift, "watch", "--wait", str(tmp_path / "runs"))
    fresh.until(lambda: "Waiting for a run" in watch.stdout + watch.stderr, watch)
    run = paused(tiny_document, tmp_path)
    (folder,) = tmp_path.glob("runs/*/*/")
    assert "No process" not in watch.stdout
    run.kill()
    fresh.until(lambda: f"`fedshift resume {folder}`" in watch.stdout, watch)
    watch.send_signal(signal.SIGINT)
    assert watch.wait() == 130, watch
    assert "Interrupted" in watch.stderr
