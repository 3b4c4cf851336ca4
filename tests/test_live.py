"""What a user sees while runs go on, alone or several together, and what the folder says they took."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from conftest import Make
from fedshift.api import compare
from fedshift.reporting import live
from fedshift.reporting.live import LOADING, LiveProgress, LiveRun, shown
from fedshift.runs.folder import RunFolder, Times
from fedshift.runs.progress import Outlook, Progress

STEPPED = {"from": 0, "to": 5, "seconds": 6.0, "evaluation": 3.0, "together": 3, "engine": "vectorised"}


@dataclass
class Clock:
    """A clock that goes on only when it is told to."""

    now: float = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def seen(progress: LiveProgress) -> list[str]:
    """The lines that a terminal shows now, with single spaces and without bars."""
    console = Console(file=io.StringIO(), width=progress.console.width)
    console.print(progress.view())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [" ".join(word for word in line.split() if word.strip("━╸╺")) for line in lines]


def written(progress: LiveProgress) -> list[str]:
    """The lines that were left so far."""
    return progress.console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def scores(test: float, *validation: float) -> dict[str, Any]:
    """A record of one test environment and a validation environment for each further accuracy."""
    named = [("light", "test", test), *((f"v{i}", "validation", value) for i, value in enumerate(validation))]
    rows = [{"environment": n, "role": r, "model": "global", "accuracy": a, "loss": 2 * a} for n, r, a in named]
    return {"environments": rows}


def plain(runs: int) -> LiveProgress:
    """A display without a terminal."""
    return LiveProgress(runs, Console(file=io.StringIO(), width=100, height=40))


def begun(progress: Progress, *names: str, rounds: int = 10) -> list[LiveRun]:
    """Runs that begin together."""
    return [progress.begin(Outlook(name, rounds, 0)) for name in names]


# One run ----------------------------------------------------------------------------------------


def test_a_run_alone(clock: Clock):
    """40 steps in 8 s are 5 a second; 2 new rounds in 8 s leave 6 rounds, 24 s."""
    progress = plain(2)
    assert seen(progress) == [LOADING]
    run = progress.begin(Outlook("[red]first", 10, 2))
    run.steps(40)
    clock.now += 8
    run.round(4, 3000, 2000)
    run.evaluated(scores(0.5, 0.25))
    assert seen(progress) == [
        "1 of 2: [red]first round 4 of 10",
        "round 4 of 10, 5 steps a second, 3 kB down, 2 kB up, 0:24 left",
        "environment scored for model accuracy % loss",
        "light test global 50.0 1.000",
        "v0 validation global 25.0 0.500",
    ]
    assert (run.bar().completed, run.bar().total) == (4, 10)
    run.end()
    assert seen(progress) == [LOADING]
    (second,) = begun(progress, "second")
    second.steps(30)
    clock.now += 10
    assert seen(progress)[1] == "round 0 of 10, 3 steps a second, 0 B down, 0 B up, ? left"
    second.round(10, 1, 1)
    second.evaluated(scores(1.0))
    second.end()
    assert seen(progress) == []
    assert written(progress) == [
        "[red]first: goes on from round 2",
        "1 of 2: [red]first  done in 0:08, 5 steps a second  light test 50.0  v0 validation 25.0",
        "2 of 2: second  done in 0:10, 3 steps a second  light test 100.0",
    ]


def test_a_run_alone_without_a_terminal(clock: Clock):
    """A line each 10 s: of steps until models are scored, of scores from then on, and none for the last of them."""
    progress = plain(1)
    (run,) = begun(progress, "only", rounds=3)
    for _ in range(3):
        clock.now += 5
        run.steps(10)  # the second of them 10 s after the beginning
    run.round(1, 1, 1)
    run.evaluated(scores(0.5))  # 5 s after that line
    clock.now += 10
    run.steps(10)
    run.round(2, 2, 2)
    run.evaluated(scores(0.6))
    clock.now += 10
    run.round(3, 3, 3)
    run.evaluated(scores(0.7))
    run.end()
    assert written(progress) == [
        "1 of 1: only  round 0 of 3, 2 steps a second, 0 B down, 0 B up, ? left",
        "1 of 1: only  round 2 of 3, 2 steps a second, 2 B down, 2 B up, 0:12 left  light test 60.0",
        "1 of 1: only  done in 0:35, 1 steps a second  light test 70.0",
    ]


def test_a_run_that_is_never_scored_leaves_no_line(clock: Clock):
    progress = plain(1)
    (run,) = begun(progress, "index")
    run.end()
    assert written(progress) == []


# Several ----------------------------------------------------------------------------------------


def test_runs_that_advance_together(clock: Clock):
    """60 steps of all in 20 s; 6 rounds left each, of which b makes 2 in 20 s: 60 s until the last is done."""
    progress = plain(4)
    progress.reused("before")
    a = progress.begin(Outlook("a", 10, 0))
    b = progress.begin(Outlook("[b]", 10, 2))
    c = progress.begin(Outlook("c", 10, 0))
    for run in (a, b, c):
        run.steps(20)
    clock.now += 20
    a.round(4, 1000, 500)
    b.round(4, 2000, 500)
    assert seen(progress)[-1] == "3 of 4 runs together: 3 steps a second, 3 kB down, 1 kB up, ? left"
    c.round(4, 3000, 500)
    a.evaluated(scores(0.5, 0.2, 0.4))
    c.evaluated(scores(0.25))
    assert seen(progress) == [
        "run round test % validation %",
        "2 a 4 of 10 50.0 30.0",
        "3 [b] 4 of 10",
        "4 c 4 of 10 25.0",
        "3 of 4 runs together: 3 steps a second, 6 kB down, 1.5 kB up, 1:00 left",
    ]


def test_what_is_shown_when_the_others_have_ended(clock: Clock):
    """The last one left has the display of a run alone; the pace stays the machine's since the first began."""
    progress = plain(2)
    a, b = begun(progress, "a", "b")
    a.steps(50)
    clock.now += 10
    b.steps(50)
    b.round(5, 8, 9)
    a.failed("The loss is not finite.")
    assert seen(progress)[:2] == [
        "2 of 2: b round 5 of 10",
        "round 5 of 10, 10 steps a second, 8 B down, 9 B up, 0:10 left",
    ]


@pytest.mark.parametrize(("height", "most"), [(40, 12), (9, 4), (2, 1)])
def test_many_runs_are_shown_as_far_as_there_is_room(clock: Clock, height: int, most: int):
    """18 runs with 1 % to 18 % on test; the last ones are told in a range. When some end, others move up."""
    progress = LiveProgress(18, Console(file=io.StringIO(), width=100, height=height))
    runs = begun(progress, *(f"run{i}" for i in range(1, 19)))
    for number, run in enumerate(runs, start=1):
        run.evaluated(scores(number / 100))
    _heading, *rows, more, together = seen(progress)
    assert rows == [f"{number} run{number} 0 of 10 {number}.0" for number in range(1, most + 1)]
    assert more == f"and {18 - most} more test {most + 1}.0 to 18.0"
    assert together.startswith("18 of 18 runs together: ")
    for run in runs[:6]:
        run.end()
    rows = seen(progress)[1:]
    assert rows[:most] == [f"{number} run{number} 0 of 10 {number}.0" for number in range(7, most + 7)]
    assert len(rows) == (13 if most == 12 else most + 2)


@pytest.mark.parametrize("width", [80, 60])
def test_a_long_name_is_shortened_rather_than_a_number(clock: Clock, width: int):
    progress = LiveProgress(2, Console(file=io.StringIO(), width=width))
    for run in begun(progress, "a" * 99, "b", rounds=500):
        run.evaluated(scores(0.5, 0.25))
    first, second = seen(progress)[1:3]
    assert first.endswith("… 0 of 500 50.0 25.0")
    assert second == "2 b 0 of 500 50.0 25.0"


def test_runs_together_without_a_terminal(clock: Clock):
    """A line of all each 10 s, then one of each run; 200 steps in 20 s and in 25 s are 10 and 8 a second in all."""
    progress = plain(3)
    a, b, c = begun(progress, "a", "b", "c")
    clock.now += 9
    for run in (a, b, c):
        run.steps(50)
    clock.now += 1
    a.steps(50)  # 200 steps in 10 s
    for accuracy, run in enumerate((a, b), start=4):
        run.round(5, 1000, 1000)
        run.evaluated(scores(accuracy / 10, 0.5))
    clock.now += 10
    b.steps(0)
    for run in (a, b, c):
        run.round(10, 2000, 2000)
    b.end()
    clock.now += 5
    c.failed("The loss is not finite.")
    a.end()
    assert written(progress) == [
        "3 of 3 runs together: 20 steps a second, 0 B down, 0 B up, ? left  0 of 30 rounds",
        "3 of 3 runs together: 10 steps a second, 2 kB down, 2 kB up, ? left  10 of 30 rounds"
        "  test 40.0 to 50.0  validation 50.0",
        "2 of 3: b  done in 0:20 with 2 others, 10 steps a second in all  light test 50.0  v0 validation 50.0",
        "3 of 3: c  failed after round 10 of 10, 0:25 with 2 others: The loss is not finite.",
        "1 of 3: a  done in 0:25 with 2 others, 8 steps a second in all  light test 40.0  v0 validation 50.0",
    ]


def test_no_line_of_all_when_their_last_lines_are_due(clock: Clock):
    progress = plain(2)
    for run in (runs := begun(progress, "a", "b")):
        run.round(10, 1, 1)
    clock.now += 60
    runs[0].evaluated(scores(0.5))
    assert written(progress) == []


def test_others_are_as_many_as_were_under_way_at_once(clock: Clock):
    """Run a meets b, then c, never both; d is alone, and its pace is its own: 7 steps in 1 s."""
    progress = plain(4)
    a, b = begun(progress, "a", "b")
    b.failed("b")
    (c,) = begun(progress, "c")
    c.failed("c")
    a.failed("a")
    (d,) = begun(progress, "d")
    clock.now += 1
    d.steps(7)
    d.evaluated(scores(0.5))
    d.end()
    assert written(progress) == [
        "2 of 4: b  failed after round 0 of 10, 0:00 with 1 other: b",
        "3 of 4: c  failed after round 0 of 10, 0:00 with 1 other: c",
        "1 of 4: a  failed after round 0 of 10, 0:00 with 1 other: a",
        "4 of 4: d  done in 0:01, 7 steps a second  light test 50.0",
    ]


def test_what_is_loaded_between_beginnings_is_no_part_of_the_pace(clock: Clock):
    progress = plain(2)
    (a,) = begun(progress, "a")
    clock.now += 50
    begun(progress, "b")
    a.steps(20)
    clock.now += 10
    assert "together: 2 steps a second" in seen(progress)[-1]


# Beside runs ------------------------------------------------------------------------------------


def test_a_note_is_left_once():
    progress = plain(1)
    for text in ("[i] one", "[i] one", "two", "[i] one"):
        progress.note(text)
    assert written(progress) == ["[i] one", "two", "[i] one"]


def test_reused_runs_count():
    progress = plain(2)
    progress.reused("a")
    (b,) = begun(progress, "b")
    assert written(progress) == ["[1 of 2] a  finished before"]
    assert b.title == "2 of 2: b"


def test_images_that_are_embedded(clock: Clock):
    """Shown until all are, beside runs that have begun; without a terminal as a line each 10 s."""
    progress = plain(2)
    progress.embedded("means", 0, 130)
    assert seen(progress) == ["Embedding images with means: 0 of 130"]
    assert written(progress) == []
    clock.now += 10
    progress.embedded("means", 64, 130)
    assert written(progress) == ["Embedding images with means: 64 of 130"]
    progress.embedded("means", 130, 130)
    assert seen(progress) == [LOADING]
    begun(progress, "a")
    progress.embedded("means", 64, 130)
    assert seen(progress)[0].startswith("1 of 2: a")
    assert seen(progress)[-1] == "Embedding images with means: 64 of 130"


def test_a_terminal_is_sent_scores_at_once_and_keeps_lines(clock: Clock):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with LiveProgress(2, terminal) as progress:
        a, b = begun(progress, "a", "b")
        clock.now += 60
        a.evaluated(scores(0.125))
        progress.note("A word.")
        a.end()
        b.evaluated(scores(0.375))
        text = terminal.file.getvalue()  # type: ignore[attr-defined]
        assert "37.5" in text
        assert "1 of 2: a  done in 1:00 with 1 other" in text
        assert text.count("A word.") == 1


def test_a_terminal_shows_runs_and_notes(tiny_document: dict[str, Any]):
    """The whole way, from a run to what a terminal is sent."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    with LiveProgress(1, terminal) as progress:
        progress.note("A word beforehand.")
        compare(tiny_document, progress=progress)
        text = terminal.file.getvalue()  # type: ignore[attr-defined]
    for word in ("round 2 of 2", "steps a second", "down", "up", "left", "validation", "light", "done in"):
        assert word in text
    assert text.count("A word beforehand.") == 1


def test_all_are_silent_by_default(capsys: pytest.CaptureFixture[str]):
    progress = Progress()
    progress.embedded("means", 0, 1)
    progress.note("A word.")
    progress.reused("a")
    run = progress.begin(Outlook("b", 2, 0))
    run.steps(1)
    run.round(1, 1, 1)
    run.evaluated(scores(0.5))
    run.end()
    run.failed("no")
    assert capsys.readouterr() == ("", "")


def test_means_over_clients_and_of_many_environments_the_worst():
    """3 environments of 2 clients: 3 lines. 20 environments: two lines; the mean of 0.00, 0.05, ..., 0.95 is 0.475."""

    def record(names: list[str], accuracies: list[float]) -> dict[str, Any]:
        pairs = zip(names, accuracies, strict=True)
        rows = [{"environment": n, "role": "test", "model": "own", "accuracy": a, "loss": 2 * a} for n, a in pairs]
        return {"environments": rows}

    few = shown(record(["a", "b", "c"] * 2, [0.1, 0.2, 0.3, 0.5, 0.6, 0.7]))
    assert [line.environment for line in few] == ["a", "b", "c"]
    assert [line.accuracy for line in few] == pytest.approx([0.3, 0.4, 0.5])
    middle, worst = shown(record([f"e{i}" for i in range(20)], [i / 20 for i in range(20)]))
    assert (middle.environment, worst.environment) == ("mean", "worst (e0)")
    assert (middle.accuracy, middle.loss, worst.accuracy) == pytest.approx((0.475, 0.95, 0))


# What it took -----------------------------------------------------------------------------------


def test_shared_time_is_divided(make: Make, tmp_path: Path):
    """Training 6/3 + 4 + 2/2 = 7 s, evaluation 3/3 + 1 + 0 = 2 s."""
    folder = RunFolder.create(make(), tmp_path / "run")
    assert folder.times() == Times(0, 0, ())
    folder.timing(STEPPED)
    folder.timing(STEPPED | {"seconds": 4.0, "evaluation": 1.0, "together": 1, "engine": "sequential"})
    folder.timing(STEPPED | {"seconds": 2.0, "evaluation": 0.0, "together": 2})
    assert folder.times() == Times(7, 2, ("vectorised", "sequential"))


@pytest.mark.parametrize("line", ['{"from": 5, "to"', '{"from": 5, "to": 6, "seconds": 1.0}', "[]", ""])
def test_a_line_that_is_not_whole_is_left_out(make: Make, tmp_path: Path, line: str):
    folder = RunFolder.create(make(), tmp_path / "run")
    folder.timing(STEPPED)
    with (folder.path / "timings.jsonl").open("a") as file:
        file.write(f"{line}\n")
    folder.timing(STEPPED)
    assert folder.times() == Times(4, 2, ("vectorised",))
