"""What ``--dry-run`` prints: what runs would cost."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift import api
from fedshift.cli.console import open_console, print_tables
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, clock
from fedshift.settings.experiment import Experiment
from fedshift.study.execute import LACKING
from fedshift.study.plan import StudyPlan

WIDTH = 120


def print_estimates(experiments: Sequence[Experiment]) -> None:
    """One line for each method (or other setting); seeds and held-out domains cost the same."""
    columns = ["method", "runs", "clients", "rounds", "steps", "evaluations", "down a round", "up a round"]
    columns += ["memory", "training"]
    rows: list[list[str]] = []
    forecasts, notes = api.estimate(experiments), dict[str, None]()
    count = sum(forecast.runs for forecast in forecasts if forecast.cost is not None)
    title = f"{count} {'run' if count == 1 else 'runs'} would be carried out"
    for forecast in forecasts:
        name, runs, cost = forecast.label, str(forecast.runs), forecast.cost
        if cost is None:
            rows.append([name, runs, *["-"] * 7, "cannot run"])
            notes[f"{name}: {forecast.problem}"] = None
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
    console.print(Table(title, columns, rows).rich())
    for note in notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
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


def print_costs(plan: StudyPlan) -> None:
    """Print what the cells of a study would cost, by its scenarios' titles, and why some are left out."""
    console = open_console(least=WIDTH)
    costs = {plan.title(scenario): plan.costs(scenario) for scenario in plan.available}
    everything = [cost for cells in costs.values() for cost in cells]
    by_scenario = []
    for title, cells in costs.items():
        there = [cost.total for cost in cells if cost.seconds is not None]
        by_scenario.append([title, str(sum(cost.runs for cost in cells)), _time(sum(there) if there else None)])
    names = list(dict.fromkeys(cost.row for cost in everything))
    title = f"{sum(cost.runs for cost in everything)} runs of {len(names)} rows would be carried out"
    seconds = {(cost.column, cost.row): f"{cost.seconds:.1f}" for cost in everything if cost.seconds is not None}
    by_row = [[name, *(seconds.get((title, name), "-") for title in costs)] for name in names]
    notes = [
        f"{cost.column}, {cost.row}: {LACKING[cost.lacking.kind]}. {cost.lacking.reason}"
        for cost in everything
        if cost.lacking
    ]
    tables = [
        Table(title, ["federation", "runs", "time"], by_scenario),
        Table("Seconds of one run", ["row", *costs], by_row),
    ]
    print_tables(console, tables, [*notes, *plan.left_out.values()])
    if known := sum(cost.runs for cost in everything if cost.seconds is not None):
        total = clock(sum(cost.total for cost in everything))
        console.print(f"Training takes about {total} in {known} of the runs, one after the other.", highlight=False)
    console.print("Nothing was written.")
