"""What training costs: FLOPs, by hand and as torch counts them, and costs up to a target accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

import fedshift
from conftest import Make
from fedshift.engines.sequential import Sequential
from fedshift.experiments import Experiment
from fedshift.runs.flops import FlopCounter
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation


def flops_of_training(experiment: Experiment) -> tuple[int, int]:
    """What torch counts while all rounds of an experiment are trained, and what the counter computes."""
    trained, counted = Simulation(experiment), FlopCounter(Simulation(experiment))
    with FlopCounterMode(display=False) as counter:
        for _ in trained.coordinator.schedule:
            assert not advance([trained], Sequential())
    return int(counter.get_total_flops()), sum(sum(counted.of_round(each)) for each in trained.coordinator.schedule)


def test_the_flops_of_a_known_network(make: Make):
    """Layers 100 x 8, 8 x 4 and 4 x 3: forward 2 B (800 + 32 + 12), backward 2 B (800 + 2 * 32 + 2 * 12).

    No gradient of the inputs is needed. With B = 4 that is 6752 + 7104 = 13856 a step; 2 clients take 2 steps
    in 2 rounds, 8 * 13856 = 110848.
    """
    assert flops_of_training(make()) == (110848, 110848)


@pytest.mark.parametrize("method", ["fedsr", "fraug", "fedcir", "scaffold", "fedgen", "ditto", "feddyn"])
def test_flops_are_those_that_training_takes(method: str, make: Make):
    """Also of methods that draw noise, have stages, personal parts, phases on the server, or terms that come later."""
    settings = {"method.name": method, "train.rounds": 3, "train.steps": 3, "train.lr": 0.0001, "train.momentum": 0}
    counted, computed = flops_of_training(make(settings))
    assert computed == counted


def test_costs_count_until_the_target_is_reached(tmp_path: Path):
    """A model of 4 bytes a number goes to each client and back in every round; the target is what round 2 reached."""
    run = fedshift.run(method="fedavg", rounds=3, settings={"evaluate.every": 1}, out=str(tmp_path))
    rows = fedshift.analyse("overhead", run.path).measurements()
    numbers = sum(weight.numel() for weight in run.weights.values())
    assert [row["mb_to_client"] for row in rows] == pytest.approx([4e-6 * numbers * n for n in (1, 2, 3)], rel=0.01)
    best = rows[1]["accuracy"]
    table = fedshift.analyse("overhead", run.path, accuracy=best).tables()[0]
    assert table.rows[0][1] == "2"
    assert fedshift.analyse("overhead", run.path, accuracy=99.9).tables()[0].rows[0][1].startswith("not reached (best ")
