"""Which way a noisy machine is found to be fastest, against machines whose true speeds are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.engines import race as race_module
from fedshift.engines.race import CLEARLY, LEAST, MOST, chosen, race, ratio

SEEDS = 100
TRUE = [[1, 1.3], [1, 0.77], [1, 1, 0.8], [1, 0.98, 0.5, 1.1], [1, 1, 1, 1, 1], [1, 0.96, 1.04, 0.9, 0.7, 1.2]]


def machine(true: Sequence[float], noise: float, seed: int, bursts: float = 0.0) -> list[Callable[[], float]]:
    """Ways that take so many seconds on a machine that drifts, wavers, and now and then works for somebody else."""
    drawn, speed = random.Random(seed), [1.0]

    def turn(seconds: float) -> float:
        speed[0] *= math.exp(drawn.gauss(0, 0.02))
        taken = seconds * speed[0] * math.exp(drawn.gauss(0, noise))
        return taken * (1 + drawn.random()) if drawn.random() < bursts else taken

    return [lambda seconds=seconds: turn(seconds) for seconds in true]  # type: ignore[misc]  # bound early


@pytest.mark.parametrize("bursts", [0.0, 0.1])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
@pytest.mark.parametrize("true", TRUE, ids=str)
def test_what_is_claimed_holds(true: list[float], noise: float, bursts: float):
    """In at least 95 % of seeds the chosen way is right, and as many intervals hold the truth.

    Right: no other is faster than its interval admits, and what is called sure costs no more than simplicity may.
    """
    right = covered = intervals = 0
    for seed in range(SEEDS):
        times = race(machine(true, noise, seed, bursts), math.inf)
        best = chosen(times)
        truth = [true[best] / seconds for seconds in true]
        claims = [ratio(way, times[best]) for way in times]
        sure = all(claim.negligible for way, claim in enumerate(claims) if way != best)
        right += all(claim.high >= real for claim, real in zip(claims, truth, strict=True)) and not (
            sure and max(truth) * CLEARLY > 1.001
        )
        covered += sum(claim.low <= real <= claim.high for claim, real in zip(claims, truth, strict=True)) - 1
        intervals += len(true) - 1
    assert right >= 0.95 * SEEDS
    assert covered >= 0.95 * intervals


@pytest.mark.parametrize("seed", range(20))
def test_a_way_that_is_far_ahead_is_found_in_few_turns(seed: int):
    """As workers on two cores, at 5 % of noise: nobody needs the time that is there."""
    times = race(machine([1, 0.8, 0.5], 0.05, seed), math.inf)
    assert chosen(times) == 2
    assert max(map(len, times)) <= 3 * LEAST


TIMES = st.lists(st.floats(1e-3, 1e3), min_size=LEAST, max_size=MOST)


@given(times=st.lists(TIMES, min_size=2, max_size=5), data=st.data())
def test_what_slows_a_lap_down_changes_nothing(times: list[list[float]], data: st.DataObject):
    factors = data.draw(st.lists(st.floats(0.1, 10), min_size=MOST, max_size=MOST))
    slowed = [[taken * factor for taken, factor in zip(way, factors, strict=False)] for way in times]
    for one, other, one_slowed, other_slowed in zip(times, times[1:], slowed, slowed[1:], strict=False):
        plain, drifting = ratio(one, other), ratio(one_slowed, other_slowed)
        for mine, theirs in zip(vars(plain).values(), vars(drifting).values(), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6)


@given(one=TIMES, other=TIMES)
def test_a_comparison_read_backwards_says_the_same(one: list[float], other: list[float]):
    forth, back = ratio(one, other), ratio(other, one)
    assert forth.low <= forth.value <= forth.high
    assert [1 / back.value, 1 / back.high, 1 / back.low] == pytest.approx([forth.value, forth.low, forth.high])
    assert not (forth.faster and back.faster)
    assert not (forth.faster and forth.negligible)


@given(times=st.lists(TIMES, min_size=1, max_size=5))
def test_a_simpler_way_is_left_only_for_a_surely_faster_one(times: list[list[float]]):
    best = chosen(times)
    if best:
        assert any(ratio(times[best], times[simpler]).faster for simpler in range(best))


def test_equal_turns_are_no_certainty_of_more_than_a_percent():
    claim = ratio([1.0] * LEAST, [1.02] * LEAST)
    assert claim.low < 1 < claim.high
    assert ratio([1.0], [9.0]).high == math.inf  # of a single turn nothing is known


@pytest.mark.parametrize(("seconds", "laps"), [(0.0, LEAST), (7.5, 8), (1e9, MOST)])
def test_the_time_that_is_there_is_kept(monkeypatch: pytest.MonkeyPatch, seconds: float, laps: int):
    """Two equal ways under so much noise that nothing is ever clear; a lap takes a second, whatever it says."""
    now = [0.0]
    monkeypatch.setattr(race_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    drawn = random.Random(0)

    def turn() -> float:
        now[0] += 0.5
        return math.exp(drawn.gauss(0, 1))

    assert [len(way) for way in race([turn, turn], seconds)] == [laps, laps]


def test_who_begins_changes_with_every_lap():
    order: list[int] = []
    drawn = random.Random(0)

    def turn(way: int) -> float:
        order.append(way)
        return math.exp(drawn.gauss(0, 1))

    race([lambda: turn(0), lambda: turn(1), lambda: turn(2)], 0.0)
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1]


def test_a_single_way_is_measured_too():
    (times,) = race([lambda: 1.0], 0.0)
    assert times == [1.0] * LEAST
