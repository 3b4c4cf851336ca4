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
from fedshift.core.contract import Stage
from fedshift.core.setup import Round
from fedshift.errors import DiskError
from fedshift.reporting.follow import RunWatch, WatchedRun, follow
from fedshift.reporting.live import LiveProgress
from fedshift.runs import runner
from fedshift.runs.events import PlannedStage, Progress, RunEvents, moment
from fedshift.runs.find import write_grid
from fedshift.runs.run import EVENTS, Run, locked
from fedshift.study.grid import override
from refusal import refuses

TRAIN = Stage("train", 1000, ())
RECORD = {
    "environments": [
        {"environment": name, "role": role, "model": "global", "accuracy": accuracy, "loss": 0.5}
        for name, role, accuracy in (("light", "test", 0.25), ("light", "test", 0.5), ("dark", "validation", 0.75))
    ]
}


class Clock:
    """A clock that goes on only when it is set."""

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
    folder = Run.open(runner.run_path(experiment))
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
    assert "goes on from round 1" in printed(shown)[-1]
    log.evaluated(RECORD)
    log.end()
    watch.look()
    assert "1/1 berlin-run  done: " in printed(shown)[-1]
    assert watch.over


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
    """The watch is begun before the run, which stops in its third round of four."""
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
