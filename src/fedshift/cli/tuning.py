"""What ``fedshift tune`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift import api
from fedshift.cli.console import open_console, print_tables
from fedshift.reporting.table import Table
from fedshift.reporting.units import clock
from fedshift.settings.experiment import Experiment
from fedshift.study.tune import Budget, chosen_on, plan_studies
from fedshift.study.tuning import Tuning


def print_searches(experiments: Sequence[Experiment], budget: Budget) -> None:
    """Print what would be searched, on which data, and about how long it would take; nothing is written."""
    studies, refused = plan_studies(experiments, budget)
    rows, total = [], 0.0
    for study in studies:
        (forecast,) = api.estimate(list(study.experiments))
        runs = budget.trials * len(study.experiments)
        seconds = None if forecast.cost is None else forecast.cost.seconds
        total += runs * (seconds or 0.0)
        rows.append([study.label, str(budget.trials), str(runs), "-" if seconds is None else clock(runs * seconds)])
    title = f"{len(studies)} {'study' if len(studies) == 1 else 'studies'} would be carried out"
    notes = [*(f"{study.label} searches {study.space}." for study in studies), *map(str, refused)]
    notes.append(f"Chosen on {chosen_on(experiments[0])}.")
    notes.append("Trials that fall behind are given up early, and repeated choices cost nothing.")
    if total:
        notes.append(f"Training takes about {clock(total)} at most on one process, evaluation not included.")
    console = open_console()
    print_tables(console, [Table(title, ["method", "trials", "runs at most", "time"], rows)], notes)
    console.print("Nothing was written.")


def print_tuning(tuning: Tuning) -> None:
    """Write the page of plots, and print what was found."""
    page, console = tuning.report(), open_console()
    print_tables(console, tuning.tables(), tuning.notes())
    console.print(
        f"Tuned settings: {tuning.path}\nReport: {page}\n`fedshift compare --tuned {tuning.path}`, with the same "
        "experiment and options, compares the methods with them.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
