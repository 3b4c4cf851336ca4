"""What the cells of a benchmark came to: means, ranks, and differences to FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import mean
from typing import Any

from fedshift.benchmarking.carry_out import Measured, Outcome
from fedshift.benchmarking.columns import Column
from fedshift.benchmarking.plan import Plan
from fedshift.benchmarking.rows import BASE
from fedshift.benchmarking.statistics import Interval, paired, ranks
from fedshift.reporting.results import MeanStd
from fedshift.runs.cells import Lacking

LAST = float("-inf")  # the accuracy by which what diverged is ranked


@dataclass(frozen=True, repr=False)
class Scores:
    """Methods on federations, as measured.

    Attributes:
        plan: what was asked for.
        outcome: what came of it.
    """

    plan: Plan
    outcome: Outcome

    @property
    def columns(self) -> list[Column]:
        """The columns that have their data."""
        return [column for column in self.plan.columns if column.name not in self.outcome.left_out]

    def of(self, column: str, method: str) -> list[Measured]:
        """What was measured of a cell, by seed; empty where it has no figure."""
        return self._cells.get((column, method), [])

    def lacking(self, column: str, method: str) -> Lacking | None:
        """Why a cell has no figure."""
        return self.outcome.lacking.get((column, method))

    @property
    def failed(self) -> bool:
        """Whether a user's method failed somewhere."""
        return any(each.kind == "failed" for each in self.outcome.lacking.values())

    def accuracy(self, column: str, method: str) -> MeanStd | None:
        """Mean and standard deviation over seeds of the accuracy, in 0..1."""
        return MeanStd.of([each.accuracy for each in self.of(column, method)])

    def worst(self, column: str, method: str) -> MeanStd | None:
        """The same of the worst environment."""
        return MeanStd.of([each.worst for each in self.of(column, method)])

    def ranks(self, column: str) -> dict[str, float]:
        """The rank of each method by its mean accuracy, 1 for the best; what diverged is last."""
        values: dict[str, float] = {}
        for method in self.plan.methods:
            accuracy, lacking = self.accuracy(column, method), self.lacking(column, method)
            if accuracy is not None:
                values[method] = accuracy.mean
            elif lacking is not None and lacking.kind == "diverged":
                values[method] = LAST
        return ranks(values)

    def mean_rank(self, method: str) -> float | None:
        """The mean of a method's ranks over the columns on which it can run; None if there is none."""
        found = [rank[method] for rank in self._ranks.values() if method in rank]
        return mean(found) if found else None

    def by_rank(self) -> list[str]:
        """The methods, the lowest mean rank first, and those without any last."""
        there = {method: self.mean_rank(method) for method in self.plan.methods}
        return sorted(there, key=lambda method: (there[method] is None, there[method] or 0.0))

    def differences(self, column: str, method: str) -> dict[int, float]:
        """By seed, a method's accuracy less FedAvg's on the same split, in 0..1; empty where one of them lacks it."""
        ours, base = ({each.seed: each.accuracy for each in self.of(column, name)} for name in (method, BASE))
        return paired(ours, base)

    def difference(self, column: str, method: str) -> Interval | None:
        """The mean of these differences, with an interval over seeds."""
        return Interval.of([*self.differences(column, method).values()])

    def overall(self, method: str) -> Interval | None:
        """The difference to FedAvg averaged over the columns that both have, with an interval over seeds.

        It is of these federations: how far others would differ it does not say.
        """
        found = [differences for column in self.columns if (differences := self.differences(column.name, method))]
        seeds = set.intersection(*map(set, found)) if found else set()
        return Interval.of([mean(differences[seed] for differences in found) for seed in sorted(seeds)])

    def measurements(self) -> list[dict[str, Any]]:
        """What each seed of each cell came to, as :class:`~fedshift.benchmarking.carry_out.Measured` says."""
        return [asdict(each) for each in self.outcome.measured]

    @cached_property
    def _cells(self) -> dict[tuple[str, str], list[Measured]]:
        found: dict[tuple[str, str], list[Measured]] = {}
        for each in self.outcome.measured:
            found.setdefault((each.column, each.method), []).append(each)
        return found

    @cached_property
    def _ranks(self) -> dict[str, dict[str, float]]:
        return {column.name: self.ranks(column.name) for column in self.columns}


def sums(measured: Sequence[Measured]) -> tuple[float, float]:
    """The mean seconds and megabytes of a cell's runs."""
    return mean(each.seconds for each in measured), mean(each.megabytes for each in measured)
