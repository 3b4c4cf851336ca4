"""Learning rates by round, by hand and in runs; and the plan of rounds against a list of them."""

from __future__ import annotations

import re
import tomllib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Make, simulate, states
from fedshift.core.contract import Stage
from fedshift.core.setup import Round
from fedshift.core.training import Evaluate, Train
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.scaffold import SCAFFOLD
from fedshift.reporting.results import flat
from fedshift.rounds.coordinator import schedule_of
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand, override
from quadratics import OnQuadratics, W, at_rest, on_quadratics
from refusal import refuses

__all__ = ["on_quadratics"]  # a fixture


def rates(rounds: int, **settings: Any) -> list[float]:
    train = Train(lr=1.0, rounds=rounds, **settings)
    return [train.lr_in(round, rounds) for round in range(1, rounds + 1)]


def test_half_a_cosine():
    """(1 + cos(pi (t - 1) / T)) / 2 in round t of T = 4: the cosines are 1, r, 0 and -r, with r = 0.7071."""
    assert rates(4, schedule="cosine") == pytest.approx([1, 0.8535534, 0.5, 0.1464466])


def test_a_step_every_three_rounds():
    """Rounds 1 to 3 at 1, 4 to 6 at 1/2, 7 at 1/4."""
    found = rates(7, schedule="step", step_every=3, step_factor=0.5)
    assert found == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_steps_after_the_rounds_that_are_named():
    """After round 2 and after round 5, in whatever order they are named."""
    found = rates(7, schedule="step", step_at=(5, 2), step_factor=0.1)
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_a_warm_up_rises_in_equal_steps_to_the_first_round_of_the_schedule():
    """W = 3: 1/4, 2/4, 3/4, then the schedule's first round at 4/4 and the others after it, as without a warm-up."""
    assert rates(6, warmup=3) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(9, warmup=4, schedule="cosine")[4:] == rates(5, schedule="cosine")


@given(
    rounds=st.integers(2, 60),
    schedule=st.sampled_from(["constant", "cosine", "step"]),
    every=st.integers(1, 20),
    factor=st.floats(0.1, 1),
    data=st.data(),
)
def test_a_rate_rises_in_the_warm_up_and_never_after_it(
    rounds: int, schedule: str, every: int, factor: float, data: st.DataObject
):
    warmup = data.draw(st.integers(0, rounds - 1))
    found = rates(rounds, schedule=schedule, step_every=every, step_factor=factor, warmup=warmup)
    assert all(0 < rate <= 1 for rate in found)
    assert found[warmup] == 1
    assert found[:warmup] == sorted(set(found[:warmup]))
    assert found[warmup:] == sorted(found[warmup:], reverse=True)


def test_a_stage_that_is_shorter_than_the_warm_up_has_none():
    """A last round of fine-tuning, for example, which would else be at a fraction of the rate."""
    train = Train(lr=1.0, rounds=10, warmup=5)
    assert [train.lr_in(round, 6) for round in range(1, 7)] == pytest.approx([n / 6 for n in range(1, 7)])
    assert [train.lr_in(round, 5) for round in range(1, 6)] == [1] * 5
    assert train.lr_in(1, 1) == 1


def test_what_leads_nowhere_is_refused():
    with refuses("train.warmup = 5", "train.rounds = 5"):
        Train(rounds=5, warmup=5)
    with refuses("train.step_at = [3]", "train.schedule = 'cosine'"):
        Train(schedule="cosine", step_at=(3,))
    with refuses("train.min_delta = 0.01", "train.patience = 'off'"):
        Train(min_delta=0.01)


def test_a_run_takes_the_steps_of_its_schedule(on_quadratics: OnQuadratics):
    """One step a round on F_1 = (w - 1)^2 / 2 and F_2 = 4 (w + 1)^2 / 2 goes from w to w - lr (5 w + 3) / 2.

    With a warm-up of one round and a fall to a tenth after the schedule's first, the rates are 0.05, 0.1, 0.01:
    w = -0.075; then -0.075 - 0.1 (2.625) / 2 = -0.20625; then -0.20625 - 0.01 (1.96875) / 2 = -0.21609375.
    """
    steps = {"train.rounds": 3, "train.steps": 1, "train.lr": 0.1, "train.warmup": 1}
    schedule = {"train.schedule": "step", "train.step_at": [1]}
    assert at_rest(on_quadratics.run(FedAvg(), steps | schedule)) == pytest.approx(-0.21609375, abs=1e-12)


def test_control_variates_are_gradients_in_a_warm_up_as_well(on_quadratics: OnQuadratics):
    """SCAFFOLD divides by the round's rate, 0.05 in a warm-up of one round.

    One step from w = 0 and variates of zero leave c_k = F_k'(0) = a_k (0 - b_k) = (-1, 4).
    """
    changes = {"train.rounds": 2, "train.steps": 1, "train.lr": 0.1, "train.warmup": 1}
    simulation = simulate(on_quadratics.experiment(SCAFFOLD(variate="steps"), changes), rounds=1)
    kept = [state.tensors[f"own_variate.{W}"].item() for _, state in states(simulation)]
    assert kept == pytest.approx([-1.0, 4.0], abs=1e-12)


# docs/training.md ---------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("written", BLOCKS)
def test_what_the_page_writes_is_an_experiment(tiny_document: dict[str, Any], written: str):
    """As it stands, and run with fewer rounds."""
    changes = flat(tomllib.loads(written))
    (experiment,) = expand(override(tiny_document, changes))
    assert changes.items() <= flat(experiment.table()).items()
    fewer = {"train.rounds": 8} if "train.rounds" in changes else {}
    (experiment,) = expand(override(tiny_document, changes | fewer))
    assert simulate(experiment).coordinator.position == experiment.train.rounds


LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=5)


@given(lengths=LENGTHS, start=st.none() | st.integers(-70, 70), stop=st.none() | st.integers(-70, 70))
def test_a_schedule_is_the_list_of_its_rounds(lengths: list[int], start: int | None, stop: int | None):
    plan = [Stage(f"stage {n}", rounds, ()) for n, rounds in enumerate(lengths)]
    expected = [Round(stage, number) for stage in plan for number in range(1, stage.rounds + 1)]
    schedule = schedule_of(plan)
    assert len(schedule) == len(expected)
    assert list(schedule) == expected
    assert list(schedule[start:stop]) == expected[start:stop]
    assert [schedule[place] for place in range(-len(expected), len(expected))] == expected * 2


def test_models_are_scored_every_so_many_rounds_and_after_a_stage(make: Make):
    scored = Simulation(make({"train.rounds": 7, "evaluate.every": 3})).scored
    assert [position for position in range(1, 8) if scored(position)] == [3, 6, 7]


def test_a_stage_of_any_length_has_ten_to_thirty_evaluations_by_default():
    for rounds in [*range(10, 2000), 10**6 + 1, 10**9]:
        assert 10 <= -(-rounds // Evaluate().every_in(rounds)) <= 30
    assert [Evaluate().every_in(rounds) for rounds in (1, 10, 30, 31, 61, 300, 301)] == [1, 1, 1, 2, 5, 10, 20]
    assert Evaluate(every=7).every_in(300) == 7


def test_a_plan_of_any_length_costs_nothing(make: Make):
    simulation = Simulation(make({"train.rounds": 10**9, "evaluate.every": 10**6}))
    tracemalloc.start()
    try:
        schedule = simulation.coordinator.schedule
        assert simulation.rounds == 10**9
        assert schedule[10**8].number == 10**8 + 1
        assert simulation.coordinator.next_round.number == 1
        assert simulation.scored(10**9)
        assert not simulation.scored(10**9 - 1)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
