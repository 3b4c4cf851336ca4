"""The benchmark: methods are tuned alike on a set of scenarios, run with seeds that nothing was chosen on, and ranked.

Folders of runs and of searches are not repeated, so the same plan, asked for again, goes on where it was.
"""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedshift import files
from fedshift.errors import DivergedError, FedshiftWarning
from fedshift.reporting.table import Table
from fedshift.runs.progress import Progress
from fedshift.runs.run import Run
from fedshift.settings.experiment import Experiment
from fedshift.study.benchmark_plan import BASE, BenchmarkPlan
from fedshift.study.benchmark_tables import chosen_settings, notes, tables
from fedshift.study.execute import carry_out_cells, noting, read_findings
from fedshift.study.quantities import Quantity, Values, quantity
from fedshift.study.ranking import Ranking
from fedshift.study.scenarios import Scenario
from fedshift.study.study_plan import Cell, Key, Lacking
from fedshift.study.tune import search_all
from fedshift.study.tuned import Found

COLUMNS = {"accuracy": "mean", "worst": "worst", "validation": "validation", "seconds": "seconds"}
COLUMNS |= {"megabytes": "megabytes"}


@dataclass(frozen=True, repr=False)
class Benchmark(Ranking):
    """Methods on federations, as measured; prints as its tables."""

    @property
    def name(self) -> str:
        """The stem of its files."""
        return "benchmark"

    def tables(self) -> list[Table]:
        """Accuracy with ranks, differences to FedAvg, cost, and the papers' rows beside ours."""
        return tables(self)

    def notes(self) -> list[str]:
        """How it was measured, and what has no number."""
        return notes(self)

    def more_tables(self) -> list[Table]:
        """The settings that were chosen, which is longer than the other tables."""
        return chosen_settings(self)

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON, the figure and the page into the plan's folder, replacing earlier ones.

        Returns:
            The files.

        Raises:
            FedshiftError: one cannot be written.
        """
        from fedshift.reporting.page import render, write_page_to  # with matplotlib
        from fedshift.study.figures import draw_benchmark

        png = draw_benchmark(self)
        page = render(
            "benchmark.html.jinja",
            title=f"Benchmark, scale {self.plan.scale.name}",
            tables=[*self.tables(), *self.more_tables()],
            notes=self.notes(),
            figure=b64encode(png).decode(),
            base=BASE,
        )
        return [*self.write_files({"png": png}), write_page_to(self.plan.folder, "benchmark.html", page)]


def carry_out_benchmark(plan: BenchmarkPlan, progress: Progress) -> Benchmark:
    """Carry out all that a plan asks for; finished runs are not repeated.

    Raises:
        FedshiftError: no scenario has its data here; or runs cannot be carried out for a reason that is not their
            method's, such as a full disk, or another process that is at work on them.
    """
    files.check_folder(plan.folder)
    for note in plan.left_out.values():
        progress.note(note)
    lacking: dict[Key, Lacking] = {}
    chosen: dict[tuple[str, str], list[Found]] = {}
    cells: list[Cell] = []
    for scenario in plan.available:
        here: list[Cell] = []
        for method in plan.methods:
            key = (scenario.name, method, "")
            seeds = (*plan.scale.tuning_seeds, *plan.scale.seeds)
            with noting(lacking, key, partial(plan.row, scenario, method, seeds)):
                here.append(Cell(scenario, method, "", _tuned(plan, scenario, method, chosen, progress)))
        carry_out_cells(here, plan.scale.seeds, progress, lacking)
        cells += here
    return Benchmark(plan, read_findings(cells, _columns, lacking, plan.left_out), chosen)


def _tuned(
    plan: BenchmarkPlan,
    scenario: Scenario,
    method: str,
    chosen: dict[tuple[str, str], list[Found]],
    progress: Progress,
) -> list[Experiment]:
    """A method's runs with the settings that were chosen on validation data, which are put on record."""
    experiments = plan.row(scenario, method, plan.scale.seeds)
    tuned_on = plan.row(scenario, method, plan.scale.tuning_seeds)
    tuning = search_all(tuned_on, plan.budget(scenario, method), progress)
    names = {study.path.name for study in tuning.studies}  # the file has what others found as well
    chosen[scenario.name, method] = [found for found in tuning.tuned.tuned if found.study in names]
    if tuning.failed:  # of one held-out domain among several
        raise DivergedError(tuning.failed[0])
    with warnings.catch_warnings():  # methods are tuned one by one, so the file has some with other searched settings
        warnings.simplefilter("ignore", FedshiftWarning)
        return tuning.tuned.apply(experiments, where=str(tuning.path))


def _columns(cell: Cell, runs: Sequence[Run]) -> dict[str, tuple[Quantity, Values]]:
    found = {name: quantity(text) for name, text in COLUMNS.items()}
    return {name: (its, its.values) for name, its in found.items()}
