"""Runs that are watched from beside, by what they write of themselves."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import fresh
from conftest import Make, interrupt_after
from fedshift import files
from fedshift.api import compare
from fedshift.cli.app import app
from fedshift.cli.options import folder_names
from fedshift.core.contract import Round, Stage
from fedshift.errors import DiskError
from fedshift.reporting.live import LiveProgress, line
from fedshift.reporting.watch import EventClock, EventFile, Shown, Watch, WatchProgress, follow, follow_lines
from fedshift.runs import runner
from fedshift.runs.events import EventLog, read_event
from fedshift.runs.folder import EVENTS, RunFolder
from fedshift.runs.grid_file import write_grid
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.schema import ProgressEvent, SiteEvent, moment
from fedshift.settings.grid import override
from fedshift.simulation.listener import Task
from fedshift.simulation.plan import PlannedStage
from refusal import refuses

START = 1_700_000_000.0
RECORD = {
    "environments": [
        {"environment": name, "role": role, "model": "global", "accuracy": accuracy, "loss": 0.5}
        for name, role, accuracy in (("light", "test", 0.25), ("light", "test", 0.5), ("dark", "validation", 0.75))
    ]
}


class Clock:
    """A clock that goes on only when it is told to."""

    now = START

    def __call__(self) -> float:
        return self.now


def text(progress: LiveProgress) -> str:
    """What a terminal shows now."""
    console = Console(file=io.StringIO(), width=120)
    console.print(progress.view())
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO


def left(progress: LiveProgress) -> list[str]:
    """The lines that were left so far."""
    return progress.console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO


def quiet_console() -> Console:
    return Console(file=io.StringIO(), width=120)


def outlook(*stages: tuple[str, int, float], done: int = 0) -> Outlook:
    plan = tuple(PlannedStage(*stage) for stage in stages)
    return Outlook("berlin-run", sum(stage.rounds for stage in plan), done, plan)


def written(path: Path) -> list[dict[str, Any]]:
    """The events of a file, as tables."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def watching(path: Path, clock: Callable[[], float]) -> tuple[Watch, Shown, WatchProgress]:
    """A display that watches, and has told all there is."""
    watch = Watch(path, clock)
    news = watch.news()
    event_clock = EventClock(clock)
    progress = WatchProgress(watch.expected, quiet_console(), event_clock)
    shown = Shown(watch, progress, event_clock)
    shown.tell(news)
    return watch, shown, progress


def a_folder(path: Path) -> Path:
    """The folder of a run that has begun, as far as anybody looks at it here."""
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    (path / "experiment.toml").write_text("")
    return path


def one_round(run: RunProgress, clock: Clock, stage: Stage, number: int, position: int, seconds: float = 1.0) -> None:
    """A round of two clients and the server: 4 and 2 steps."""
    run.begin_round(Round(stage, number))
    run.begin_task(Task(Round(stage, number), stage.name, 2, 4, 1000 * position, 500 * position))
    for _ in range(2):
        clock.now += seconds / 3
        run.steps(2)
        run.answered()
    run.begin_task(Task(Round(stage, number), "server", 0, 2, 1000 * position, 500 * position))
    clock.now += seconds / 3
    run.steps(2)
    run.round(position + 1, 1000 * (position + 1), 500 * (position + 1))


# What is written --------------------------------------------------------------------------------


def test_progress_is_a_line_in_half_a_second_in_the_long_run(tmp_path: Path):
    """1000 rounds of 10 ms: 20 lines of progress, and the few that a quiet time allows; then all else at once."""
    clock, stage, path = Clock(), Stage("train", 1000, ()), tmp_path / EVENTS
    log = EventLog(path, outlook(("train", 1000, 6.0)), RunProgress(), clock)
    for position in range(1000):
        one_round(log, clock, stage, position + 1, position, 0.01)
    assert 20 <= sum(event["kind"] == "progress" for event in written(path)) <= 25
    before = len(written(path))
    log.evaluated(RECORD)
    log.note("A word.")
    log.end()
    events = written(path)[before:]
    assert [event["kind"] for event in events] == ["evaluated", "progress", "note", "end"]
    assert events[1]["position"] == 1000
    assert events[0]["environments"] == [
        {"environment": "light", "role": "test", "model": "global", "accuracy": 0.375, "loss": 0.5},
        {"environment": "dark", "role": "validation", "model": "global", "accuracy": 0.75, "loss": 0.5},
    ]
    assert {event["who"] for event in events} == {"berlin-run"}
    assert events[-1]["when"] == moment(clock.now)


def test_a_task_is_written_at_once_though_steps_came_fast_before(tmp_path: Path):
    """It may be the last that is heard for long: 500 steps in 5 s, then the server begins."""
    clock, stage = Clock(), Stage("train", 2, ())
    log = EventLog(tmp_path / EVENTS, outlook(("train", 2, 500.0)), RunProgress(), clock)
    log.begin_round(Round(stage, 1))
    log.begin_task(Task(Round(stage, 1), "train", 1, 500, 0, 0))
    for _ in range(500):
        clock.now += 0.01
        log.steps(1)
    log.begin_task(Task(Round(stage, 1), "server", 0, 7, 0, 0))
    events = written(tmp_path / EVENTS)
    assert len(events) < 16
    assert events[-1]["task"] == {
        "exchange": "server", "clients": 0, "steps": 7, "number": 2, "done": 0, "answered": 0
    }  # fmt: skip
    assert (events[-1]["steps"], events[-1]["of_round"]) == (500, 500)


def test_a_clock_that_jumps_back_stops_no_lines(tmp_path: Path):
    clock, stage = Clock(), Stage("train", 100, ())
    log = EventLog(tmp_path / EVENTS, outlook(("train", 100, 6.0)), RunProgress(), clock)
    clock.now -= 3600
    for position in range(20):
        one_round(log, clock, stage, position + 1, position)
    assert written(tmp_path / EVENTS)[-1]["position"] == 20


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A folder stands in its place; the display hears everything all the same."""
    (tmp_path / EVENTS).mkdir()
    live, about = LiveProgress(1, quiet_console()), outlook(("train", 2, 6.0))
    log = EventLog(tmp_path / EVENTS, about, live.begin(about))
    log.note("A word.")
    log.evaluated(RECORD)
    log.end()
    (said,) = caplog.messages
    assert said.startswith(f"The run goes on, but cannot be watched: '{tmp_path / EVENTS}' cannot be written")
    assert left(live)[-1].startswith("1/1 berlin-run  done: ")


def test_a_full_disk_for_its_file_stops_no_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
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
    folder = RunFolder.open(runner.run_path(experiment))
    with (folder.path / EVENTS).open("ab") as file:
        file.write(b'\xff\n[1]\n{"kind": "end"}\n{"when": "202')
    runner.resume(runner.below(folder.path), Progress())
    assert folder.finished
    assert folder.damage() == ""
    events = [event for event, _ in EventFile(folder.path / EVENTS).new()]
    assert [event.kind for event in events if event.kind in ("begin", "end")] == ["begin", "begin", "end"]
    _, _, progress = watching(folder.path, time.time)
    before, after = left(progress)
    assert before.startswith("1/1 ")
    assert "goes on from round" in before
    assert "  done: " in after
    (folder.path / EVENTS).unlink()
    assert folder.damage() == ""
    assert left(watching(folder.path, time.time)[2]) == [f"1/1 {folder.path.name}  finished before"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"5",
        b'{"when": "2026-13-01T00:00:00Z", "kind": "end", "who": "a"}',
        b'{"when": "2026-11-01T00:00:00", "kind": "end", "who": "a"}',
        b'{"when": "2026-11-01T00:00:00Z", "kind": "what", "who": "a"}',
        b'{"when": "2026-11-01T00:00:00Z", "kind": "begin", "who": "a", "rounds": 1, "done": 0, "stages": []}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_event_is_left_out(tmp_path: Path, line: bytes):
    with pytest.raises(ValueError, match=r"."):
        read_event(line)
    (tmp_path / EVENTS).write_bytes(line + b'\n{"when": "2026-11-01T00:00:00Z", "kind": "end", "who": "a"}\nnot yet')
    file = EventFile(tmp_path / EVENTS)
    assert [event.kind for event, _ in file.new()] == ["end"]
    assert file.new() == []
    assert file.grown


def test_a_file_that_took_the_place_of_another_is_read_from_its_start(tmp_path: Path):
    file, (one, other) = (
        EventFile(tmp_path / EVENTS),
        (f'{{"when": "{moment(START)}", "kind": "note", "who": "a", "text": "{text}"}}\n' for text in ("one", "other")),
    )
    (tmp_path / EVENTS).write_text(one)
    assert len(file.new()) == 1
    (tmp_path / "new").write_text(other)
    (tmp_path / "new").replace(tmp_path / EVENTS)
    assert ["other" in text for _, text in file.new()] == [True]


# The same picture -------------------------------------------------------------------------------

PLANS = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)


@given(
    plan=PLANS,
    gaps=st.lists(st.sampled_from([0.0131, 0.0537, 0.1071, 0.6131, 31.7093]), min_size=1, max_size=7),
    done=st.integers(0, 1),
    stop=st.integers(0, 200),
    attached=st.integers(0, 200),
)
def test_a_replay_gives_the_picture_that_was_there(
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[int, list[tuple[int, int]]]],
    gaps: list[float],
    done: int,
    stop: int,
    attached: int,
):
    """Any stages, tasks and speeds, stopped anywhere, watched from anywhere on: the same picture."""
    folder = a_folder(tmp_path_factory.mktemp("runs") / "run")
    clock = Clock()
    live = LiveProgress(1, quiet_console(), clock)
    stages = [Stage(f"s{number}", rounds, ()) for number, (rounds, _) in enumerate(plan)]
    expected = [
        (each.name, each.rounds, float(sum(steps for _, steps in tasks)))
        for each, (_, tasks) in zip(stages, plan, strict=True)
    ]
    about = outlook(*expected, done=done)
    log = EventLog(folder / EVENTS, about, live.begin(about), clock)
    heard, late = 0, None

    def after() -> bool:
        nonlocal heard, late
        clock.now += gaps[heard % len(gaps)]
        heard += 1
        if heard == attached:
            late = watching(folder, clock)
        return heard > stop

    def carry_out() -> None:
        position = 0
        for stage, (rounds, tasks) in zip(stages, plan, strict=True):
            for number in range(1, rounds + 1):
                position += 1
                if position <= done:
                    continue
                log.begin_round(Round(stage, number))
                if after():
                    return
                for clients, steps in tasks:
                    sent = 10 * position, 5 * position
                    log.begin_task(Task(Round(stage, number), stage.name, clients, clients * steps, *sent))
                    for _ in range(clients):
                        for _ in range(steps):
                            log.steps(1)
                            if after():
                                return
                        log.answered()
                log.round(position, 10 * position, 5 * position)
                if position % 2:
                    log.evaluated(RECORD)
                if after():
                    return

    with RunFolder(folder).locked():
        carry_out()
        log.note("All are told.")  # after which nothing is held back
        picture = text(live)
        _, _, fresh = watching(folder, clock)
        assert text(fresh) == picture
        if late:
            watch, shown, progress = late
            shown.tell(watch.news())
            assert text(progress) == picture
    log.failed("Enough.")
    if late:
        shown.tell(watch.news())
        assert left(progress)[-1] == left(live)[-1]
    assert left(watching(folder, clock)[2])[-1] == left(live)[-1]


def test_runs_of_a_comparison_look_as_they_did(tiny_document: dict[str, Any], tmp_path: Path):
    """The last lines of two that advanced together, and of two more: number, name, steps and accuracies."""
    live = LiveProgress(4, quiet_console(), time.time)
    document = override(tiny_document, {"run.engine": "vectorised", "run.together": 2})
    compare(document, method=["fedavg", "fedsr"], seed=[0, 1], progress=live)
    _, _, progress = watching(tmp_path / "runs", time.time)

    def ends(display: LiveProgress) -> list[tuple[str, ...]]:
        found = (re.fullmatch(r"(\d/4 \S+)  done: (\d+ steps) in [\d:]+  (.*)", each) for each in left(display))
        return [each.groups() for each in found if each]

    assert ends(progress) == ends(live)
    assert len(ends(live)) == 4


# Following --------------------------------------------------------------------------------------


def test_time_left_is_right_for_who_comes_in_the_middle(tmp_path: Path):
    """8 of 10 rounds of 6 steps in 80 s, then 5 s of silence: 6 steps at 48 steps in 85 s are 10.6 s."""
    folder, clock, stage = a_folder(tmp_path / "run"), Clock(), Stage("train", 10, ())
    log = EventLog(folder / EVENTS, outlook(("train", 10, 6.0)), RunProgress(), clock)
    for position in range(8):
        one_round(log, clock, stage, position + 1, position, 10.0)
    clock.now += 5
    (folder / ".lock").touch()
    _, _, progress = watching(folder, lambda: clock.now - 3)
    assert "0:20 left" in text(progress).splitlines()[0]


def test_a_run_that_nobody_carries_out_is_noticed_and_may_go_on(tmp_path: Path):
    folder, clock = a_folder(tmp_path / "run"), Clock()
    log = EventLog(folder / EVENTS, outlook(("train", 10, 6.0)), RunProgress(), clock)
    one_round(log, clock, Stage("train", 10, ()), 1, 0)
    clock.now += 2.5
    watch, shown, progress = watching(folder, clock)
    assert left(progress) == []
    clock.now += 1
    with RunFolder(folder).locked():
        shown.tell(watch.news())
        assert left(progress) == []
    shown.tell(watch.news())
    # After 1 s, as long as anybody heard of it.
    reason = f"No process carries it out any more; `fedshift resume {folder}` does."
    assert left(progress)[-1] == f"1/1 berlin-run  given up after round 1 of 10, 0:01: {reason}"
    assert not watch.over
    log = EventLog(folder / EVENTS, outlook(("train", 10, 6.0), done=1), RunProgress(), clock)
    shown.tell(watch.news())
    assert left(progress)[-1] == "1/1 berlin-run  goes on from round 1"
    log.evaluated(RECORD)
    log.end()
    shown.tell(watch.news())
    assert left(progress)[-1].startswith("1/1 berlin-run  done: ")
    assert watch.over


def test_a_finished_run_whose_end_could_not_be_written_is_over(tmp_path: Path):
    folder, clock = a_folder(tmp_path / "run"), Clock()
    log = EventLog(folder / EVENTS, outlook(("train", 10, 6.0)), RunProgress(), clock)
    log.evaluated(RECORD)
    watch, shown, progress = watching(folder, clock)
    (folder / "manifest.json").write_text("{}")
    clock.now += 60
    shown.tell(watch.news())
    assert watch.over
    assert left(progress)[-1].startswith("1/1 berlin-run  done: ")


def test_runs_that_nobody_begins_are_said(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A comparison of two that was interrupted before the second began; it is said once."""
    first, second = make({"seed": 0}), make({"seed": 1})
    write_grid([first, second], runner.run_path(first).parent)
    runner.start(first, Progress())
    path = runner.run_path(first).parent
    watch, shown, progress = watching(path, time.time)
    assert watch.expected == 2
    monkeypatch.setattr("fedshift.reporting.watch.STALLED", 0.0)
    for _ in range(2):
        shown.tell(watch.news())
    (done, said) = left(progress)
    assert done.startswith(f"1/2 {first.run_name}  done: ")
    assert said == (
        f"Runs in '{path}' are to come, but none is under way. If no process is about to carry them out, "
        f"`fedshift resume {path}` does."
    )
    runner.start(second, Progress())
    monkeypatch.setattr("fedshift.reporting.watch.SECONDS_BETWEEN_SEARCHES", 0.0)
    follow(Watch(path), quiet_console())


def test_a_terminal_shows_a_run_and_keeps_its_line(make: Make):
    folder = runner.start(make(), Progress())
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    follow(Watch(folder.path), terminal)
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert f"1/1 {folder.path.name}  done: " in shown


def test_what_sites_did_is_shown_below_the_bar_and_as_lines(tmp_path: Path):
    folder, clock = a_folder(tmp_path / "run"), Clock()
    live = LiveProgress(1, quiet_console(), clock)
    about = outlook(("train", 10, 6.0))
    log = EventLog(folder / EVENTS, about, live.begin(about), clock)
    for number in range(7):
        log.site(SiteEvent(when=moment(clock.now), who=f"site{number}", what="joined"))
    picture = text(live).splitlines()
    assert [each.strip().rpartition("  ")[2] for each in picture[3:]] == ["joined"] * 5
    assert "site6  joined" in picture[-1]
    assert len(left(live)) == 7
    _, _, progress = watching(folder, clock)
    assert text(progress).splitlines() == picture
    assert left(progress) == left(live)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"what": "joined"}, "2026-11-22T06:52:43Z  berlin  joined"),
        (
            {"what": "answered", "stage": "train", "round": 3, "exchange": "train", "seconds": 4.21, "bytes_up": 45000},
            "2026-11-22T06:52:43Z  berlin  answered train/3 in 4.2 s, 45 kB up",
        ),
        (
            {
                "what": "failed",
                "stage": "train",
                "round": 3,
                "exchange": "pairs",
                "bytes_down": 1,
                "why": "data\x1b[1m",
            },
            "2026-11-22T06:52:43Z  berlin  failed train/3 (pairs), 1 B down: data\\x1b[1m",
        ),
    ],
)
def test_a_line_of_a_site(more: dict[str, Any], said: str):
    for when in ("2026-11-22T06:52:43.123456Z", "2026-11-22T06:52:43Z"):
        assert line(SiteEvent(when=when, who="berlin", **more)) == said


def test_lines_are_passed_on_as_they_are(make: Make):
    folder = runner.start(make(), Progress())
    lines: list[str] = []
    said: list[str] = []
    follow_lines(Watch(folder.path), lines.append, said.append)
    assert lines == (folder.path / EVENTS).read_text().splitlines()
    assert said == []


def _accurate(lines: list[str]) -> list[str]:
    """Events of which every accuracy is 0.999."""
    return [re.sub(r'"accuracy": [\d.]+', '"accuracy": 0.999', each) for each in lines]


def _never_scored(lines: list[str]) -> list[str]:
    return [each for each in lines if '"evaluated"' not in each]


def _cut_off(lines: list[str]) -> list[str]:
    """After the first scores."""
    return lines[: next(number for number, each in enumerate(lines) if '"evaluated"' in each) + 1]


@pytest.mark.parametrize("change", [_accurate, _never_scored, _cut_off])
def test_scores_of_a_finished_run_are_those_of_its_records(make: Make, change: Callable[[list[str]], list[str]]):
    folder = runner.start(make({"train.rounds": 2, "evaluate.every": 1}), Progress())
    shown = left(watching(folder.path, time.time)[2])[-1]
    accuracies = re.search(r"test [\d.]+.*", shown)
    assert accuracies
    lines = (folder.path / EVENTS).read_text().splitlines()
    (folder.path / EVENTS).write_text("\n".join(change(lines)) + "\n")
    told = left(watching(folder.path, lambda: time.time() + 60)[2])
    assert accuracies[0] in told[-1]
    passed_on: list[str] = []
    follow_lines(Watch(folder.path, lambda: time.time() + 60), passed_on.append, passed_on.append)
    assert "0.999" not in "".join(passed_on)


def test_scores_of_a_finished_run_with_damaged_records_are_not_shown(make: Make):
    folder = runner.start(make(), Progress())
    (folder.path / "records.jsonl").write_text("")
    shown = left(watching(folder.path, time.time)[2])
    assert any("records.jsonl" in each for each in shown)
    assert not any(re.search(r"test [\d.]+", each) for each in shown)


def test_a_place_without_runs(tmp_path: Path):
    (tmp_path / "file").touch()
    with refuses("is a file"):
        Watch(tmp_path / "file")
    for options in ([], ["--once"], ["--json"], ["--json", "--once"]):
        with refuses(f"'{tmp_path / 'none'}'", "--wait"):
            CliRunner().invoke(app, ["watch", str(tmp_path / "none"), *options], catch_exceptions=False)


def test_folders_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "rows").touch()
    assert folder_names("r") == ["runs/"]
    assert folder_names("runs/") == ["runs/tiny/"]
    assert folder_names(f"{tmp_path}/runs/t") == [f"{tmp_path}/runs/tiny/"]
    assert folder_names("none/") == []


# From process to process ------------------------------------------------------------------------


def begun_to_watch(*words: str) -> fresh.Process:
    """A watch of a folder in which no run has begun."""
    watch = fresh.start(fresh.fedshift, "watch", "--wait", *words)
    fresh.until(lambda: "Waiting for a run" in watch.stdout + watch.stderr, watch)
    return watch


PAUSING = """
import os, signal
from dataclasses import dataclass
import fedshift
from fedshift.methods.fedavg import FedAvg
pauses = [signal.SIGSTOP]

@fedshift.METHODS.register("pausing")
@dataclass(frozen=True, kw_only=True)
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


def test_a_process_is_watched_by_another_to_its_end(tiny_document: dict[str, Any], tmp_path: Path):
    """Begun before the run, in plain lines and as JSON; a third comes in the middle and leaves at once."""
    runs = tmp_path / "runs"
    plain, lines = begun_to_watch(str(runs)), begun_to_watch(str(runs), "--json")
    run = paused(tiny_document, tmp_path)
    once = fresh.command("watch", runs, "--once")
    run.send_signal(signal.SIGCONT)
    for each in (run, plain, lines):
        assert each.wait() == 0, each
    (folder,) = runs.glob("*/pausing*")
    assert lines.stdout.splitlines() == (folder / EVENTS).read_text().splitlines()
    assert f"{folder.name}  done" in plain.stdout.splitlines()[-1]
    assert plain.stdout.splitlines()[-1] in run.stderr.splitlines()
    assert once.returncode == 0
    assert [word for word in ("of 4 rounds", "steps a second") if word not in once.stdout] == []


def test_a_killed_process_is_noticed_and_ctrl_c_ends_the_watching_only(tiny_document: dict[str, Any], tmp_path: Path):
    watch = begun_to_watch(str(tmp_path / "runs"))
    run = paused(tiny_document, tmp_path)
    (folder,) = tmp_path.glob("runs/*/*/")
    assert "No process" not in watch.stdout
    run.kill()
    fresh.until(lambda: f"`fedshift resume {folder}`" in watch.stdout, watch)
    assert "No process carries it out" in watch.stdout
    watch.send_signal(signal.SIGINT)
    assert watch.wait() == 130, watch
    assert "Interrupted" in watch.stderr
    again = CliRunner().invoke(app, ["watch", str(folder), "--once"], env={"COLUMNS": os.environ.get("COLUMNS", "200")})
    assert again.exit_code == 0
    assert "No process carries it out" in again.output.replace("\n", " ")


def test_every_progress_event_can_be_read(make: Make):
    folder = runner.start(make(), Progress())
    events = [event for event, _ in EventFile(folder.path / EVENTS).new()]
    assert len(events) == len(written(folder.path / EVENTS))
    moved = [event for event in events if isinstance(event, ProgressEvent)]
    assert (moved[-1].position, moved[-1].under_way) == (2, False)
