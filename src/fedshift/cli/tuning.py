"""What ``fedshift tune`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift import api
from fedshift.cli.console import open_console
from fedshift.reporting.table import Table
from fedshift.reporting.units import clock, printable
from fedshift.settings.experiment import Experiment
from fedshift.tuning.page import lines, tables
from fedshift.tuning.tune import Plan, Tuning, chosen_on, studies


def print_plan(experiments: Sequence[Experiment], plan: Plan) -> None:
    """Say what would be searched, on which data, and about how long it would take; nothing is written."""
    console, found = open_console(), studies(experiments, plan)
    rows, total = [], 0.0
    for study in found:
        (forecast,) = api.estimate(list(study.experiments))
        runs = plan.trials * len(study.experiments)
        seconds = None if forecast.cost is None else forecast.cost.seconds
        total += runs * (seconds or 0.0)
        rows.append([study.label, str(plan.trials), str(runs), "-" if seconds is None else clock(runs * seconds)])
    title = f"{len(found)} {'study' if len(found) == 1 else 'studies'} would be carried out"
    console.print(Table(title, ["method", "trials", "runs at most", "time"], rows).rich())
    for study in found:
        console.print(f"{study.label} searches {study.space}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Chosen on {chosen_on(experiments[0])}.\n"
        "Trials that fall behind are given up early, and repeated choices cost nothing.",
        highlight=False,
        markup=False,
    )
    if total:
        console.print(
            f"Training takes about {clock(total)} at most on one process, evaluation not included.",
            highlight=False,
        )
    console.print("Nothing was written.")


def print_tuning(tuning: Tuning) -> None:
    """Write the page of plots, and print what was found."""
    console = open_console()
    page = tuning.report()
    for table in tables(tuning):
        console.print(table.rich())
    for line in lines(tuning):
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Tuned settings: {tuning.path}\nReport: {page}\n`fedshift compare --tuned {tuning.path}`, with the same "
        "experiment and options, compares the methods with them.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
