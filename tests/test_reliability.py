"""Calibration, thresholds and McNemar's test by hand, and against scikit-learn and statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve

from fedshift.core.reliability import calibration, mcnemar, operating_points, reliability
from fedshift.core.uncertainty import wilson


def singles(n: int) -> np.ndarray:
    return np.arange(n)


# Bins -----------------------------------------------------------------------------------------------------


def test_bins_hold_equally_many_samples_in_order():
    """Of probabilities .1, .2, .6, .8 two halves: means .15 and .7, of which 0 and both came true."""
    low, high = reliability(np.array([0.6, 0.1, 0.8, 0.2]), np.array([True, False, True, False]), singles(4), most=2)
    assert (low.n, low.predicted, low.observed) == (2, pytest.approx(0.15), 0.0)
    assert (high.n, high.predicted, high.observed) == (2, pytest.approx(0.7), 1.0)
    assert (high.low, high.high) == wilson(1.0, 2)


def test_equal_probabilities_are_in_one_bin():
    p = np.array([0.1] * 5 + [0.3] * 2 + [0.9])
    assert [each.n for each in reliability(p, p > 0.5, singles(8), most=4)] == [5, 2, 1]
    assert [each.n for each in reliability(p, p > 0.5, singles(8), most=4, least=4)] == [8]


def test_a_bin_has_enough_groups_and_too_few_make_none():
    p, group = np.arange(12) / 12, np.arange(12) // 3
    assert [each.n for each in reliability(p, p > 0.5, group, most=12, least=2)] == [4, 3, 5]
    assert reliability(p, p > 0.5, group, most=12, least=5) == []


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 10), st.integers(1, 8))
def test_bins_have_every_sample_once_and_none_is_small(values: list[int], most: int, least: int):
    p = np.array(values) / 10
    found = reliability(p, p > 0.4, singles(len(p)), most, least)
    assert sum(each.n for each in found) == (len(p) if found else 0)
    assert bool(found) == (len(p) >= least)
    assert all(each.n >= least for each in found)
    assert [each.predicted for each in found] == sorted(each.predicted for each in found)


# Intercept and slope ----------------------------------------------------------------------------------------


def draws(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits twice as far from 0 as they should be, of outcomes that are likelier than predicted."""
    random = np.random.default_rng(0)
    logit = 2 * random.normal(size=n)
    return logit, random.random(n) < 1 / (1 + np.exp(-(0.5 + 0.6 * logit)))


def test_the_intercept_by_hand():
    """Of 3 in 4 that came true at logits of 0 it is the logit of 3 / 4, log 3, with a variance of 1 / (4 p (1 - p))."""
    found = calibration(np.zeros(4), np.array([True, True, True, False]), singles(4))
    assert found.keys() == {"intercept"}  # all logits are equal
    value, low, high = found["intercept"]
    assert value == pytest.approx(np.log(3))
    assert (high - low) / 2 == pytest.approx(1.959964 * np.sqrt(1 / (4 * 3 / 16)))


def test_the_slope_is_scikit_learns():
    logit, true = draws(500)
    fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(logit[:, None], true)
    assert calibration(logit, true, singles(500))["slope"].value == pytest.approx(fitted.coef_[0, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("grouped", "intercept", "slope"),
    [(1, (0.10372806, 0.76672537), (0.53873810, 0.85761027)), (2, (0.11061912, 0.75983431), (0.53810318, 0.85824518))],
)
def test_intervals_are_those_of_statsmodels(grouped: int, intercept: tuple[float, float], slope: tuple[float, float]):
    """Of 0.15, GLM(Binomial): cov_type HC0 of single samples, and cluster, without correction, of pairs."""
    found = calibration(*draws(300), np.arange(300) // grouped)
    assert found["intercept"][1:] == pytest.approx(intercept, abs=1e-7)
    assert found["slope"][1:] == pytest.approx(slope, abs=1e-7)


def test_what_has_no_end_has_no_slope():
    """Separated classes; logits that float64 cannot turn into probabilities; one class."""
    logit, true = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([False, False, True, True])
    assert calibration(logit, true, singles(4)).keys() == {"intercept"}
    assert calibration(logit * np.inf, ~true, singles(4)).keys() <= {"intercept"}
    assert calibration(logit, np.ones(4, bool), singles(4)) == {}


# Thresholds -------------------------------------------------------------------------------------------------


def test_thresholds_by_hand():
    """Ill at .2, .6, .7, .9, well at .1, .3, .5, .65: at .55 three of four ill are above, three of four well below.

    Nine of ten ill takes all four, above .15, where one of four well is below; nine of ten well takes all, above .65.
    """
    p = np.array([0.2, 0.6, 0.7, 0.9, 0.1, 0.3, 0.5, 0.65])
    found = operating_points(p, np.arange(8) < 4)
    assert found == [("Youden", 0.55), ("sensitivity >= 0.9", 0.15), ("specificity >= 0.9", 0.675)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=2, max_size=40))
def test_thresholds_are_the_best_that_scikit_learn_finds(samples: list[tuple[bool, int]]):
    positive, p = (np.array(each) for each in zip(*samples, strict=True))
    p = p / 23 + 0.01
    if positive.all() or not positive.any():
        return
    false_positives, sensitivity, _ = roc_curve(positive, p, drop_intermediate=False)
    best = {
        "Youden": (sensitivity - false_positives).max() + 1,
        "sensitivity >= 0.9": 1 - false_positives[sensitivity >= 0.9].min(),
        "specificity >= 0.9": sensitivity[false_positives <= 0.1 + 1e-12].max(),
    }
    for rule, threshold in operating_points(p, positive):
        found = {"sensitivity": (p[positive] > threshold).mean(), "specificity": (p[~positive] <= threshold).mean()}
        merit = sum(found.values()) if rule == "Youden" else found[{"se": "specificity", "sp": "sensitivity"}[rule[:2]]]
        assert merit == pytest.approx(best[rule]), rule
        assert threshold not in p


# Two models -------------------------------------------------------------------------------------------------


def test_mcnemar_by_hand():
    """One sample that one model alone has right, five that the other has: 2 (1 + 6) / 2^6."""
    one = np.array([True] + [False] * 5 + [True] * 9)
    other = np.array([False] + [True] * 5 + [True] * 9)
    assert mcnemar(one, other) == pytest.approx(14 / 64)
    assert mcnemar(one, one) == 1.0
