"""Which of several ways is fastest, on a machine whose speed changes while it is measured.

The ways take turns, one after the other, and the order moves on by one each lap. Two ways are compared lap by lap, so
that what slows the machine down for a while slows both. How many times as fast one is as another is the median over
laps, with an interval that holds the true value in about 95 of 100 cases: Student's on the logarithms of the ratios,
widened since the median takes the place of the mean, and for at least 1 % of noise. A way that is surely slower leaves;
the race ends when the order is clear, or the time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from statistics import fmean, median

LEAST, MOST = 3, 24  # laps
CLEARLY = 0.95  # a way is preferred to a simpler one if it takes no more than this part of its time
NOISE = 0.01  # of a turn, at least: a few turns that happen to agree show no less
# 0.999 quantiles of Student's t from LEAST - 1 degrees of freedom on, the last for all that follow: the race looks
# several times and at several ways, so each look must be surer than the 95 % that are claimed for all.
STUDENT = (22.327, 10.215, 7.173, 5.893, 5.208, 4.785, 4.501, 4.297, 4.144, 4.025, 3.930, 3.852)

Turn = Callable[[], float]  # takes a turn; seconds a round


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one way is as another.

    Attributes:
        value: the median over laps.
        low: the least it may be.
        high: the most it may be.
    """

    value: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Surely, and clearly enough to be preferred to a simpler way."""
        return self.low > 1 and self.value * CLEARLY >= 1

    @property
    def negligible(self) -> bool:
        """At the most so little faster that a simpler way is preferred."""
        return self.high * CLEARLY <= 1

    def __str__(self) -> str:
        """As in ``1.31 ± 0.05``; a spread of more than ten times the value is no number to read."""
        spread = max(self.high - self.value, self.value - self.low)
        return f"{self.value:.2f}, hardly known" if spread > 10 * self.value else f"{self.value:.2f} ± {spread:.2f}"


def ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """How many times as fast one way is as another, from the seconds of their turns; the later of the longer are left.

    Laps fewer than LEAST leave everything possible.
    """
    logs = [log(theirs / mine) for mine, theirs in zip(one, other, strict=False)]
    middle = median(logs)
    if len(logs) < LEAST:
        return Ratio(exp(middle), 0.0, float("inf"))
    mean = fmean(logs)
    deviation = sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))
    quantile = STUDENT[min(len(logs) - LEAST, len(STUDENT) - 1)]
    spread = quantile * sqrt(pi / 2) * max(deviation, sqrt(2) * NOISE) / sqrt(len(logs))
    return Ratio(exp(middle), exp(middle - spread), exp(middle + spread))


def chosen(times: Sequence[Sequence[float]]) -> int:
    """The way to take, of ways in order of simplicity: one is preferred to a simpler one if it is surely faster."""
    best = 0
    for way in range(1, len(times)):
        if ratio(times[way], times[best]).faster:
            best = way
    return best


def race(turns: Sequence[Turn], seconds: float) -> list[list[float]]:
    """Let ways take turns until the order is clear.

    Args:
        turns: a way each, the simplest first.
        seconds: after so many the race ends, but not before LEAST laps.

    Returns:
        Of each way the seconds of its turns; of one that left, those before.
    """
    times: list[list[float]] = [[] for _ in turns]
    going, end, lap = list(range(len(turns))), time.perf_counter() + seconds, 0
    while len(going) > 1 or lap < LEAST:
        first = lap % len(going)
        for way in (*going[first:], *going[:first]):
            times[way].append(turns[way]())
        lap += 1
        if lap < LEAST:
            continue
        going = [way for way in going if not any(ratio(times[other], times[way]).faster for other in going)]
        best = chosen([times[way] for way in going])
        settled = all(ratio(times[way], times[going[best]]).negligible for way in going)
        if settled or lap == MOST or time.perf_counter() > end:
            break
    return times
