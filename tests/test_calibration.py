"""Which engine is chosen: the fastest that was measured, without a trace in the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from conftest import CNN_WITH_BN, Make, go_on, simulate
from fedshift.core.training import RunOptions
from fedshift.engines import choice as choices
from fedshift.engines import timings
from fedshift.engines.choice import LIMITS, Choice, cores, open_engine, requested_engine
from fedshift.engines.engine import Job
from fedshift.engines.kernels import Kernels
from fedshift.engines.onednn import onednn_available
from fedshift.engines.timings import calibrate, choose
from fedshift.engines.vectorised import Vectorised
from fedshift.engines.workers import can_fork
from fedshift.errors import DivergedError
from fedshift.runs.simulation import Simulation
from refusal import refuses
from test_methods import assert_same, small, tensors_of

forks = pytest.mark.skipif(not can_fork(), reason="processes cannot be forked here")
AUTO = RunOptions()


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, and no run is too short to be measured for."""
    monkeypatch.setattr(timings, "SHORT_RUN", 0.0)
    for module in (timings, choices):
        monkeypatch.setattr(module, "cores", lambda: 4)


@dataclass
class Machine:
    """A machine whose clock moves only when clients work, that many milliseconds for two steps of one."""

    milliseconds: Callable[[Choice], float]
    unstackable: bool = False
    now: float = 0.0

    @contextmanager
    def open_engine(self, choice: Choice, notify: Callable[[str], None] = lambda text: None) -> Iterator[Any]:
        def train(jobs: Sequence[Job]) -> Iterator[Any]:
            if self.unstackable and choice.engine == "vectorised":
                notify("they cannot be stacked")
            for _ in jobs:
                self.now += 2 * self.milliseconds(choice) / 1000
                yield SimpleNamespace(steps=2)

        yield SimpleNamespace(train=train)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """A function that replaces this machine by one with a fake clock."""

    def build(milliseconds: Callable[[Choice], float], unstackable: bool = False) -> Machine:
        made = Machine(milliseconds, unstackable)
        monkeypatch.setattr(timings, "open_engine", made.open_engine)
        monkeypatch.setattr(timings, "time", SimpleNamespace(perf_counter=lambda: made.now))
        return made

    return build


def example(make: Make, changes: dict[str, Any] | None = None) -> list[Job]:
    return Simulation(make(changes)).example()


def nobody(text: str) -> None:
    """Takes no notice."""


@forks
@pytest.mark.parametrize(
    "expected",
    [Choice("sequential", 1, 4, Kernels()), Choice("vectorised", 1, 4, Kernels()), Choice("workers", 4, 1, Kernels())],
    ids=str,
)
def test_the_fastest_is_chosen(make: Make, machine: Callable[..., Machine], expected: Choice):
    machine(lambda choice: 1.0 if choice == expected else 1.05)
    assert choose(example(make, {"train.precision": "float64"}), AUTO, nobody) == expected


@pytest.mark.skipif(not onednn_available(), reason="this build of PyTorch has no oneDNN")
def test_engines_are_measured_with_the_fastest_kernels(make: Make, machine: Callable[..., Machine]):
    best = Kernels(channels_last=True, linear="onednn")
    machine(lambda choice: 1.0 if choice.kernels == best else 2.0)
    measured = calibrate(example(make, CNN_WITH_BN), AUTO)
    assert len(measured.kernels) == 4
    assert {timing.choice.kernels for timing in measured.engines} == {best}
    assert measured.best.choice.kernels == best


def test_the_options_limit_what_is_tried(make: Make, machine: Callable[..., Machine]):
    """One worker is no gain over the sequential engine, and a cohort of one client has no one to be stacked with."""
    machine(lambda choice: 1.0)

    def tried(changes: dict[str, Any], **options: Any) -> list[tuple[str, int, int]]:
        found = calibrate(example(make, {"train.precision": "float64", **changes}), RunOptions(**options)).engines
        return [(timing.choice.engine, timing.choice.workers, timing.choice.threads) for timing in found]

    two = [("sequential", 1, 1), ("sequential", 1, 2), ("vectorised", 1, 2)]
    assert tried({}, threads=2, workers=1) == two
    assert tried({}, threads=2, workers=3) == ([*two, ("workers", 3, 1)] if can_fork() else two)
    assert tried({"train.participation": 0.5}, threads=1) == [("sequential", 1, 1)]


def test_what_could_not_be_stacked_is_never_chosen(make: Make, machine: Callable[..., Machine]):
    machine(lambda choice: 0.1 if choice.engine == "vectorised" else 1.0, unstackable=True)
    lines: list[str] = []
    assert choose(example(make), AUTO, lines.append).engine != "vectorised"
    assert "vectorised" not in lines[0]


def test_a_short_run_is_not_measured_for(make: Make, machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    """Two clients of two steps, 1 ms each: 2,500 rounds take 10 s, and only from then on it is worth it."""
    monkeypatch.setattr(timings, "SHORT_RUN", 10.0)
    made = machine(lambda choice: 1.0 if choice.engine == "sequential" else 0.5)
    lines: list[str] = []
    assert choose(example(make, {"train.rounds": 2490}), AUTO, lines.append) == Choice("sequential", 1, 4, Kernels())
    assert not lines
    assert made.now == pytest.approx(0.006)  # three times two steps
    assert choose(example(make, {"train.rounds": 2510}), AUTO, lines.append).engine == "vectorised"
    assert len(lines) == 1
    assert made.now < 0.006 * 2 + 1.2  # a tenth of the run, and the last lap


# For real -----------------------------------------------------------------------------------------


def test_measuring_leaves_no_trace_in_the_run(make: Make):
    """Server, store, bytes, messages, thread count and torch's generator are as before; so is the run that follows."""
    experiment = make({**small("client2vec"), "run.threads": 1})
    simulation = Simulation(experiment)
    before = {key: tensor.clone() for key, tensor in tensors_of(simulation).items()}
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    measured = calibrate(simulation.example(), RunOptions(threads=1), seconds=0.1)
    assert {timing.choice.engine for timing in measured.engines} >= {"sequential", "vectorised"}
    assert all(timing.milliseconds > 0 for timing in (*measured.kernels, *measured.engines))
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert (simulation.coordinator.position, simulation.coordinator.sent) == (0, (0, 0))
    assert not simulation.coordinator.ledger.entries
    assert not simulation.site.store.ids()
    after = tensors_of(simulation)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    while simulation.coordinator.position < simulation.rounds:
        go_on(simulation)
    assert_same(simulate(experiment), simulation)


# Asking for one -----------------------------------------------------------------------------------


def test_an_engine_that_is_asked_for_is_not_measured(make: Make):
    """Channels last where there are convolutions, everything else as PyTorch does it."""

    def chosen(changes: dict[str, Any] | None = None, **options: Any) -> Choice:
        return requested_engine(Simulation(make(changes)).setup, RunOptions(**options))

    assert chosen(engine="sequential") == Choice("sequential", 1, 4, Kernels())
    assert chosen(CNN_WITH_BN, engine="vectorised", threads=3) == Choice("vectorised", 1, 3, Kernels(True))
    if can_fork():
        assert chosen(engine="workers") == Choice("workers", 4, 1, Kernels())
        assert chosen(engine="workers", workers=3, threads=2) == Choice("workers", 3, 1, Kernels())


def test_workers_that_cannot_be_had(make: Make, monkeypatch: pytest.MonkeyPatch):
    setup, options = Simulation(make()).setup, RunOptions(engine="workers")
    if can_fork():
        with refuses("run.engine = 'workers'", "'meta'", "--set run.device=cpu"):
            requested_engine(replace(setup, device=torch.device("meta")), options)
    monkeypatch.setattr(choices, "can_fork", lambda: False)
    with refuses("run.engine = 'workers'", "auto"):
        requested_engine(setup, options)


def test_a_choice_opens_its_engine_and_gives_the_threads_back():
    before, choice = torch.get_num_threads(), Choice("vectorised", 1, 2, Kernels(True))
    with open_engine(choice) as engine:
        assert type(engine) is Vectorised
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    assert Choice.from_table(json.loads(json.dumps(choice.table()))) == choice
    assert str(choice) == "vectorised on 2 threads, channels last"


def test_a_run_that_diverges_while_it_is_measured_is_left_to_say_so_itself(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timings, "_seconds", Mock(side_effect=DivergedError("not finite", "a smaller rate")))
    assert choose(example(make), AUTO, nobody).engine == "sequential"


def test_the_smallest_limit_of_threads_counts(monkeypatch: pytest.MonkeyPatch):
    """Of a list its first number; what is not a number limits nothing."""
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    for values, count in (({}, 8), ({"OMP_NUM_THREADS": "3, 2", "MKL_NUM_THREADS": "5", "OMP_THREAD_LIMIT": "x"}, 3)):
        for name in LIMITS:
            monkeypatch.setenv(name, values.get(name, ""))
        assert cores() == count


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_cores_are_those_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
