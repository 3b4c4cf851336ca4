"""Whether probabilities mean what they state, where to draw a line, and whether two models err on other samples.

- Bins contain about equally many samples, in the order of the probability, and equal probabilities are in one bin. The
  limits of a bin would be numbers of single samples, so a bin has none.
- Intercept and slope are those of a logistic regression of the outcome on the logit of the predicted probability (Cox,
  Biometrika 1958; Van Calster et al., BMC Medicine 2019). A slope below 1: probabilities are too extreme. The intercept
  is that of a regression whose slope is 1 (calibration in the large): above 0, probabilities are too low. Variances are
  between groups, as in :mod:`fedshift.core.uncertainty`.
- A threshold lies in the middle between two probabilities that occur, rounded to four digits, so it is no sample's.
- McNemar's test is the exact one: of the samples on which one model alone is right, is either as often?
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedshift.core.metrics import Array
from fedshift.core.uncertainty import Z, share_bounds

FURTHEST = 700.0  # a logit whose probability in float64 is neither 0 nor 1
STEPS = 50  # of Newton's method, which takes about ten
STEEPEST = 1e3  # a slope beyond this has no limit: the classes are separated
LEAST_WEIGHT = 1e-9  # sum of p (1 - p) over samples, below which they are uninformative
DIGITS = 4  # of a threshold, and of what is handed on


class Bin(NamedTuple):
    """Samples of similar probability.

    Attributes:
        n: how many.
        predicted: their mean probability.
        observed: the share of them of which it came true.
        low: the lower end of the share's interval for 95 %.
        high: the upper end.
    """

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
    """A threshold and the rule by which it was chosen: a sample whose probability is larger is positive."""

    rule: str
    threshold: float


def reliability(p: Array, true: Array, group: Array, most: int = 10, least: int = 1) -> list[Bin]:
    """Samples by probability, from small to large.

    Args:
        p: probabilities (n,).
        true: what came true, booleans (n,).
        group: the group of each sample (n,).
        most: how many bins there may be.
        least: how many groups every bin has; where there are fewer in all there is no bin.
    """
    order = np.argsort(p, kind="stable")
    found, start = list[Array](), 0
    for stop in [*(np.flatnonzero(np.diff(p[order])) + 1), len(p)]:
        rows = order[start:stop]
        place = start * most // len(p)  # of the equal parts, the one in which the bin begins
        if stop * most >= (place + 1) * len(p) and count(group[rows]) >= least:
            found.append(rows)
            start = stop
    if found and start < len(p):
        found[-1] = np.concatenate([found[-1], order[start:]])
    return [Bin(len(r), float(p[r].mean()), float(true[r].mean()), *share_bounds(true[r], group[r])) for r in found]


def count(group: Array) -> int:
    """How many groups there are, of the group of each sample (n,)."""
    return len(np.unique(group))


def calibration(logit: Array, true: Array, group: Array) -> dict[str, Fitted]:
    """The ``intercept`` and the ``slope`` of calibration, as far as they exist.

    Args:
        logit: of the predicted probability (n,).
        true: what came true, booleans (n,).
        group: the group of each sample (n,).

    Returns:
        Neither where nothing, or everything, came true; no slope where the classes are separated, or all logits equal.
    """
    logit = np.clip(logit, -FURTHEST, FURTHEST)
    if true.all() or not true.any():
        return {}
    ones = np.ones((len(logit), 1))
    fits = {"intercept": _regression(ones, logit, true, group)}
    fits["slope"] = _regression(np.column_stack([ones, logit]), np.zeros_like(logit), true, group)
    return {name: fitted for name, fitted in fits.items() if fitted is not None}


def _regression(x: Array, offset: Array, true: Array, group: Array) -> Fitted | None:
    """The last coefficient of a logistic regression on inputs (n, k) and an offset (n,), with no penalty."""
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
    """Thresholds that samples choose: the largest sensitivity + specificity (Youden), and one for a least of each.

    Args:
        p: the probability of being positive (n,).
        positive: which samples are, booleans (n,), some and not all.
        least: the sensitivity, or specificity, to keep; the other is then as large as it can be.
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
    """The exact p of McNemar's test, of which samples each of two models predicts rightly, booleans (n,)."""
    from scipy.stats import binomtest

    only, other_only = int((right & ~other).sum()), int((other & ~right).sum())
    return float(binomtest(only, only + other_only).pvalue) if only + other_only else 1.0
