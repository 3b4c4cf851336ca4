"""How answers are compared with their cohort, a merged model with what was there, and counts with what was declared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import TINY
from fedshift.core.contract import Bound, Category, Exchange, Phase, Upload
from fedshift.core.messages import Answer, Down, Telemetry, Up
from fedshift.core.tensors import Replies, Tensors, weighted_mean
from fedshift.rounds.message_checks import check_numbers
from fedshift.rounds.outliers import Limits, excesses, explosion
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand, override
from refusal import refuses

BIAS = "head.bias"
SENT = torch.tensor([3.0, 4.0, 0.0])  # of norm 5
UPLOADED: dict[str, Category] = {"own": "model update", "sums": "statistic", "pairs": "embedding"}
EXCHANGE = Exchange(
    "x", returns=("head",), uploads=tuple(Upload(name, (None,), category=each) for name, each in UPLOADED.items())
)
TWENTY = Limits(20.0)


SETUP, EPOCHS = (Simulation(*expand(override(TINY, {"train.unit": unit}))).setup for unit in ("steps", "epochs"))


def ratios(ups: list[dict[str, Tensor]], limits: Limits = TWENTY) -> list[float]:
    """How large the answers of clients 0, 1, ... are, all of whom were sent the same."""
    down = Down({BIAS: SENT})
    sizes = excesses(SETUP, EXCHANGE, {client: (down, Up(up)) for client, up in enumerate(ups)}, limits)
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


def test_what_was_not_received_is_a_group_of_its_own():
    """Uploads as large as the model do not hide an update that is a hundred times the others'."""
    ups = [{**update, "own": SENT} for update in moved(1, 1, 100)]
    assert ratios(ups) == pytest.approx([1, 1, 100], rel=1e-5)


def test_a_statistic_may_be_the_square_of_what_is_allowed():
    assert ratios(told("sums", 2, 2, 800)) == pytest.approx([1, 1, 20])


def test_what_is_sent_may_grow_with_the_declared_samples():
    """Sums do, and updates where steps do: five times the samples are five times the epoch's steps."""
    limits = replace(TWENTY, samples={0: 10, 1: 10, 2: 50})
    assert ratios(told("sums", 2, 2, 10), limits) == pytest.approx([1, 1, 1])
    assert ratios(told("pairs", 2, 2, 10), limits) == pytest.approx([1, 1, 5])
    trains = replace(EXCHANGE, phases=(Phase("train", ()),))
    answers = {client: (Down({BIAS: SENT}), Up(up)) for client, up in enumerate(moved(1, 1, 5))}
    for setup, ratio in ((EPOCHS, 1), (SETUP, 5)):
        assert excesses(setup, trains, answers, limits)[2].ratio == pytest.approx(ratio, rel=1e-5)


def test_a_declared_number_is_good_for_a_hundred_times_at_most():
    limits = replace(TWENTY, samples={0: 10, 1: 10, 2: 10**9})
    assert ratios(told("sums", 2, 2, 2 * 100 * 500), limits)[2] == pytest.approx(math.sqrt(500))


@given(
    honest=st.lists(st.floats(1, 20, width=32), min_size=2, max_size=6),
    lie=st.floats(-(2.0**126), 2.0**126, width=32),
    name=st.sampled_from(["own", ""]),
)
def test_no_single_liar_excludes_an_honest_client(honest: list[float], lie: float, name: str):
    """Clients whose norms are within the factor of each other are merged, whatever one more sends."""
    ups = told("own", *honest, lie) if name else moved(*honest, lie)
    assert all(ratio <= 20.001 for ratio in ratios(ups)[:-1])


# What is merged -----------------------------------------------------------------------------------


def test_a_model_may_move_by_twenty_times_itself_and_the_answers():
    before, ups = Tensors({"w": SENT}), [Up({"w": SENT * 2}), Up({"w": SENT * 2})]
    allowed = 20 * (5 + math.sqrt(200))
    far, too_far = (Tensors({"w": SENT + torch.tensor([0, 0, allowed * part])}) for part in (0.99, 1.01))
    assert explosion(before, far, ups, TWENTY) == ""
    assert "norm_factor" in explosion(before, too_far, ups, TWENTY)
    assert explosion(before, too_far, ups, Limits(0)) == ""


# Counts -------------------------------------------------------------------------------------------


def counting(bound: Bound, *counts: int, samples: int | None = 10) -> None:
    """Check an answer with counts; a client takes 2 steps of 4 samples."""
    upload = Upload("counts", (None,), dtype=torch.int64, category="count", bound=bound)
    exchange = Exchange("x", phases=(Phase("train", ()),), returns=(), uploads=(upload,))
    check_numbers(SETUP, answer({"counts": torch.tensor(counts)}), exchange, "client 'a'", samples)


def answer(up: dict[str, Tensor], **telemetry: Tensor) -> Answer:
    return Answer("run", "train", 1, "x", 0, Up(up), Telemetry(telemetry))


@pytest.mark.parametrize(
    ("bound", "most", "samples", "more", "named"),
    [
        ("total", (4, 0, 6), 10, (5, 6), "11"),
        ("total", (10,), 10, (2**62, 2**62, 2**62, 2**62), "4.6"),  # whose sum is 0 in int64
        ("total", (10**9,), None, (10**9 + 1,), "1000000001"),
        ("each", (10, 0, 10), 10, (11, 0), "11"),
        ("steps", (2,), 10, (3,), "3"),
        ("any", (8,), 5, (9,), "9"),
    ],
)
def test_impossible_counts_are_refused(bound: Bound, most: Any, samples: int | None, more: Any, named: str):
    counting(bound, *most, samples=samples)
    with refuses(named, "counts", "client 'a'", "declared"):
        counting(bound, *more, samples=samples)


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
