"""What a dry run counts and times, and jobs with fewer steps."""

from __future__ import annotations

import pytest

from conftest import Make, go_on
from fedshift.methods import METHODS
from fedshift.runs.dry_run import estimate
from fedshift.runs.simulation import Simulation
from reference import Heard, small


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_dry_run_counts_the_steps_and_bytes_that_a_run_takes(make: Make, name: str):
    experiment = make({**small(name), "train.rounds": 3})
    cost, whole, heard = estimate(experiment), Simulation(experiment), Heard()
    while whole.coordinator.position < whole.rounds:
        go_on(whole, events=heard)
    assert (cost.rounds, cost.steps) == (whole.rounds, sum(heard.taken.values()))
    assert sum(stage.rounds * stage.bytes_up for stage in cost.stages) == whole.coordinator.sent[1]


def test_a_dry_run_of_any_length_ends(make: Make):
    cost = estimate(make({"train.rounds": 10**7}))
    assert cost.rounds == 10**7
    assert cost.steps == 4 * 10**7
    assert cost.seconds
    assert 0 < cost.seconds / cost.steps < 10


def test_of_steps_that_diverge_a_dry_run_tells_no_time(make: Make):
    cost = estimate(make({"train.lr": 1000.0, "train.batch": 2, "train.steps": 40}))
    assert cost.steps > 0
    assert cost.seconds is None or cost.seconds > 0
