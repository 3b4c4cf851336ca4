"""What a user sees while runs go on, alone or several together, and what the folder says they took."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conftest import Make
from fedshift.api import compare
from fedshift.core.contract import Round, Stage
from fedshift.reporting.live import LOADING, LiveProgress, LiveRun, shown
from fedshift.runs.folder import RunFolder, Times
from fedshift.runs.progress import Outlook, Progress
from fedshift.runs.schema import Timed
from fedshift.simulation.listener import Task
from fedshift.simulation.plan import PlannedStage

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


def outlook(name: str, rounds: int = 10, done: int = 0) -> Outlook:
    """A run of one stage, of 5 steps a round."""
    return Outlook(name, rounds, done, (PlannedStage("train", rounds, 5),))


def begun(progress: LiveProgress, *names: str, rounds: int = 10) -> list[LiveRun]:
    """Runs that begin together."""
    return [progress.begin(outlook(name, rounds)) for name in names]


def advance(clock: Clock, *runs: LiveRun, rounds: int, seconds: float = 1.0, steps: int = 5) -> None:
    """Rounds of all runs, each of so many seconds, with so many steps of a run at its end."""
    for _ in range(rounds):
        clock.now += seconds
        for run in runs:
            run.steps(steps)
            run.round(run.done + 1, 1000, 500)


def has(line: str, *words: str) -> bool:
    """Whether a line says what matters, in this order."""
    return re.search(".*".join(map(re.escape, words)), line) is not None


# A terminal -------------------------------------------------------------------------------------


def test_a_run_alone(clock: Clock):
    """5 steps a second, and a second for each of the 4 rounds that are left; its title is no markup.

    Both runs take 10 s, of which 4 and 10 are left.
    """
    progress = display(2, clock)
    assert seen(progress) == [LOADING]
    run = progress.begin(outlook("[red]first", 10, 2))
    advance(clock, run, rounds=4)
    run.evaluated(scores(0.5, 0.25, 0.35))
    bar, doing, pace, _heading, *table = seen(progress)
    assert has(bar, "1/2", "[red]first", "6 of 10", "50.0", "30.0", "0:04")
    assert has(doing, "train", "6 of 10")
    assert has(pace, "5 steps", "1 kB down", "500 B up", "0:14")
    assert table == [
        "light test global 50.0 1.000",
        "v0 validation global 25.0 0.500",
        "v1 validation global 35.0 0.700",
    ]
    run.end()
    assert seen(progress) == [f"{LOADING}, all 2 runs: 0:10 left"]
    (second,) = begun(progress, "second")
    assert "? steps a second" in seen(progress)[2]
    second.failed("The loss is not finite.")
    assert not any(seen(progress))


def test_runs_that_advance_together(clock: Clock):
    """A line each and what all do; no table, which would change with each evaluation."""
    progress = display(4, clock)
    progress.reused("before")
    a, b = begun(progress, "a", "b")
    advance(clock, a, b, rounds=4, seconds=2.0)
    a.evaluated(scores(0.5, 0.25))
    first, second, doing, pace = seen(progress)
    assert has(first, "2/4 a", "4 of 10", "50.0", "25.0", "0:12")
    assert has(second, "3/4 b", "4 of 10", "0:12")
    assert has(doing, "train", "4 of 10")
    assert has(pace, "5 steps", "2 kB down", "1 kB up", "0:22")
    b.failed("The loss is not finite.")
    assert seen(progress)[-1] == "v0 validation global 25.0 0.500"


@pytest.mark.parametrize(("height", "most"), [(40, 12), (10, 6), (2, 1)])
def test_many_runs_are_shown_as_far_as_there_is_room(clock: Clock, height: int, most: int):
    """When some end, others move up."""
    progress = display(18, clock, height=height)
    runs = begun(progress, *(f"run{i}" for i in range(1, 19)))

    def bars() -> list[str]:
        return [line.split()[1] for line in seen(progress)[:-2]]

    assert bars() == [f"run{number}" for number in range(1, most + 1)]
    assert seen(progress)[-1].endswith(f"and {18 - most} more runs")
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
    first, second, *_ = seen(progress)
    assert has(first, "a… ", "2 of 500", "50.0", "25.0", "8:18")
    assert has(second, "2/2 b", "2 of 500", "50.0", "25.0", "8:18")


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
    for word in ("0 of 10 rounds", "steps a second", "down", "up", "light", "12.5"):
        assert word in text


# Within a round and over all runs ---------------------------------------------------------------


def task(stage: Stage, round: int, clients: int, steps: int, exchange: str = "train") -> Task:
    """Work of a round, after 2 kB down and 1 kB up."""
    return Task(Round(stage, round), exchange, clients, steps, 2000, 1000)


def test_a_single_long_round_shows_where_it_is(clock: Clock):
    """An index as Client2Vec makes it: pairs of 3 clients, 1000 steps of the server, vectors, then 2 x 50 steps."""
    index, vectors, train = (Stage(name, rounds, ()) for name, rounds in (("index", 1), ("vectors", 1), ("train", 2)))
    plan = PlannedStage("index", 1, 0), PlannedStage("vectors", 1, 0), PlannedStage("train", 2, 50)
    progress = display(1, clock)
    run = progress.begin(Outlook("c2v", 4, 0, plan))
    assert has(seen(progress)[1], "index", "loading")
    run.begin_round(Round(index, 1))
    assert has(seen(progress)[1], "index", "1 of 1", "preparing")
    run.begin_task(task(index, 1, 3, 0, "pairs"))
    bar, doing, pace = seen(progress)[:3]
    assert has(bar, "c2v", "0 of 4", "? left")
    assert has(doing, "1 of 1", "pairs", "3 clients", "0 done", "? left")
    assert has(pace, "? steps", "2 kB down", "1 kB up")
    clock.now += 2
    run.answered()
    assert has(seen(progress)[1], "pairs", "1 done", "0:04")
    run.begin_task(task(index, 1, 0, 1000, "pairs"))
    clock.now += 8
    run.steps(200)
    # 10 s for 200 of 1000 steps: 40 s of the stage, and 100 steps of training at the same pace, 5 s.
    bar, doing, pace = seen(progress)[:3]
    assert has(bar, "0 of 4", "0:45")
    assert has(doing, "pairs", "server", "200 of 1000", "0:40")
    assert has(pace, "20 steps")
    assert run.progress() == pytest.approx(0.2)
    run.steps(800)
    clock.now += 40
    run.round(1, 2000, 1000)
    assert has(seen(progress)[1], "index", "1 of 1", "done")
    run.begin_round(Round(vectors, 1))
    run.begin_task(task(vectors, 1, 3, 0, "vectors"))
    clock.now += 1
    run.answered()
    assert has(seen(progress)[1], "vectors", "3 clients", "1 done", "0:02")
    run.round(2, 3000, 2000)
    run.begin_round(Round(train, 1))
    run.begin_task(task(train, 1, 1, 50))
    clock.now += 5
    run.steps(10)
    bar, doing = seen(progress)[:2]
    assert has(bar, "2 of 4", "0:45")  # 90 steps at 2 a second
    assert has(doing, "train", "1 of 2", "1 client", "10 of 50", "0:45")


def test_what_runs_do_together_is_added_up(clock: Clock):
    stage, progress = Stage("train", 10, ()), display(2, clock)
    for number, run in enumerate(begun(progress, "a", "b")):
        run.begin_round(Round(stage, 1))
        run.begin_task(task(stage, 1, 3, 30))
        clock.now += 1
        run.steps(4 + number)
    assert has(seen(progress)[2], "train", "1 of 10", "6 clients", "9 of 60")


@given(
    plan=st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=3)), min_size=1),
    pace=st.floats(0.01, 100),
    runs=st.integers(1, 3),
)
def test_at_a_steady_pace_the_time_left_is_right(plan: list[tuple[int, list[int]]], pace: float, runs: int):
    """Any stages, rounds and exchanges that were planned well: after every step, of a run and of all of them."""
    clock = Clock()
    progress = LiveProgress(runs, Console(file=io.StringIO()), clock)
    stages = tuple(PlannedStage(f"s{i}", rounds, sum(steps)) for i, (rounds, steps) in enumerate(plan))
    whole = sum(stage.rounds * stage.steps for stage in stages)
    rounds = sum(stage.rounds for stage in stages)
    for number in range(runs):
        run, done, position = progress.begin(Outlook("a", rounds, 0, stages)), 0, 0
        for stage, (_, exchanges) in zip(stages, plan, strict=True):
            contract_stage = Stage(stage.name, stage.rounds, ())
            for round in range(1, stage.rounds + 1):
                run.begin_round(Round(contract_stage, round))
                for steps in exchanges:
                    run.begin_task(task(contract_stage, round, 1, steps))
                    for _ in range(steps):
                        clock.now += pace
                        done += 1
                        run.steps(1)
                        assert run.left() == pytest.approx(pace * (whole - done), rel=1e-6, abs=1e-6 * pace * whole)
                        all_left = pace * ((runs - number) * whole - done)
                        assert progress.left() == pytest.approx(all_left, rel=1e-6, abs=1e-6 * pace * whole)
                position += 1
                run.round(position, 1, 1)
        assert run.left() == 0
        assert run.progress() == rounds
        run.end()


class Ticking(Clock):
    """A clock that goes on by a second whenever it is read."""

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_an_index_says_what_it_does(make: Make):
    """Client2Vec's index on real clients, in plain lines: stages, steps of the server, bytes and time left."""
    index = {"epochs": 30, "width": 8, "heads": 2, "layers": 1, "feedforward": 8, "upload": 8, "batch": 4}
    encoder = {"name": "offline", "size": 16}
    changes = {"method": {"name": "client2vec", "index": {"name": "dsa-ign", "encoder": encoder, **index}}}
    progress = display(1, Ticking())
    compare(make({**changes, "train.steps": 20, "train.lr": 0.001}), progress=progress)
    lines = written(progress)
    # Two clients upload 8 pairs each, so an epoch has 4 batches.
    ours = [line for line in lines if "index, round 1 of 1 (pairs): server, step " in line]
    assert len(ours) > 3
    assert "step 0 of 120, ? left  ? steps a second, " in ours[0]
    assert all(re.search(r"step \d+ of 120, [\d:]+ left  .* kB up  run: [\d:]+ left$", line) for line in ours[1:])
    assert any("train, round 1 of 2: 2 clients, step " in line for line in lines)


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
    run.failed("The loss of 'a\nb' is not finite.")
    lines = written(progress)
    assert len(lines) == 5
    done = "done", "2.5 steps", "1 kB down", "500 B up"
    assert has(lines[0], "1/1 [i]only", "4 of 30", *done, "0:52")
    assert has(lines[2], "1/1 [i]only", "14 of 30", *done, "0:32", "light test 50.0", "v0 validation 25.0")
    assert lines[4] == "1/1 [i]only  given up after round 15 of 30, 0:40: The loss of 'a\\nb' is not finite."


def test_runs_together_without_a_terminal(clock: Clock):
    """A line of all, with the newest accuracies, then one of each.

    After 22 s c has taken 15 steps and done 2 rounds; 8 rounds of 5 steps take 40 * 22 / 15 = 58.7 s.
    """
    progress = display(3, clock)
    a, b, c = begun(progress, "a", "b", "c")
    advance(clock, a, b, rounds=4)
    a.evaluated(scores(0.5))
    b.evaluated(scores(0.75))
    clock.now += 6.0
    c.steps(0)
    (line,) = written(progress)
    assert line.startswith("3 of 3 runs together  8 of 30 rounds  ")
    assert "2 kB down, 1 kB up  these runs: ? left" in line
    assert line.endswith("2/3 b  light test 75.0")
    advance(clock, c, rounds=3, seconds=4.0)
    assert "  these runs: 0:59 left  " in written(progress)[1]
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
        assert "5 steps a second" in seen(progress)[2]
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
    progress.begin(outlook("b", 10, 5))
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
    run = progress.begin(outlook("b", 2))
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
    assert [line.score for line in few] == pytest.approx([0.3, 0.4, 0.5])
    middle, worst = shown(record([f"e{i}" for i in range(20)], [i / 20 for i in range(20)]))
    assert (middle.environment, worst.environment) == ("mean", "worst (e0)")
    assert (middle.score, middle.loss, worst.score) == pytest.approx((0.475, 0.95, 0))


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
