"""What ``--dry-run`` prints: what runs would cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedshift.cli.console import open_console, print_tables
from fedshift.experiments import Experiment
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, clock
from fedshift.study import api
from fedshift.study.study_plan import Forecast, StudyPlan

if TYPE_CHECKING:
    from fedshift.study.tune import Budget

WIDTH = 120


def print_estimates(experiments: Sequence[Experiment]) -> None:
    """Print what experiments would cost, a line for each method (or other setting)."""
    print_forecasts(api.estimate(experiments))


def print_searches(experiments: Sequence[Experiment], budget: Budget) -> None:
    """Print what would be searched, on which data, and about how long it would take; nothing is written."""
    from fedshift.study.tune import chosen_on, plan_studies

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


def print_study(plan: StudyPlan) -> None:
    """Print what the cells of a study would cost, and why scenarios are left out."""
    from fedshift.study.execute import forecast_study

    print_forecasts(forecast_study(plan), plan.left_out.values())


def print_forecasts(forecasts: Sequence[Forecast], more: Iterable[str] = ()) -> None:
    """Print a line for each forecast, with ``more`` notes; seeds and held-out domains cost the same."""
    columns = ["method", "runs", "clients", "rounds", "steps", "evaluations", "down a round", "up a round"]
    columns += ["memory", "training"]
    rows: list[list[str]] = []
    notes = dict[str, None]()
    count = sum(forecast.runs for forecast in forecasts if forecast.cost is not None)
    title = f"{count} {'run' if count == 1 else 'runs'} would be carried out"
    for forecast in forecasts:
        name, runs, cost = forecast.label, str(forecast.runs), forecast.cost
        if cost is None:
            rows.append([name, runs, *["-"] * 7, "cannot run" if forecast.problem else "finished"])
            notes |= {f"{name}: {forecast.problem}": None} if forecast.problem else {}
            continue
        notes |= dict.fromkeys(f"{name}: {note}" if note.startswith("Engine") else note for note in cost.notes)
        clients, cohort = cost.clients
        who = str(clients) if clients == cohort else f"{cohort} of {clients}"
        counts = [str(cost.rounds), str(cost.steps), str(cost.scored)]
        sizes = [bytes_text(size) for size in (cost.bytes_down, cost.bytes_up, cost.memory)]
        rows.append([name, runs, who, *counts, *sizes, _time(cost.seconds)])
        for stage in cost.stages if len(cost.stages) > 1 else ():
            counts = [str(stage.rounds), str(stage.steps), str(stage.scored)]
            sent = [bytes_text(stage.bytes_down), bytes_text(stage.bytes_up)]
            rows.append([f"  stage {stage.name}", "", "", *counts, *sent, "", _time(stage.seconds)])
    console = open_console(least=WIDTH)
    print_tables(console, [Table(title, columns, rows)], [*notes, *more])
    console.print(
        "All figures are for one run. Memory is this process's peak so far and a round's messages; a batch needs more "
        "while it is trained on.",
        highlight=False,
    )
    seconds = [cost.seconds and forecast.runs * cost.seconds for forecast in forecasts if (cost := forecast.cost)]
    if known := [each for each in seconds if each is not None]:
        console.print(
            f"Training takes about {clock(sum(known))} in all on one process, by a few steps of one client; evaluation "
            "is not included.",
            highlight=False,
        )
    console.print("Nothing was written.")


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else clock(seconds)
