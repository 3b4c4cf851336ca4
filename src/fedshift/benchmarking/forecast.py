"""How many runs a benchmark has, and how long they take where that was measured before; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.benchmarking.carry_out import lacking
from fedshift.benchmarking.columns import Column
from fedshift.benchmarking.plan import Plan
from fedshift.runs.cells import Cost
from fedshift.simulation.dry_run import estimate


def forecast(plan: Plan, column: Column) -> Iterator[Cost]:
    """The cost of each method on a column, with the settings that it begins with."""
    scale = plan.scale
    for method in plan.methods:
        try:
            runs = plan.experiments(column, method, scale.seeds)
            domains = len(runs) // len(scale.seeds)
            count = domains * (scale.trials * len(scale.tuning_seeds) + len(scale.seeds))
            yield Cost(column.name, method, count, estimate(runs[0]).seconds)
        except Exception as error:
            why = lacking(plan, column, method, error)
            if why is None:
                raise
            yield Cost(column.name, method, 0, None, why)
