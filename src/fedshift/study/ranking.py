"""What a benchmark measured: ranks of its methods, and their differences to FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean

from fedshift.study.benchmark_plan import BASE, BenchmarkPlan
from fedshift.study.scenarios import Scenario
from fedshift.study.statistics import Interval, paired, ranks
from fedshift.study.study_plan import Lacking
from fedshift.study.study_results import StudyResults
from fedshift.study.tuned import Found

LAST = float("-inf")  # the accuracy by which what diverged is ranked


@dataclass(frozen=True, repr=False)
class Ranking(StudyResults):
    """Methods on federations, as measured; accuracies in %.

    Attributes:
        plan: what was asked for.
        chosen: what was found by tuning, one for each held-out domain, by scenario and method.
    """

    plan: BenchmarkPlan
    chosen: Mapping[tuple[str, str], Sequence[Found]] = field(default_factory=dict)

    @property
    def columns(self) -> list[Scenario]:
        """The scenarios that have their data."""
        return [each for each in self.plan.scenarios if each.name not in self.findings.left_out]

    @property
    def failed(self) -> bool:
        """Whether a user's method failed somewhere."""
        return any(each.kind == "failed" for each in self.findings.lacking.values())

    def lacking(self, scenario: str, method: str) -> Lacking | None:
        """Why a cell has no number."""
        return self.findings.lacking.get((scenario, method, ""))

    def ranks(self, scenario: str) -> dict[str, float]:
        """The rank of each method by its mean accuracy, 1 for the best; what diverged is last."""
        values: dict[str, float] = {}
        for method in self.plan.methods:
            accuracy, lacking = self.mean(scenario, method, "accuracy"), self.lacking(scenario, method)
            if accuracy is not None:
                values[method] = accuracy.mean
            elif lacking is not None and lacking.kind == "diverged":
                values[method] = LAST
        return ranks(values)

    @cached_property
    def _ranks(self) -> dict[str, dict[str, float]]:
        return {scenario.name: self.ranks(scenario.name) for scenario in self.columns}

    def mean_rank(self, method: str) -> float | None:
        """The mean of a method's ranks over the scenarios on which it can run; None if there is none."""
        found = [rank[method] for rank in self._ranks.values() if method in rank]
        return mean(found) if found else None

    def by_rank(self) -> list[str]:
        """The methods, the lowest mean rank first, and those without any last."""
        there = {method: self.mean_rank(method) for method in self.plan.methods}
        return sorted(there, key=lambda method: (there[method] is None, there[method] or 0.0))

    def differences(self, scenario: str, method: str) -> dict[int, float]:
        """By seed, a method's accuracy less FedAvg's on the same split, in points; empty where one of them lacks it."""
        ours, base = (self.by_seed(scenario, name, "accuracy") for name in (method, BASE))
        return paired(ours, base)

    def difference(self, scenario: str, method: str) -> Interval | None:
        """The mean of these differences, with an interval over seeds."""
        return Interval.of([*self.differences(scenario, method).values()])

    def overall(self, method: str) -> Interval | None:
        """The difference to FedAvg averaged over the scenarios that both have, with an interval over seeds.

        It is of these federations: how far others would differ it does not say.
        """
        found = [differences for each in self.columns if (differences := self.differences(each.name, method))]
        seeds = set.intersection(*map(set, found)) if found else set()
        return Interval.of([mean(differences[seed] for differences in found) for seed in sorted(seeds)])
