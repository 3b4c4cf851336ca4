"""What ``--dry-run`` prints: what runs would cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedshift import api
from fedshift.cli.console import open_console
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, clock, printable
from fedshift.runs.cells import LACKING, Cost
from fedshift.settings.experiment import Experiment

WIDTH = 120


def print_estimates(experiments: Sequence[Experiment]) -> None:
    """One line for each method (or other setting); seeds and held-out domains cost the same."""
    title = f"{len(experiments)} {'run' if len(experiments) == 1 else 'runs'} would be carried out"
    columns = ["method", "runs", "clients", "rounds", "steps", "evaluations", "down a round", "up a round"]
    columns += ["memory", "training"]
    rows: list[list[str]] = []
    forecasts, notes = api.estimate(experiments), dict[str, None]()
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


def print_costs(costs: Mapping[str, Sequence[Cost]], left_out: Iterable[str]) -> None:
    """What the cells of a table would cost, by its columns' titles, and why some of it is left out."""
    console = open_console(least=WIDTH)
    everything = [cost for cells in costs.values() for cost in cells]
    per_column = [
        [title, str(sum(cost.runs for cost in cells)), _time(sum(known) if known else None)]
        for title, cells in costs.items()
        for known in [[cost.total for cost in cells if cost.seconds is not None]]
    ]
    names = list(dict.fromkeys(cost.row for cost in everything))
    title = f"{sum(cost.runs for cost in everything)} runs of {len(names)} rows would be carried out"
    console.print(Table(title, ["federation", "runs", "time"], per_column).rich())
    seconds = {
        (title, cost.row): f"{cost.seconds:.1f}"
        for title, cells in costs.items()
        for cost in cells
        if cost.seconds is not None
    }
    per_run = [[name, *(seconds.get((title, name), "-") for title in costs)] for name in names]
    console.print(Table("Seconds of one run", ["row", *costs], per_run).rich())
    for cost in everything:
        if why := cost.lacking:
            text = printable(f"Note: {cost.column}, {cost.row}: {LACKING[why.kind]}. {why.reason}")
            console.print(text, highlight=False, markup=False)
    for note in left_out:
        console.print(f"Note: {note}", highlight=False, markup=False)
    known = sum(cost.runs for cost in everything if cost.seconds is not None)
    unknown = sum(cost.runs for cost in everything) - known
    if known:
        total = clock(sum(cost.total for cost in everything))
        console.print(f"Training takes about {total} in {known} of the runs, one after the other.", highlight=False)
    if unknown:
        console.print(f"How long {unknown} of the runs take is not known.", highlight=False)
    console.print("Nothing was written.")
