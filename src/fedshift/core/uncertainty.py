"""Intervals of scores, and whether two models differ on the same samples.

Samples of a group, such as slices of a patient, correlate, so every variance here is between groups. A score has an
*influence function*, how much each sample moves it: the squares of its sums over groups estimate the variance. If every
sample is a group, that is the binomial variance of a share, and the variance of an AUROC by DeLong, DeLong and
Clarke-Pearson (Biometrics 1988); the influences of two models on the same samples are subtracted (DeLong's covariance).

- A share (accuracy, the sensitivity or precision of a class) has Wilson's interval (JASA 1927), for the number of
  independent samples with the same variance, at most n; for a share of 0 or 1, the number of groups.
- An AUROC of two classes has the normal interval, cut at 0 and 1; at 0 or 1, Wilson's for the number of groups
  of the rarer class, as no sample shows a variance. The mean AUROC of more classes has the normal interval.
- Any other metric has percentiles over resamples of whole groups (:func:`bootstrap`).

All intervals are for 95 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from fedshift.core.metrics import ACCURACY, OF, PER_CLASS, Array, measured, names

Z = 1.959963984540054  # the normal distribution's quantile for 95 %
RESAMPLES = 1000
ENDS = (2.5, 97.5)  # percentiles


class Bounds(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ScoreEstimate:
    """A score and its influence function (n,); the squares of its sums over groups sum to the variance."""

    value: float
    influence: Array

    def variance(self, group: Array) -> float:
        """The variance of the value, for the group of each sample (n,)."""
        _, place = np.unique(group, return_inverse=True)
        return float((np.bincount(place, self.influence) ** 2).sum())

    def bounds(self, group: Array, least: float = 0.0) -> Bounds:
        """The normal interval, cut at ``least`` and 1; for a difference ``least`` is -1."""
        half = Z * sqrt(self.variance(group))
        return Bounds(max(least, self.value - half), min(1.0, self.value + half))

    def __sub__(self, other: Self) -> ScoreEstimate:
        return ScoreEstimate(self.value - other.value, self.influence - other.influence)


# Shares -----------------------------------------------------------------------------------------------


def share(hits: Array) -> ScoreEstimate:
    """The share of samples that are hits, booleans (n,), n > 0."""
    value = float(hits.mean())
    return ScoreEstimate(value, (hits - value) / len(hits))


def share_bounds(hits: Array, group: Array) -> Bounds:
    """Wilson's interval for a share of hits, booleans (n,), n > 0, with groups (n,)."""
    found = share(hits)
    variance = found.variance(group)
    if variance == 0:
        return wilson(found.value, len(np.unique(group)))
    return wilson(found.value, min(len(hits), found.value * (1 - found.value) / variance))


def wilson(value: float, n: float) -> Bounds:
    """Wilson's interval for a share of n independent samples, n > 0."""
    scale, quarter = 1 + Z * Z / n, Z * Z / (4 * n * n)
    middle = (value + Z * Z / (2 * n)) / scale
    half = Z / scale * sqrt(value * (1 - value) / n + quarter)
    return Bounds(max(0.0, middle - half), min(1.0, middle + half))


# Areas under ROC curves -------------------------------------------------------------------------------


def auroc(own: Array, p: Array) -> ScoreEstimate | None:
    """The area under the ROC curve; None if the class or its complement is empty.

    ``own`` are booleans (n,), the samples of the class; ``p`` (n,) is larger for these.
    """
    from scipy.stats import rankdata

    m, n = int(own.sum()), int((~own).sum())
    if not m or not n:
        return None
    ranks, influence = rankdata(p), np.zeros(len(p))
    above = (ranks[own] - rankdata(p[own])) / n  # for each sample of the class, the share of others below it
    below = 1 - (ranks[~own] - rankdata(p[~own])) / m
    value = float(above.mean())
    influence[own] = (above - value) / sqrt(m * max(1, m - 1))  # sums of squares divided by m - 1, as DeLong
    influence[~own] = (below - value) / sqrt(n * max(1, n - 1))
    return ScoreEstimate(value, influence)


def auroc_bounds(own: Array, p: Array, group: Array) -> Bounds | None:
    """The interval of :func:`auroc`; None where that is undefined."""
    found = auroc(own, p)
    if found is None:
        return None
    if found.value in (0.0, 1.0):
        return wilson(found.value, min(len(np.unique(group[each])) for each in (own, ~own)))
    return found.bounds(group)


# Any metric -------------------------------------------------------------------------------------------


def bootstrap(
    statistic: Callable[[Array], float | None], group: Array, seed: int, resamples: int = RESAMPLES
) -> Bounds | None:
    """Percentiles of a statistic of rows over resamples of whole groups; None if every second is undefined or more."""
    _, place = np.unique(group, return_inverse=True)
    order = np.argsort(place, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(place))[:-1])
    draws, found = np.random.default_rng(seed), list[float]()
    for _ in range(resamples):
        chosen = draws.integers(len(members), size=len(members))
        value = statistic(np.concatenate([members[each] for each in chosen]))
        if value is not None:
            found.append(value)
    if 2 * len(found) <= resamples:
        return None
    low, high = np.percentile(found, ENDS)
    return Bounds(float(low), float(high))


def with_interval(metrics: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in metrics if name.partition(OF)[0] in ("auroc", "sensitivity", "precision"))


def intervals(
    declared: Sequence[str], classes: Sequence[str], log_probabilities: Tensor, y: Tensor, group: Array
) -> dict[str, Bounds]:
    """Intervals of accuracy and of the declared metrics that need no resampling, by name.

    ``log_probabilities`` are (n, classes), n > 0; labels y and groups (n,).
    """
    p, labels = log_probabilities.double().exp().cpu().numpy(), y.cpu().numpy()
    predicted = log_probabilities.argmax(dim=1).cpu().numpy()
    found: dict[str, Bounds | None] = {ACCURACY: share_bounds(predicted == labels, group)}
    for name in names(declared, classes):
        kind, _, of_class = name.partition(OF)
        number = classes.index(of_class) if of_class else len(classes) - 1
        own, chosen = labels == number, predicted == number
        if kind == "sensitivity" and own.any():
            found[name] = share_bounds(chosen[own], group[own])
        elif kind == "precision" and chosen.any():
            found[name] = share_bounds(own[chosen], group[chosen])
        elif kind == "auroc" and (of_class or len(classes) == 2):
            found[name] = auroc_bounds(own, p[:, number], group)
        elif kind == "auroc":
            found[name] = _mean_auroc_bounds(labels, p, group)
    return {name: bounds for name, bounds in found.items() if bounds is not None}


def resampled(
    declared: Sequence[str], classes: Sequence[str], log_probabilities: Tensor, y: Tensor, group: Array, seed: int
) -> dict[str, Bounds]:
    """Intervals of the declared metrics that :func:`intervals` omits, and the seed of their resamples."""
    known = intervals(declared, classes, log_probabilities, y, group)
    found: dict[str, Bounds] = {}
    for name in declared:
        if name.startswith(PER_CLASS) or name in known:
            continue

        def statistic(rows: Array, name: str = name) -> float | None:
            return measured([name], classes, log_probabilities[rows], y[rows])[name]

        if (bounds := bootstrap(statistic, group, seed)) is not None:
            found[name] = bounds
    return found


def _mean_auroc_bounds(labels: Array, p: Array, group: Array) -> Bounds | None:
    found = [each for number in range(p.shape[1]) if (each := auroc(labels == number, p[:, number])) is not None]
    if not found:
        return None
    value = float(np.mean([each.value for each in found]))
    return ScoreEstimate(value, np.mean([each.influence for each in found], axis=0)).bounds(group)
