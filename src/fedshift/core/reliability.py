"""Calibration of probabilities, thresholds, and McNemar's test of two models.

- Bins contain about equally many samples, in order of probability; equal probabilities share a bin. The limits of a bin
  would be numbers of single samples, so a bin has none.
- Intercept and slope are from a logistic regression of the outcome on the logit of the predicted probability (Cox,
  Biometrika 1958; Van Calster et al., BMC Medicine 2019). A slope below 1: probabilities are too extreme. The intercept
  is for a slope of 1 (calibration in the large): above 0, probabilities are too low. Variances are between groups, as
  in :mod:`fedshift.core.uncertainty`.
- A threshold lies midway between two probabilities that occur, rounded to four digits, so it belongs to no sample.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedshift.core.metrics import Array
from fedshift.core.uncertainty import Z, share_bounds

FURTHEST = 700.0  # a logit whose probability in float64 is neither 0 nor 1
STEPS = 50  # iterations of Newton's method, which takes about ten
STEEPEST = 1e3  # a slope beyond this has no limit: the classes are separated
LEAST_WEIGHT = 1e-9  # sum of p (1 - p) over samples, below which they are uninformative
DIGITS = 4  # digits of thresholds and published numbers


class Bin(NamedTuple):
    """Samples of similar probability: its mean, and the share that came true with an interval for 95 %."""

    n: int
    predicted: float
    observed: float
    low: float
    high: float


class Fitted(NamedTuple):
    """A coefficient with its interval for 95 %."""

    value: float
    low: float
    high: float


class Point(NamedTuple):
    """A threshold and the rule that chose it: samples with a larger probability are positive."""

    rule: str
    threshold: float


def reliability(p: Array, true: Array, group: Array, most: int = 10, least: int = 1) -> list[Bin]:
    """At most ``most`` bins by probability, each with ``least`` groups or more; p, true (bool) and group are (n,)."""
    order = np.argsort(p, kind="stable")
    found, start = list[Array](), 0
    for stop in [*(np.flatnonzero(np.diff(p[order])) + 1), len(p)]:
        rows = order[start:stop]
        place = start * most // len(p)  # index of the equal part in which the bin begins
        if stop * most >= (place + 1) * len(p) and count(group[rows]) >= least:
            found.append(rows)
            start = stop
    if found and start < len(p):
        found[-1] = np.concatenate([found[-1], order[start:]])
    return [Bin(len(r), float(p[r].mean()), float(true[r].mean()), *share_bounds(true[r], group[r])) for r in found]


def count(group: Array) -> int:
    return len(np.unique(group))


def calibration(logit: Array, true: Array, group: Array) -> dict[str, Fitted]:
    """The ``intercept`` and ``slope`` of calibration, from logits, outcomes and groups (n,).

    Both are missing if all outcomes are equal; the slope if the classes are separated, or all logits equal.
    """
    logit = np.clip(logit, -FURTHEST, FURTHEST)
    if true.all() or not true.any():
        return {}
    ones = np.ones((len(logit), 1))
    fits = {"intercept": _regression(ones, logit, true, group)}
    fits["slope"] = _regression(np.column_stack([ones, logit]), np.zeros_like(logit), true, group)
    return {name: fitted for name, fitted in fits.items() if fitted is not None}


def _regression(x: Array, offset: Array, true: Array, group: Array) -> Fitted | None:
    """The last coefficient of an unpenalised logistic regression on inputs (n, k) and an offset (n,)."""
    from scipy.special import expit

    beta = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = expit(x @ beta + offset)
        weight = p * (1 - p)
        information = (x * weight[:, None]).T @ x
        spread = np.linalg.eigvalsh(information)
        if weight.sum() < LEAST_WEIGHT or spread[0] <= np.finfo(float).eps * spread[-1]:
            return None
        step = np.linalg.solve(information, x.T @ (true - p))
        beta += np.clip(step, -5, 5)  # far from the optimum a step may be too long
        if np.abs(beta).max() > STEEPEST:
            return None
        if np.abs(step).max() < 1e-10:
            break
    else:
        return None
    _, place = np.unique(group, return_inverse=True)
    scores = np.stack([np.bincount(place, column) for column in (x * (true - p)[:, None]).T])
    inverse = np.linalg.inv(information)
    half = Z * sqrt((inverse @ scores @ scores.T @ inverse)[-1, -1])
    return Fitted(float(beta[-1]), float(beta[-1] - half), float(beta[-1] + half))


# Thresholds -------------------------------------------------------------------------------------------


def operating_points(p: Array, positive: Array, least: float = 0.9) -> list[Point]:
    """Thresholds for probabilities (n,): Youden's (largest sensitivity + specificity), and for a least of either.

    ``positive`` are booleans (n,), some and not all; the other of the two is then as large as possible.
    """
    values = np.unique(p)
    middles = {float(f"{value:.{DIGITS}g}") for value in (values[1:] + values[:-1]) / 2}
    thresholds = np.array(sorted({0.0, 1.0, *middles}))
    sensitivity = 1 - np.searchsorted(np.sort(p[positive]), thresholds, side="right") / positive.sum()
    specificity = np.searchsorted(np.sort(p[~positive]), thresholds, side="right") / (~positive).sum()
    rules: dict[str, Callable[[Array], Array]] = {
        "Youden": lambda both: both,
        f"sensitivity >= {least:g}": lambda both: np.where(sensitivity >= least, specificity, -1.0),
        f"specificity >= {least:g}": lambda both: np.where(specificity >= least, sensitivity, -1.0),
    }
    both = sensitivity + specificity
    return [Point(rule, float(thresholds[np.argmax(merit(both))])) for rule, merit in rules.items()]


def mcnemar(right: Array, other: Array) -> float:
    """The exact p of McNemar's test, from the samples that each of two models predicts rightly, booleans (n,)."""
    from scipy.stats import binomtest

    only, other_only = int((right & ~other).sum()), int((other & ~right).sum())
    return float(binomtest(only, only + other_only).pvalue) if only + other_only else 1.0
