"""Differences of rows paired by seed, and intervals for means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from statistics import mean, stdev

LEVEL = 0.95  # of intervals


@dataclass(frozen=True)
class Interval:
    """A mean with a t interval for it, 95 %.

    Attributes:
        mean: of the values.
        half: half the interval's width; None of a single value.
        count: how many values there are.
    """

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval | None:
        """The mean of independent values, and the interval that Student's t with n - 1 degrees of freedom gives it.

        None of no values.
        """
        if not values:
            return None
        count = len(values)
        half = t_quantile(count - 1) * stdev(values) / sqrt(count) if count > 1 else None
        return cls(mean(values), half, count)

    def widened(self, by: float) -> Interval:
        """The interval with an independent source of error, whose own interval for 0 is as wide as ``by`` on a side."""
        return replace(self, half=None if self.half is None else hypot(self.half, by))

    def __str__(self) -> str:
        """In points, such as "+1.2 [-0.3, +2.7]"."""
        if self.half is None:
            return f"{self.mean:+.1f}"
        return f"{self.mean:+.1f} [{self.mean - self.half:+.1f}, {self.mean + self.half:+.1f}]"

    @property
    def clear(self) -> bool:
        """Whether 0 is outside."""
        return self.half is not None and abs(self.mean) > self.half


def t_quantile(degrees: int) -> float:
    """The value below which Student's t lies with probability 0.975."""
    from scipy.special import stdtrit  # late: a help text need not load it

    return float(stdtrit(degrees, (1 + LEVEL) / 2))


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """By seed, a value minus the base's of the same seed, whose data and split it shares."""
    return {seed: values[seed] - base[seed] for seed in sorted(values.keys() & base.keys())}
