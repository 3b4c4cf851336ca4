"""Intervals of scores: numbers by hand, against scipy's, and how often they contain the truth."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, mannwhitneyu

from fedshift.core.metrics import measured
from fedshift.core.uncertainty import (
    Bounds,
    Z,
    auroc,
    auroc_bounds,
    bootstrap,
    intervals,
    resampled,
    share,
    share_bounds,
    wilson,
)


def singles(n: int) -> np.ndarray:
    return np.arange(n)


@pytest.mark.parametrize("hits", [0, 1, 7, 19, 20])
def test_a_share_of_independent_samples_has_wilsons_interval(hits: int):
    """As scipy computes it."""
    right = np.arange(20) < hits
    expected = binomtest(hits, 20).proportion_ci(method="wilson")
    assert share_bounds(right, singles(20)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_samples_that_are_copies_count_once():
    """Ten patients with three equal slices each are as many independent samples as ten."""
    right = np.arange(10) < 7
    assert share_bounds(right.repeat(3), singles(10).repeat(3)) == pytest.approx(share_bounds(right, singles(10)))
    assert share_bounds(np.ones(30, bool), singles(10).repeat(3)) == wilson(1.0, 10)


def test_groups_that_cancel_do_not_count_for_more_than_their_samples():
    """Each patient has one right and one wrong slice, so sums over patients do not vary: n = 10 groups is the least."""
    right = np.tile([True, False], 10)
    assert share_bounds(right, singles(10).repeat(2)) == wilson(0.5, 10)


def test_the_variance_between_groups_by_hand():
    """Patient A: 3 of 3 right, B: 0 of 1, so p = 3/4; sums of (hit - p)/4: A 3/16, B -3/16; variance 2 * 9/256.

    p (1 - p) over it is (3/16) / (9/128) = 8/3 independent samples.
    """
    right, group = np.array([True, True, True, False]), np.array([5, 5, 5, 9])
    assert share(right).variance(group) == pytest.approx(18 / 256)
    assert share_bounds(right, group) == pytest.approx(wilson(0.75, 8 / 3))


def test_delong_by_hand():
    """Positives score 3 and 1, negatives 0 and 2: pairs won are 3>0, 3>2, 1>0, so the area is 3/4.

    Of positives the shares won are 1 and 1/2, of negatives 1 (0 is below both) and 1/2; each has the variance 1/8
    (divisor 1). DeLong: 1/8 / 2 + 1/8 / 2 = 1/8.
    """
    own, p = np.array([True, True, False, False]), np.array([3.0, 1.0, 0.0, 2.0])
    found = auroc(own, p)
    assert found is not None
    assert found.value == 0.75
    assert found.variance(singles(4)) == pytest.approx(1 / 8)
    half = Z * sqrt(1 / 8)
    assert auroc_bounds(own, p, singles(4)) == pytest.approx((0.75 - half, 1.0))


def test_two_models_on_the_same_samples_by_hand():
    """The second model ranks as the first but for the negative 2, which it puts below all: areas 3/4 and 1.

    Shares won differ by -1/2 and 0 (positives 1 and 3, mean -1/4) and by 0 and -1/2 of negatives. Each has the variance
    1/8, so the difference has 1/8; and a model has no difference from itself.
    """
    own, p = np.array([True, True, False, False]), np.array([3.0, 1.0, 0.0, 2.0])
    one, other = auroc(own, p), auroc(own, np.array([3.0, 1.0, 0.0, -2.0]))
    assert one is not None
    assert other is not None
    difference = one - other
    assert difference.value == -0.25
    assert difference.variance(singles(4)) == pytest.approx(1 / 8)
    assert (one - one).bounds(singles(4), least=-1.0) == (0.0, 0.0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
@settings(max_examples=50)
def test_the_area_is_mann_whitneys(samples: list[tuple[bool, int]]):
    own, p = (np.array(each) for each in zip(*samples, strict=True))
    found = auroc(own, p.astype(float))
    if found is None:
        assert own.all() or not own.any()
        return
    expected = mannwhitneyu(p[own], p[~own]).statistic / own.sum() / (~own).sum()
    assert found.value == pytest.approx(expected)
    assert found.influence.sum() == pytest.approx(0)


def test_delong_is_the_jackknife_and_the_bootstrap():
    """On 150 patients of two samples each its ends are within 0.015 of the bootstrap's by patient."""
    random = np.random.default_rng(0)
    group = singles(150).repeat(2)
    own = (random.random(150) < 0.4).repeat(2)
    p = own + random.normal(size=150).repeat(2) + 0.3 * random.normal(size=300)
    found = auroc(own, p)
    assert found is not None

    def area(rows: np.ndarray) -> float | None:
        return None if (again := auroc(own[rows], p[rows])) is None else again.value

    expected = bootstrap(area, group, seed=1)
    assert expected is not None
    assert found.bounds(group) == pytest.approx(expected, abs=0.015)
    narrower = found.bounds(singles(300))
    assert narrower.high - narrower.low < 0.8 * (expected.high - expected.low)  # as if slices were patients


def test_a_perfect_separation_is_not_certain():
    """No sample shows a variance, so it is Wilson's interval for the 4 patients of the rarer class."""
    own = np.array([True] * 4 + [False] * 10)
    assert auroc_bounds(own, own.astype(float), singles(14)) == wilson(1.0, 4)
    assert auroc_bounds(own[:4], own[:4].astype(float), singles(4)) is None


def test_the_bootstrap_draws_whole_groups_and_gives_up_where_half_is_undefined():
    """Every resample of one group is that group; a statistic undefined on most resamples has no interval."""
    assert bootstrap(lambda rows: float(len(rows)), np.zeros(7, int), seed=0) == (7, 7)
    assert bootstrap(lambda rows: None, singles(5), seed=0) is None
    first = bootstrap(lambda rows: float(rows.mean()), singles(9), seed=3)
    assert first == bootstrap(lambda rows: float(rows.mean()), singles(9), seed=3)


def test_how_often_intervals_hold_the_truth():
    """Of 400 draws of 40 patients each, 95 % should: within three standard errors of that, 0.0109 each."""
    random, held = np.random.default_rng(5), 0
    for _ in range(400):
        bounds = share_bounds(random.random(40) < 0.85, singles(40))
        held += bounds.low <= 0.85 <= bounds.high
    assert abs(held / 400 - 0.95) < 3 * 0.0109


DECLARED = ("auroc", "balanced-accuracy", "class-sensitivity", "class-precision", "calibration-error-5")


def test_declared_metrics_have_intervals_around_their_values():
    """Of two classes; those without a formula by resampling."""
    random = np.random.default_rng(2)
    y = torch.from_numpy((random.random(80) < 0.3).astype(np.int64))
    logits = torch.from_numpy(np.stack([np.zeros(80), 2 * y.numpy() - 1 + 2 * random.normal(size=80)], axis=1))
    predicted, group = logits.log_softmax(dim=1), singles(80)
    values = measured(DECLARED, ("well", "ill"), predicted, y)
    known = intervals(DECLARED, ("well", "ill"), predicted, y, group)
    drawn = resampled(DECLARED, ("well", "ill"), predicted, y, group, seed=0)
    assert set(known) == {
        "accuracy",
        "auroc",
        *(f"{kind} of {name}" for kind in ("sensitivity", "precision") for name in ("well", "ill")),
    }
    assert set(drawn) == {"balanced-accuracy", "calibration-error-5"}
    for name, bounds in {**known, **drawn}.items():
        value = values.get(name)
        assert value is None or bounds.low <= value <= bounds.high, name


def test_the_mean_area_of_three_classes_varies_less_than_one():
    random = np.random.default_rng(3)
    y = torch.arange(3).repeat(40)
    logits = torch.nn.functional.one_hot(y, 3) + torch.from_numpy(random.normal(size=(120, 3)))
    known = intervals(("auroc", "class-auroc"), ("a", "b", "c"), logits.log_softmax(dim=1), y, singles(120))
    width = {name: bounds.high - bounds.low for name, bounds in known.items()}
    assert isinstance(known["auroc"], Bounds)
    assert width["auroc"] < min(width[f"auroc of {name}"] for name in "abc")
