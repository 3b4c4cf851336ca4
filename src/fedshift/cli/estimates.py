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
    columns = ["method", "runs", "clients", "rounds", "steps", "down a round", "up a round"]
    columns += ["peak memory", "training", "evaluation"]
    rows: list[list[str]] = []
    total, notes = 0.0, dict[str, None]()
    for forecast in api.estimate(experiments):
        name, runs, cost = forecast.label, str(forecast.runs), forecast.cost
        if cost is None:
            rows.append([name, runs, *["-"] * 7, "diverges" if forecast.diverges else "cannot run"])
            notes[f"{name}: {forecast.problem}"] = None
            continue
        total += cost.seconds * forecast.runs
        notes |= dict.fromkeys(f"{name}: {note}" if note.startswith("Engine") else note for note in cost.notes)
        clients, cohort = cost.clients
        counts = [str(clients) if clients == cohort else f"{cohort} of {clients}", str(cost.rounds), str(cost.steps)]
        sizes = [bytes_text(size) for size in (cost.bytes_down, cost.bytes_up, cost.memory)]
        rows.append([name, runs, *counts, *sizes, clock(cost.training), clock(cost.evaluation)])
        for stage in cost.stages if len(cost.stages) > 1 else ():
            counts = ["", "", str(stage.rounds), str(stage.steps)]
            sent = [bytes_text(stage.bytes_down), bytes_text(stage.bytes_up)]
            rows.append([f"  stage {stage.name}", *counts, *sent, "", clock(stage.seconds), ""])
    console = open_console(least=WIDTH)
    console.print(Table(title, columns, rows).rich())
    for note in notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    console.print(
        f"Steps, bytes, memory and time are for one run; all runs take about {clock(total)}. Nothing was written."
    )


def print_costs(costs: Mapping[str, Sequence[Cost]], left_out: Iterable[str]) -> None:
    """What the cells of a table would cost, by its columns' titles, and why some of it is left out."""
    console = open_console(least=WIDTH)
    everything = [cost for cells in costs.values() for cost in cells]
    per_column = [
        [title, str(sum(cost.runs for cost in cells)), clock(sum(cost.total for cost in cells))]
        for title, cells in costs.items()
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
    total = clock(sum(cost.total for cost in everything))
    unknown = sum(cost.runs for cost in everything if cost.seconds is None)
    beside = f", besides {unknown} runs of unknown time" if unknown else ""
    told = f"All take about {total} on this machine, in one process{beside}. Nothing was written."
    console.print(told, highlight=False)
