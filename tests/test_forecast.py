"""How long work takes, told from a part of it: against clocks that are known, and in runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedshift
from conftest import Make, simulate
from fedshift.engines import calibration, local
from fedshift.engines import forecast as module
from fedshift.engines.calibration import Calibration, Measured, Timing
from fedshift.engines.choice import Choice
from fedshift.engines.forecast import PATIENCE, Announcing, forecast
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.engines.shortened import Shortener, steps_of
from fedshift.methods import METHODS
from fedshift.runs import runner
from fedshift.runs.preparation import prepare
from fedshift.runs.progress import Progress
from fedshift.simulation.dry_run import estimate
from fedshift.simulation.listener import Listener
from fedshift.simulation.rounds import advance
from fedshift.simulation.simulation import Simulation
from test_methods import assert_same, small

INDEX = {
    "method": {
        "name": "client2vec",
        "index": {"name": "dsa-ign", "epochs": 6, "batch": 4, "encoder": {"name": "offline", "size": 16}},
    }
}


class Listening(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@given(
    lanes=st.lists(st.integers(0, 5000), min_size=1, max_size=6),
    beside=st.floats(0, 0.5),
    step=st.floats(1e-5, 2.0),
)
def test_a_forecast_is_what_the_whole_takes_and_stays_brief(lanes: list[int], beside: float, step: float):
    """A clock of so much a step and so much beside it; several phases or clients of different lengths."""
    now = [0.0]

    def do(limit: int) -> int:
        steps = sum(min(limit, lane) for lane in lanes)
        now[0] += beside + step * steps
        return steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        told = forecast(do, sum(lanes))
    assert told == pytest.approx(beside + step * sum(lanes), rel=1e-6, abs=1e-6)
    few = beside + step * sum(min(2, lane) for lane in lanes)
    assert now[0] <= 2 * few + 2 * max(PATIENCE, 4 * few) + 1e-6


@given(limit=st.integers(1, 30) | st.just(sys.maxsize))
def test_shortened_jobs_have_so_many_steps_at_most(limit: int):
    (job, *_) = example()
    cut = Shortener(limit)(job)
    assert steps_of(cut) == min(limit, steps_of(job))
    assert (cut is job) == (limit >= steps_of(job))


def example() -> list[Any]:
    from conftest import TINY
    from fedshift.settings.grid import expand, override

    (experiment,) = expand(override(TINY, {"train.unit": "epochs", "train.steps": 3}))
    return Simulation(experiment).example()


def test_jobs_of_one_exchange_share_the_shortened_one():
    shortener = Shortener(2)
    assert len({id(shortener(job).exchange) for job in example()}) == 1


def test_a_dry_run_counts_every_stage(make: Make):
    """The server trains the index for epochs of pairs, whose number follows from what clients upload."""
    experiment = make(INDEX)
    cost = estimate(experiment)
    whole = simulate(experiment)
    assert [stage.name for stage in cost.stages] == [stage.name for stage in whole.setup.stages]
    assert [stage.rounds for stage in cost.stages] == [stage.rounds for stage in whole.setup.stages]
    index, vectors, train = cost.stages
    assert index.steps >= 6
    assert (vectors.steps, train.steps) == (0, 8)
    assert cost.steps == sum(stage.steps for stage in cost.stages)
    sent = sum(stage.rounds * (stage.bytes_down + stage.bytes_up) for stage in cost.stages)
    assert sent == whole.coordinator.bytes_down + whole.coordinator.bytes_up


class Steps(Listener):
    """Counts steps."""

    taken = 0

    def steps(self, count: int) -> None:
        self.taken += count


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_dry_run_counts_the_steps_and_bytes_that_a_run_takes(make: Make, name: str):
    experiment = make({**small(name), "train.rounds": 3})
    cost, whole, heard = estimate(experiment), Simulation(experiment), Steps()
    engine = Sequential()
    while whole.coordinator.position < whole.rounds:
        assert not advance([whole], engine, {whole: heard})
    assert (cost.rounds, cost.steps) == (whole.rounds, heard.taken)
    assert sum(stage.rounds * stage.bytes_up for stage in cost.stages) == whole.coordinator.bytes_up


def test_a_dry_run_of_any_length_ends(make: Make):
    cost = estimate(make({"train.rounds": 10**7}))
    assert cost.rounds == 10**7
    assert cost.steps == 4 * 10**7
    assert fedshift.estimate(make({"train.rounds": 10**7}))[0].cost


@pytest.mark.parametrize("begin", ["a run", "the index alone"])
def test_a_stage_that_takes_long_is_announced(make: Make, monkeypatch: pytest.MonkeyPatch, begin: str):
    """With the setting that makes it shorter; short stages say nothing, and results are as without."""
    monkeypatch.setattr(module, "MANY", 20)
    monkeypatch.setattr(module, "LONG", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    progress, experiment = Listening(), make(INDEX)
    if begin == "a run":
        assert runner.start(experiment, progress).finished
    else:
        made = prepare(experiment, "index", progress)
        monkeypatch.setattr(module, "MANY", sys.maxsize)
        assert_same(prepare(experiment, "index", Progress()), made)
    (note,) = progress.notes
    assert note.startswith("The stage 'index' takes about 0:01:00 (h:mm:ss) on this machine.")
    assert "method.index.epochs" in note


def test_only_what_takes_long_is_announced(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MANY", 0)
    monkeypatch.setattr(module, "LONG", 3600.0)
    progress = Listening()
    assert runner.start(make(), progress).finished
    assert not progress.notes


def test_the_rest_of_a_stage_is_what_counts(make: Make, monkeypatch: pytest.MonkeyPatch):
    """In the last of 10,000 rounds nothing is left that would take long."""
    told: list[str] = []
    monkeypatch.setattr(module, "forecast", lambda do, whole: 1.0 + 0 * do(1))
    simulation = Simulation(make({"train.rounds": 10_000}))
    (job, *_) = simulation.example()
    stage = job.round.stage
    for number, expected in ((10_000, 0), (1, 1)):
        engine = Announcing(Sequential(), told.append)
        list(engine.train([replace(job, round=replace(job.round, number=number, stage=stage))]))
        assert len(told) == expected
    assert "takes about 2:47:00" in told[0]
    assert "train.rounds or train.steps" in told[0]


def test_steps_of_measuring_are_nobodys_progress(make: Make, monkeypatch: pytest.MonkeyPatch):
    """Listeners hear of each step once, although the first round is partly done to measure it."""
    monkeypatch.setattr(module, "MANY", 0)
    simulation, heard = Simulation(make()), list[int]()
    listener = Listener()
    listener.steps = heard.append  # type: ignore[method-assign]  # a test's own
    assert not advance([simulation], Announcing(Sequential(), lambda text: None), {simulation: listener})
    assert min(heard) >= 0
    assert sum(heard) == 2 * len(simulation.federation.clients)


def measured(milliseconds: float, choice: Choice) -> Calibration:
    """A calibration in which one way took so long for a step."""
    ways = Measured((Timing(choice, (milliseconds / 1000,) * 5, 1),))
    return Calibration(ways, ways)


def test_a_dry_run_takes_no_step_and_measures_nothing(make: Make, monkeypatch: pytest.MonkeyPatch):
    for name in ("choose", "calibrate", "_estimate", "_go"):
        monkeypatch.setattr(calibration, name, Mock(side_effect=AssertionError("something is measured")))
    monkeypatch.setattr(local, "_step", Mock(side_effect=AssertionError("a step is taken")))
    for changes in (INDEX, small("fedsdr"), {"train.rounds": 10**7}):
        cost = estimate(make(changes))
        assert cost.steps > 0
        assert cost.seconds is None
    assert fedshift.estimate(make())[0].cost


@pytest.mark.parametrize("engine", ["auto", "sequential"])
def test_a_dry_run_remembers_what_was_measured(
    make: Make, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """For any number of rounds, as a step takes as long; not for another batch, which was not measured."""
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path))
    changes = {"run.engine": engine, "run.threads": 1}
    experiment = make({**changes, "train.rounds": 3})
    choice = Choice("sequential", 1, 1, Kernels())
    calibration.remember(Simulation(experiment).example(), experiment.run, measured(5.0, choice))
    cost = estimate(make({**changes, "train.rounds": 30}))
    assert cost.seconds == pytest.approx(cost.steps * 0.005)
    assert any("sequential on 1 thread, 5.00 ms" in note for note in cost.notes)
    assert estimate(make({**changes, "train.batch": 5})).seconds is None


def test_what_was_measured_of_another_engine_tells_nothing(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path))
    experiment = make({"run.engine": "vectorised", "run.threads": 1})
    calibration.remember(
        Simulation(experiment).example(), experiment.run, measured(5.0, Choice("sequential", 1, 1, Kernels()))
    )
    assert estimate(experiment).seconds is None
