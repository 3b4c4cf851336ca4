"""What ``fedshift tune`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedshift import api
from fedshift.cli.console import open_console, print_tables
from fedshift.cli.estimates import print_forecasts
from fedshift.settings.experiment import Experiment
from fedshift.study.search_results import Tuning
from fedshift.study.tune import Budget, chosen_on, plan_studies


def print_searches(experiments: Sequence[Experiment], budget: Budget) -> None:
    """Print what would be searched, on which data, and about how long it would take; nothing is written."""
    studies, refused = plan_studies(experiments, budget)
    forecasts = []
    for study in studies:
        (forecast,) = api.estimate(list(study.experiments))
        forecasts.append(replace(forecast, label=study.label, runs=budget.trials * len(study.experiments)))
    notes = [*(f"{study.label} searches {study.space}." for study in studies), *map(str, refused)]
    notes.append(f"Chosen on {chosen_on(experiments[0])}.")
    print_forecasts(
        forecasts, [*notes, "Trials that fall behind are given up early, and repeated choices cost nothing."]
    )


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
