"""How many runs a table has that are not finished, and how long they take where that was measured before."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.errors import FedshiftError
from fedshift.reproduction.panels import Panel
from fedshift.reproduction.plan import Plan
from fedshift.runs import runner
from fedshift.runs.cells import Cost, Lacking
from fedshift.runs.folder import RunFolder
from fedshift.simulation.dry_run import estimate


def forecast(plan: Plan, panel: Panel) -> Iterator[Cost]:
    """The cost of each row on a panel."""
    for cell in plan.cells_of(panel):
        left = [each for each in cell.experiments if not RunFolder(runner.run_path(each)).finished]
        name = f"{cell.row.name}, {cell.point}" if cell.point else cell.row.name
        try:
            yield Cost(plan.title(panel), name, len(left), estimate(left[0]).seconds if left else None)
        except FedshiftError as error:
            yield Cost(plan.title(panel), name, 0, None, Lacking(str(error), "refused"))
