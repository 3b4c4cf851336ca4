"""What a user sees while runs go on, alone or several together, and what the folder says they took."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conftest import Make
from fedshift.api import compare
from fedshift.reporting.live import LOADING, LiveProgress, LiveRun, shown
from fedshift.runs.folder import RunFolder, Times
from fedshift.runs.progress import Outlook, Progress
from fedshift.runs.schema import Timed

STEPPED = Timed(start=0, stop=5, seconds=6.0, evaluation=3.0, together=3, engine="vectorised")


@dataclass
class Clock:
    """A clock that goes on only when it is told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


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


def written(progress: LiveProgress) -> list[str]:
    """The lines that were left so far."""
    return progress.console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO


def scores(test: float, *validation: float) -> dict[str, Any]:
    """A record of one test environment and a validation environment for each further accuracy."""
    named = [("light", "test", test), *((f"v{i}", "validation", value) for i, value in enumerate(validation))]
    rows = [{"environment": n, "role": r, "model": "global", "accuracy": a, "loss": 2 * a} for n, r, a in named]
    return {"environments": rows}


def begun(progress: Progress, *names: str, rounds: int = 10) -> list[LiveRun]:
    """Runs that begin together."""
    return [progress.begin(Outlook(name, rounds, 0)) for name in names]


def advance(clock: Clock, *runs: LiveRun, rounds: int, seconds: float = 1.0, steps: int = 5) -> None:
    """Rounds of all runs, each of so many seconds, with so many steps of a run at its end."""
    for _ in range(rounds):
        clock.now += seconds
        for run in runs:
            run.steps(steps)
            run.round(int(run.task.completed) + 1, 1000, 500)


# A terminal -------------------------------------------------------------------------------------


def test_a_run_alone(clock: Clock):
    """5 steps a second, and a second for each of the 4 rounds that are left; its title is no markup."""
    progress = display(2, clock)
    assert seen(progress) == [LOADING]
    run = progress.begin(Outlook("[red]first", 10, 2))
    advance(clock, run, rounds=4)
    run.evaluated(scores(0.5, 0.25, 0.35))
    bar, pace, _heading, *table = seen(progress)
    assert bar == "1/2 [red]first round 6 of 10 test 50.0 validation 30.0 0:00:04"
    assert pace == "5 steps a second, 1 kB down, 500 B up"
    assert table == [
        "light test global 50.0 1.000",
        "v0 validation global 25.0 0.500",
        "v1 validation global 35.0 0.700",
    ]
    run.end()
    assert seen(progress) == [LOADING]
    (second,) = begun(progress, "second")
    assert "? steps a second" in seen(progress)[1]
    second.failed("The loss is not finite.")
    assert not any(seen(progress))


def test_runs_that_advance_together(clock: Clock):
    """A line each and what all do; no table, which would change with each evaluation."""
    progress = display(4, clock)
    progress.reused("before")
    a, b = begun(progress, "a", "b")
    advance(clock, a, b, rounds=4, seconds=2.0)
    a.evaluated(scores(0.5, 0.25))
    assert seen(progress) == [
        "2/4 a round 4 of 10 test 50.0 validation 25.0 0:00:12",
        "3/4 b round 4 of 10 0:00:12",
        "6 steps a second, 2 kB down, 1 kB up",
    ]
    b.failed("The loss is not finite.")
    assert seen(progress)[-1] == "v0 validation global 25.0 0.500"


@pytest.mark.parametrize(("height", "most"), [(40, 12), (9, 6), (2, 1)])
def test_many_runs_are_shown_as_far_as_there_is_room(clock: Clock, height: int, most: int):
    """When some end, others move up."""
    progress = display(18, clock, height=height)
    runs = begun(progress, *(f"run{i}" for i in range(1, 19)))

    def bars() -> list[str]:
        return [line.split()[1] for line in seen(progress)[:-1]]

    assert bars() == [f"run{number}" for number in range(1, most + 1)]
    assert seen(progress)[-1].endswith(f"and {18 - most} more")
    for run in runs[:6]:
        run.end()
    assert bars() == [f"run{number}" for number in range(7, most + 7)]


@pytest.mark.parametrize("width", [120, 80])
def test_a_long_name_is_shortened_rather_than_a_number(clock: Clock, width: int):
    progress = display(2, clock, width)
    runs = begun(progress, "a" * 199, "b", rounds=500)
    for run in runs:
        run.evaluated(scores(0.5, 0.25))
    advance(clock, *runs, rounds=2)
    first, second, _ = seen(progress)
    assert first.endswith("a… round 2 of 500 test 50.0 validation 25.0 0:08:18")
    assert second == "2/2 b round 2 of 500 test 50.0 validation 25.0 0:08:18"


@pytest.mark.parametrize(("width", "height"), [(60, 10), (20, 5), (5, 1), (1, 1)])
def test_a_small_terminal_is_no_error(clock: Clock, width: int, height: int):
    progress = display(3, clock, width, height)
    for run in begun(progress, "a" * 99, "b"):
        run.evaluated(scores(0.5, 0.25))
        assert seen(progress)
        assert max(map(len, seen(progress))) <= width


def test_a_terminal_shows_runs_and_keeps_lines(tiny_document: dict[str, Any]):
    """The whole way, from a run to what a terminal is sent."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    with LiveProgress(1, terminal) as progress:
        progress.note("A word beforehand.")
        compare(tiny_document, progress=progress)
    text = terminal.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert text.count("A word beforehand.") == 1
    assert "done: " in text
    with LiveProgress(2, terminal) as progress:
        (run,) = begun(progress, "a")
        run.evaluated(scores(0.125))
    text = terminal.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    for word in ("round 0 of 10", "steps a second", "down", "up", "light", "12.5"):
        assert word in text


# No terminal ------------------------------------------------------------------------------------


def test_a_run_alone_without_a_terminal(clock: Clock):
    """A line each 10 s and one at the end; of 30 rounds of 2 s, 14 are done after 28 s, and 32 s are left."""
    progress = display(1, clock)
    (run,) = begun(progress, "[i]only", rounds=30)
    advance(clock, run, rounds=14, seconds=2.0)
    run.evaluated(scores(0.5, 0.25))
    clock.now += 2.0
    run.steps(5)
    advance(clock, run, rounds=1, seconds=10.0)
    run.failed("The loss is not finite.")
    lines = written(progress)
    assert len(lines) == 5
    assert lines[0].startswith("1/1 [i]only  round 4 of 30  2 steps a second, 1 kB down, 500 B up, 0:52 left")
    assert lines[2].startswith("1/1 [i]only  round 14 of 30  2 steps a second, 1 kB down, 500 B up, 0:32 left")
    assert lines[2].endswith("light test 50.0  v0 validation 25.0")
    assert lines[4] == "1/1 [i]only  failed after round 15 of 30, 0:40: The loss is not finite."


def test_runs_together_without_a_terminal(clock: Clock):
    """A line of all, with the newest accuracies, then one of each; c needs 4 s for each of its last 8 rounds."""
    progress = display(3, clock)
    a, b, c = begun(progress, "a", "b", "c")
    advance(clock, a, b, rounds=4)
    a.evaluated(scores(0.5))
    b.evaluated(scores(0.75))
    clock.now += 6.0
    c.steps(0)
    (line,) = written(progress)
    assert line.startswith("3 of 3 runs together  round 8 of 30  ")
    assert "2 kB down, 1 kB up, ? left" in line
    assert line.endswith("2/3 b  light test 75.0")
    advance(clock, c, rounds=3, seconds=4.0)
    assert "0:32 left" in written(progress)[1]
    a.end()
    b.end()
    c.end()  # it was never scored
    assert written(progress)[2:] == [
        "1/3 a  done: 20 steps in 0:22  light test 50.0",
        "2/3 b  done: 20 steps in 0:22  light test 75.0",
    ]


def test_no_line_of_all_when_only_their_last_lines_are_to_come(clock: Clock):
    progress = display(2, clock)
    for run in (runs := begun(progress, "a", "b")):
        run.round(10, 1, 1)
    clock.now += 60
    runs[0].evaluated(scores(0.5))
    assert written(progress) == []


def test_what_is_loaded_between_runs_is_no_part_of_the_pace(clock: Clock):
    progress = display(2, clock)
    for name in ("a", "b"):
        (run,) = begun(progress, name)
        advance(clock, run, rounds=3)
        assert "5 steps a second" in seen(progress)[1]
        run.end()
        clock.now += 50


def test_what_is_told_beside_runs(clock: Clock):
    """Notes once, runs that are not repeated or go on, and images that are embedded, as a line each 10 s."""
    progress = display(3, clock)
    for text in ("[i] x", "[i] x", "y", "[i] x"):
        progress.note(text)
    progress.reused("a")
    progress.embedded("means", 0, 130)
    clock.now += 10
    progress.embedded("means", 64, 130)
    assert seen(progress)[0].startswith("Embedding images with means image 64 of 130")
    progress.embedded("means", 130, 130)
    assert seen(progress) == [LOADING]
    progress.begin(Outlook("b", 10, 5))
    assert written(progress) == [
        "[i] x",
        "y",
        "[i] x",
        "1/3 a  finished before",
        "Embedding images with means: 64 of 130",
        "2/3 b  goes on from round 5",
    ]


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
    folder.timing(STEPPED.model_copy(update={"seconds": 4.0, "evaluation": 1.0, "together": 1, "engine": "sequential"}))
    folder.timing(STEPPED.model_copy(update={"seconds": 2.0, "evaluation": 0.0, "together": 2}))
    assert folder.times() == Times(7, 2, ("vectorised", "sequential"))


@pytest.mark.parametrize("line", ['{"start": 5, "stop"', '{"start": 5, "stop": 6, "seconds": 1.0}', "[]", ""])
def test_a_line_that_is_not_whole_is_left_out(make: Make, tmp_path: Path, line: str):
    folder = RunFolder.create(make(), tmp_path / "run")
    folder.timing(STEPPED)
    with (folder.path / "timings.jsonl").open("a") as file:
        file.write(f"{line}\n")
    folder.timing(STEPPED)
    assert folder.times() == Times(4, 2, ("vectorised",))
