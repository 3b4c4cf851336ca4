"""Worker processes: they give what the reference gives bit for bit, and their deaths and errors lose nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import CNN_WITH_BN, Make, results, resume, simulate
from fedshift.core.contract import LocalWork
from fedshift.core.messages import Down
from fedshift.core.tensors import Tensors
from fedshift.engines.engine import Job, Outcome
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.engines.workers import Workers, can_fork
from fedshift.errors import FedshiftError
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import runner, scheduling
from fedshift.runs.events import Progress
from fedshift.runs.lockstep import advance
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation
from refusal import refuses
from test_methods import assert_same

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be forked here")
linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="requests Linux")

THREE = {"protocol": {"name": "in-domain"}, "train.rounds": 4}


@pytest.fixture
def engine() -> Iterator[Workers]:
    """Two workers."""
    engine = Workers(Kernels(), 2)
    yield engine
    engine.close()


def jobs_of(simulation: Simulation) -> list[Job]:
    """What every client is requested to do in the first round."""
    coordinator, first = simulation.coordinator, simulation.coordinator.schedule[0]
    orders = coordinator.orders(first.stage.exchanges[0], first, simulation.federated.ids)
    return [simulation.site.job(order) for order in orders]


def processes(engine: Workers) -> list[int]:
    """The workers' process ids."""
    return [worker._process.pid for worker in engine._pool]


def gone(process: int) -> bool:
    """Whether a process has ended; it may still wait for its parent to look."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    """Look every few milliseconds, for a minute at most."""
    last = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < last, "it does not happen"
        time.sleep(0.005)


def assert_same_outcomes(one: Sequence[Any], other: Sequence[Any]) -> None:
    """Outcomes are equal, bit for bit."""
    for mine, theirs in zip(one, other, strict=True):
        ours, expected = ({**outcome.up, **outcome.state.flat()} for outcome in (mine, theirs))
        assert ours.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())
        assert (mine.client, mine.terms, mine.steps) == (theirs.client, theirs.terms, theirs.steps)


# Deaths -------------------------------------------------------------------------------------------


def kill_workers(monkeypatch: pytest.MonkeyPatch, marker: Path, times: int) -> None:
    """Have the process that trains client 1 in round 3 killed, that many times; a file counts them."""
    plain, test = FedAvg.risk, os.getpid()
    marker.touch()

    def risk(self: FedAvg, net: Any, batch: Any, context: Any) -> Any:
        if os.getpid() != test and context.round == 3 and int(context.client) == 1:
            killed = marker.stat().st_size
            if killed < times:
                marker.write_bytes(b"x" * (killed + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, net, batch, context)

    monkeypatch.setattr(FedAvg, "risk", risk)


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_worker_loses_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int):
    """Killed once, its client is tried again; killed twice, the run stops and continues from its checkpoint.

    A worker that is replaced is noted on the display and beside the times of the rounds in which it was.
    """
    changes = {**THREE, **CNN_WITH_BN, "method.bn": "local", "method.optimiser_state": "kept"}
    whole = runner.start(make({**changes, "run.out": str(tmp_path / "whole")}), Progress())
    marker, progress, notes = tmp_path / "killed", Progress(), list[str]()
    monkeypatch.setattr(progress, "note", notes.append)
    kill_workers(monkeypatch, marker, times)
    experiment = make({**changes, "run.engine": "workers", "run.workers": 2, "run.checkpoint_every": 1})
    if times == 1:
        folder = runner.start(experiment, progress)
        timings = [json.loads(line) for line in (folder.path / "timings.jsonl").read_text().splitlines()]
        assert [(line["stop"], line["notes"]) for line in timings if line["notes"]] == [(3, notes)]
    else:
        with refuses("'gray'", "twice", "round 3", "killed"):
            runner.start(experiment, progress)
        folder = Run.open(scheduling.run_path(experiment))
        assert not folder.finished
        resume(folder)
    assert "A worker process died in round 3 (killed by signal 9), running for client 'gray'" in notes[0]
    assert marker.stat().st_size == times
    assert results(folder) == results(whole)


@linux
def test_workers_end_with_the_engine(make: Make, engine: Workers):
    assert not advance([Simulation(make())], engine)
    held = processes(engine)
    assert len(held) == 2
    assert not any(map(gone, held))
    engine.close()
    assert not any(Path(f"/proc/{process}").exists() for process in held)


PARENT = """
import os
import time
from conftest import TINY
from fedshift.engines.kernels import Kernels
from fedshift.engines.workers import Workers
from fedshift.study.grid import expand, override
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
plain = FedAvg.risk
def risk(self, net, batch, context):
    if context.round == 2:
        os.write(1, b"running\\n")
        time.sleep(3)
    return plain(self, net, batch, context)
FedAvg.risk = risk
engine, simulation = Workers(Kernels(), 2), Simulation(expand(override(TINY, {}))[0])
assert not advance([simulation], engine)
print(*(worker._process.pid for worker in engine._pool), flush=True)
advance([simulation], engine)
"""


@linux
def test_workers_end_when_their_parent_is_killed():
    """After the client that they work for, as nobody wants the answer."""
    child = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    held = [int(word) for word in child.stdout.readline().split()]
    assert len(held) == 2
    assert not any(map(gone, held))
    assert [child.stdout.readline() for _ in held] == ["running\n"] * 2
    child.kill()
    child.wait()
    child.stdout.close()
    wait_until(lambda: all(map(gone, held)))


# Errors -------------------------------------------------------------------------------------------


class OwnError(Exception):
    """Contains what cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = lambda: None


@pytest.mark.parametrize(
    ("made", "kind", "text"),
    [(FedshiftError, FedshiftError, "set it to 1"), (OwnError, RuntimeError, "OwnError: set it to 1")],
)
def test_errors_arrive_readable_with_the_place(
    make: Make, engine: Workers, monkeypatch: pytest.MonkeyPatch, made: Any, kind: type[Exception], text: str
):
    """Each is its own client's answer; the other clients' are right, and the workers continue."""
    plain = FedAvg.risk

    def risk(self: FedAvg, net: Any, batch: Any, context: Any) -> Any:
        if int(context.client) == 1:
            raise made("set it to 1")
        return plain(self, net, batch, context)

    expected = list(Sequential().train(jobs_of(Simulation(make(THREE)))))
    monkeypatch.setattr(FedAvg, "risk", risk)  # before the run is made, whose phases contain the loss
    one, error, other = engine.train(jobs_of(Simulation(make(THREE))))
    assert type(error) is kind
    assert str(error) == text
    place, more = error.__notes__
    assert place == "This happened at client 'gray', round 1, phase 'train', step 1, objective 'train'."
    assert "in risk" in more
    assert_same_outcomes([expected[0], expected[2]], [one, other])


# Messages -----------------------------------------------------------------------------------------


def uploading(job: Job, upload: Callable[[LocalWork], Tensors]) -> Job:
    """A job whose reply carries something besides the parts."""
    return replace(job, exchange=replace(job.exchange, upload=upload))


def test_every_kind_of_tensor_survives_both_ways(make: Make, engine: Workers):
    """Some of them are not contiguous."""
    odd = {
        "none": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "bool": torch.tensor([True, False, True]),
        "long": torch.tensor([[2**40, -1]]),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "bfloat16": torch.tensor([1.5, -2], dtype=torch.bfloat16),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "transposed": torch.arange(6.0).view(2, 3).T,
        "expanded": torch.tensor([7.0]).expand(4),
        "empty and last": torch.zeros(0, dtype=torch.int64),
    }

    def upload(work: LocalWork) -> Tensors:
        return work.received.only(odd)

    jobs = [uploading(replace(job, down=Down(job.down | odd)), upload) for job in jobs_of(Simulation(make()))]
    for outcome in engine.train(jobs):
        assert isinstance(outcome, Outcome)
        for name, tensor in odd.items():
            back = outcome.up[name]
            assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
            torch.testing.assert_close(back, tensor, rtol=0, atol=0, equal_nan=True)
        assert outcome.up["nan"][2].signbit()


def test_messages_larger_than_those_before(make: Make, engine: Workers):
    """The memory grows both ways: for a state of a million numbers, and for an answer of two million."""
    list(engine.train(jobs_of(Simulation(make(THREE)))))
    jobs = jobs_of(Simulation(make(THREE)))
    large = torch.arange(1e6)

    def upload(work: LocalWork) -> Tensors:
        return Tensors({"twice": torch.cat([work.received["large"], work.received["large"]])})

    jobs = [uploading(replace(job, down=Down(job.down | {"large": large})), upload) for job in jobs]
    mine, theirs = list(engine.train(jobs)), list(Sequential().train(jobs))
    assert_same_outcomes(mine, theirs)


# One cohort after the other -----------------------------------------------------------------------


def test_a_cohort_that_nobody_waits_for_does_not_spoil_the_next(
    make: Make, engine: Workers, monkeypatch: pytest.MonkeyPatch
):
    """The second worker still has client 1, whose answer must not be taken for that of client 0, which comes next.

    Client 1 takes longer than the others together, and answers come in order all the same.
    """
    expected, plain = list(Sequential().train(jobs_of(Simulation(make(THREE))))), FedAvg.risk

    def risk(self: FedAvg, net: Any, batch: Any, context: Any) -> Any:
        if int(context.client) == 1:
            time.sleep(0.05)
        return plain(self, net, batch, context)

    monkeypatch.setattr(FedAvg, "risk", risk)
    jobs = jobs_of(Simulation(make(THREE)))
    begun = engine.train(jobs)
    assert_same_outcomes([next(begun)], expected[:1])
    begun.close()
    order = (1, 0, 2)
    assert_same_outcomes(list(engine.train([jobs[k] for k in order])), [expected[k] for k in order])


def test_an_engine_serves_a_second_run_that_comes_later(make: Make, engine: Workers):
    """It receives of it by new workers; the first run continues with these."""
    first, second = (make({**THREE, "seed": seed, "train.rounds": 2}) for seed in (0, 1))
    one, other = Simulation(first), Simulation(second)
    assert not advance([one], engine)
    before = processes(engine)
    assert not advance([other], engine)
    after = processes(engine)
    assert not set(before) & set(after)
    assert not advance([one, other], engine)
    assert processes(engine) == after
    assert_same(simulate(first), one)
    assert_same(simulate(second), other)
