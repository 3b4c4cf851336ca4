"""The plan of a run against the list of its rounds written out, at any length and at no cost."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from conftest import Make
from fedshift.core.contract import Stage
from fedshift.core.setup import Round
from fedshift.core.training import Evaluate
from fedshift.rounds.coordinator import schedule_of
from fedshift.runs.simulation import Simulation

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
