"""How answers are compared with their cohort, a merged model with what was there, and counts with what was declared."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import TINY
from fedshift.coordinator.checks import check_numbers
from fedshift.coordinator.outliers import Limits, excesses, explosion
from fedshift.core.contract import Bound, Category, Exchange, Phase, Upload
from fedshift.core.messages import Answer, Down, Telemetry, Up
from fedshift.core.setup import Setup
from fedshift.core.tensors import Replies, Tensors, weighted_mean
from fedshift.deployment.agreement import FederationSettings
from fedshift.settings.grid import expand, override
from fedshift.simulation.simulation import Simulation
from refusal import refuses

BIAS = "head.bias"
SENT = torch.tensor([3.0, 4.0, 0.0])  # of norm 5
UPLOADED: dict[str, Category] = {"own": "model update", "sums": "statistic", "pairs": "embedding"}
EXCHANGE = Exchange(
    "x", returns=("head",), uploads=tuple(Upload(name, (None,), category=each) for name, each in UPLOADED.items())
)
TWENTY = Limits(20.0)


def setup_with(**changes: object) -> Setup:
    (experiment,) = expand(override(TINY, {name.replace("__", "."): value for name, value in changes.items()}))
    return Simulation(experiment).setup


SETUP = setup_with()
EPOCHS = setup_with(train__unit="epochs")


def ratios(ups: list[dict[str, Tensor]], limits: Limits = TWENTY, setup: Setup = SETUP) -> list[float]:
    """How large the answers of clients 0, 1, ... are, all of whom were sent the same."""
    down = Down({BIAS: SENT})
    sizes = excesses(setup, EXCHANGE, {client: (down, Up(up)) for client, up in enumerate(ups)}, limits)
    return [sizes[client].ratio for client in range(len(ups))]


def moved(*norms: float) -> list[dict[str, Tensor]]:
    """Updates of these norms."""
    return [{BIAS: SENT + torch.tensor([0.0, 0.0, norm])} for norm in norms]


def told(name: str, *norms: float) -> list[dict[str, Tensor]]:
    """Uploads of two numbers with these root mean squares."""
    return [{name: torch.tensor([norm, -norm], dtype=torch.float32)} for norm in norms]


# Answers ------------------------------------------------------------------------------------------


def test_an_update_is_compared_with_the_median_norm():
    assert ratios(moved(1, 2, 100)) == pytest.approx([0.5, 1, 50])
    assert ratios(moved(1, 2, 4, 100)) == pytest.approx([0.5, 1, 2, 50])  # the lower of two in the middle


def test_whoever_sends_nothing_new_does_not_exclude_the_others():
    """A hundredth of the norm of what was sent, 0.05, is the least that updates are compared with."""
    assert ratios(moved(0, 0, 0.9)) == pytest.approx([0, 0, 18], rel=1e-5)
    assert ratios(moved(0, 0, 1.1))[2] == pytest.approx(22, rel=1e-5)


def test_of_two_neither_decides_alone():
    """The least is then the whole norm of what was sent, 5."""
    assert ratios(moved(0, 99)) == pytest.approx([0, 19.8], rel=1e-5)
    assert ratios(moved(0, 101))[1] > 20
    assert ratios(moved(1e30, 1))[0] > 20


def test_a_single_answer_is_compared_with_what_was_sent():
    assert ratios(moved(99)) == pytest.approx([19.8], rel=1e-5)
    assert ratios(moved(1e30))[0] == pytest.approx(2e29, rel=1e-5)


def test_squares_do_not_overflow():
    largest = torch.finfo(torch.float32).max
    assert ratios(moved(1, 2, largest))[2] == pytest.approx(largest / 2)
    double = torch.tensor([1e200], dtype=torch.float64)
    assert ratios([{"own": double}, {"own": double / 1e200}, {"own": double / 1e200}])[0] == math.inf


def test_what_was_not_received_is_a_group_of_its_own():
    """Uploads as large as the model do not hide an update that is a hundred times the others'."""
    ups = [{**update, "own": SENT} for update in moved(1, 1, 100)]
    assert ratios(ups) == pytest.approx([1, 1, 100], rel=1e-5)


def test_a_statistic_may_be_the_square_of_what_is_allowed():
    assert ratios(told("sums", 2, 2, 800)) == pytest.approx([1, 1, 20])


def test_small_statistics_are_never_outliers():
    """A risk of 0.9 beside two of 0 is that of a difficult client."""
    assert ratios(told("sums", 0, 0, 0.9))[2] < 1
    assert ratios(told("pairs", 0, 0, 19.9))[2] < 20 < ratios(told("pairs", 0, 0, 20.1))[2]


def test_a_single_statistic_has_nothing_to_be_compared_with():
    assert ratios(told("sums", 1e9)) == [0]


def test_sums_may_grow_with_the_declared_samples():
    limits = replace(TWENTY, samples={0: 10, 1: 10, 2: 50})
    assert ratios(told("sums", 2, 2, 10), limits) == pytest.approx([1, 1, 1])
    assert ratios(told("pairs", 2, 2, 10), limits) == pytest.approx([1, 1, 5])


def test_updates_grow_with_the_samples_where_steps_do():
    limits = replace(TWENTY, samples={0: 10, 1: 10, 2: 50})
    exchange_steps = ratios(moved(1, 1, 5), limits)
    assert exchange_steps == pytest.approx([1, 1, 5], rel=1e-5)
    trains = replace(EXCHANGE, phases=(Phase("train", ()),))
    answers = {client: (Down({BIAS: SENT}), Up(up)) for client, up in enumerate(moved(1, 1, 5))}
    assert excesses(EPOCHS, trains, answers, limits)[2].ratio == pytest.approx(1, rel=1e-5)
    assert excesses(SETUP, trains, answers, limits)[2].ratio == pytest.approx(5, rel=1e-5)


def test_a_declared_number_is_good_for_a_hundred_times_at_most():
    limits = replace(TWENTY, samples={0: 10, 1: 10, 2: 10**9})
    assert ratios(told("sums", 2, 2, 2 * 100 * 500), limits)[2] == pytest.approx(math.sqrt(500))


def test_embeddings_may_be_of_any_length():
    ups = [{"pairs": torch.full((length,), 3.0)} for length in (1, 7, 500)]
    assert ratios(ups) == pytest.approx([1, 1, 1])


def test_the_reason_says_how_much_and_what_is_allowed():
    down = Down({BIAS: SENT})
    answers = {client: (down, Up(up)) for client, up in enumerate(moved(1, 1, 1e30))}
    why = excesses(SETUP, EXCHANGE, answers, TWENTY)[2].why
    assert why == "its update has 1e+30 times the cohort's median norm; federation.toml allows 20 (norm_factor)"


@given(
    honest=st.lists(st.floats(1, 20, width=32), min_size=2, max_size=6),
    lie=st.floats(-(2.0**126), 2.0**126, width=32),
    name=st.sampled_from(["own", ""]),
)
def test_no_single_liar_excludes_an_honest_client(honest: list[float], lie: float, name: str):
    """Clients whose norms are within the factor of each other are merged, whatever one more sends."""
    ups = told("own", *honest, lie) if name else moved(*honest, lie)
    assert all(ratio <= 20.001 for ratio in ratios(ups)[:-1])


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=3, max_size=6))
def test_the_order_of_clients_does_not_matter(norms: list[float]):
    backwards = ratios(moved(*reversed(norms)))
    assert ratios(moved(*norms)) == backwards[::-1]


# What is merged -----------------------------------------------------------------------------------


def test_a_model_may_move_by_twenty_times_itself_and_the_answers():
    before, ups = Tensors({"w": SENT}), [Up({"w": SENT * 2}), Up({"w": SENT * 2})]
    allowed = 20 * (5 + math.sqrt(200))
    far, too_far = (Tensors({"w": SENT + torch.tensor([0, 0, allowed * part])}) for part in (0.99, 1.01))
    assert explosion(before, far, ups, TWENTY) == ""
    assert "norm_factor" in explosion(before, too_far, ups, TWENTY)
    assert explosion(before, too_far, ups, Limits(0)) == ""


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_model_must_be_finite(number: float):
    assert "not finite" in explosion(Tensors({"w": SENT}), Tensors({"w": SENT * number}), [], Limits(0))


def test_whole_numbers_are_no_part_of_a_norm():
    before, after = (Tensors({"n": torch.tensor([count])}) for count in (0, 10**15))
    assert explosion(before, after, [], TWENTY) == ""


# Counts -------------------------------------------------------------------------------------------


def counting(bound: Bound, *counts: int, samples: int | None = 10, setup: Setup = SETUP) -> None:
    """Check an answer with counts; a client takes 2 steps of 4 samples."""
    upload = Upload("counts", (None,), dtype=torch.int64, category="count", bound=bound)
    exchange = Exchange("x", phases=(Phase("train", ()),), returns=(), uploads=(upload,))
    check_numbers(setup, answer({"counts": torch.tensor(counts)}), exchange, "client 'a'", samples)


def answer(up: dict[str, Tensor], **telemetry: Tensor) -> Answer:
    return Answer("run", "train", 1, "x", 0, Up(up), Telemetry(telemetry))


@pytest.mark.parametrize(
    ("bound", "counts", "samples"),
    [
        ("total", (10,), 10),
        ("total", (4, 0, 6), 10),
        ("each", (10, 0, 10), 10),
        ("each", (0, 0), 10),
        ("steps", (2,), 10),
        ("any", (10,), 10),
        ("any", (8,), 5),
        ("total", (10**9,), None),
    ],
)
def test_possible_counts_are_accepted(bound: Bound, counts: tuple[int, ...], samples: int | None):
    counting(bound, *counts, samples=samples)


@pytest.mark.parametrize(
    ("bound", "counts", "samples", "named"),
    [
        ("total", (11,), 10, "11"),
        ("total", (5, 6), 10, "11"),
        ("total", (0, 0), 10, "add up to 0"),
        ("total", (-5,), 10, "-5"),
        ("total", (10**15,), 10, "1000000000000000"),
        ("total", (10**9 + 1,), None, "1000000001"),
        ("total", (2**62, 2**62, 2**62, 2**62), 10, "4.6"),  # whose sum is 0 in int64
        ("each", (11, 0), 10, "11"),
        ("each", (-1, 1), 10, "-1"),
        ("steps", (3,), 10, "3"),
        ("any", (11,), 10, "11"),
        ("any", (9,), 5, "9"),
    ],
)
def test_impossible_counts_are_refused(bound: Bound, counts: tuple[int, ...], samples: int | None, named: str):
    with refuses(named, "counts", "client 'a'", "declared"):
        counting(bound, *counts, samples=samples)


def test_steps_grow_with_the_samples_where_they_are_epochs():
    """2 epochs of 10 samples in batches of 4 have 2 steps each."""
    counting("steps", 4, setup=EPOCHS)
    with refuses("5", "from 0 to 4"):
        counting("steps", 5, setup=EPOCHS)


def test_whole_numbers_among_statistics_are_counts():
    exchange = Exchange("x", returns=(), uploads=(Upload("often", (None,), dtype=torch.int64, bound="each"),))
    check_numbers(SETUP, answer({"often": torch.tensor([10])}), exchange, "client 'a'", 10)
    with refuses("often", "11"):
        check_numbers(SETUP, answer({"often": torch.tensor([11])}), exchange, "client 'a'", 10)


@pytest.mark.parametrize(
    ("name", "value"), [("steps", torch.tensor(3)), ("steps", torch.tensor(-1)), ("term.loss", torch.tensor(-2e30))]
)
def test_telemetry_is_of_possible_numbers(name: str, value: Tensor):
    exchange = Exchange("x", phases=(Phase("train", ()),), returns=())
    check_numbers(SETUP, answer({}, steps=torch.tensor(2)), exchange, "client 'a'", 10)
    with refuses(name, f"{value.item():g}"):
        check_numbers(SETUP, answer({}, **{name: value}), exchange, "client 'a'", 10)


def test_weights_that_add_up_to_nothing_are_refused():
    ups = [Tensors({"w": SENT, "samples": torch.tensor(0)})] * 2
    with refuses("0, 0", "weight above 0"):
        Replies(enumerate(ups)).mean()
    with refuses("5, -5", "weight above 0"):
        weighted_mean(ups, ["w"], [5, -5])


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_factor_that_leaves_out_honest_sites_is_refused(factor: float):
    with refuses(f"norm_factor = {factor:g}", "above 1", "0 for no comparison"):
        FederationSettings(
            name="a", sites=("b",), shape=(1,), classes=("c", "d"), address="localhost:8000", norm_factor=factor
        )
