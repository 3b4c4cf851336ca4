"""What a dry run counts and times, and jobs with fewer steps."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedshift
from conftest import TINY, Make, simulate
from fedshift.engines.lane import shorten, steps_of_job
from fedshift.engines.sequential import Sequential
from fedshift.methods import METHODS
from fedshift.runs.dry_run import estimate
from fedshift.runs.events import RunEvents
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand, override
from test_methods import small

INDEX = {
    "method": {
        "name": "client2vec",
        "index": {"name": "dsa-ign", "epochs": 6, "batch": 4, "encoder": {"name": "offline", "size": 16}},
    }
}


@given(limit=st.integers(1, 30) | st.just(sys.maxsize))
def test_shortened_jobs_have_so_many_steps_at_most(limit: int):
    (job, *_) = example()
    (cut,) = shorten([job], limit)
    assert steps_of_job(cut) == min(limit, steps_of_job(job))
    assert (cut is job) == (limit >= steps_of_job(job))


def example() -> list[Any]:
    (experiment,) = expand(override(TINY, {"train.unit": "epochs", "train.steps": 3}))
    return Simulation(experiment).example()


def test_jobs_of_one_exchange_share_the_shortened_one():
    assert len({id(job.exchange) for job in shorten(example(), 2)}) == 1


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


class Steps(RunEvents):
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


def test_a_dry_run_times_a_few_steps(make: Make):
    cost = estimate(make({"train.rounds": 1000}))
    assert cost.seconds
    assert 0 < cost.seconds / cost.steps < 10


def test_of_steps_that_diverge_a_dry_run_tells_no_time(make: Make):
    cost = estimate(make({"train.lr": 1000.0, "train.batch": 2, "train.steps": 40}))
    assert cost.steps > 0
    assert cost.seconds is None or cost.seconds > 0
