"""Output before runs: their cost, the fastest engine, and client vectors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedshift.cli.console import interruptible, open_console, print_tables
from fedshift.errors import FedshiftError, needs
from fedshift.experiments import Experiment
from fedshift.reporting.table import Table
from fedshift.runs.dry_run import StageCost
from fedshift.study import api
from fedshift.study.study_plan import Forecast, StudyPlan
from fedshift.written import bytes_text, clock

if TYPE_CHECKING:
    from fedshift.core.training import RunOptions
    from fedshift.study.search import Budget, Study

WIDTH = 120
COLUMNS = [
    *("method", "runs", "clients", "rounds", "steps", "evaluations", "down a round", "up a round", "memory"),
    "training",
]


def print_estimates(experiments: Sequence[Experiment]) -> None:
    """Print what experiments would cost, a line for each method (or other varied setting)."""
    print_forecasts(api.estimate(experiments))


def forecasts_of_searches(studies: Iterable[Study]) -> list[Forecast]:
    found = []
    for study in studies:
        (forecast,) = api.estimate(study.experiments[:: study.folds])
        found.append(replace(forecast, label=study.label, runs=study.count * len(study.experiments)))
    return found


def print_searches(experiments: Sequence[Experiment], budget: Budget) -> None:
    """Print what would be searched, on which data, and the estimated time; nothing is written."""
    from fedshift.study.tune import chosen_on, plan_studies

    studies, refused = plan_studies(experiments, budget)
    notes = [*(f"{study.label} searches {study.space}." for study in studies), *map(str, refused)]
    notes.append(f"Chosen on {chosen_on(studies[0])}.")
    pruned = [] if budget.cross_validate else ["Trials that fall behind are pruned."]
    print_forecasts(
        forecasts_of_searches(studies),
        [*notes, "Repeated choices cost nothing.", *pruned],
    )


def write_slurm(forecasts: Sequence[Forecast], folder: Path, shards: int, options: RunOptions) -> None:
    """Write the script of a job array that runs this command in shards."""
    from fedshift.study.slurm import Slurm

    if any(word.partition("=")[0] == "--shard" for word in sys.argv[1:]):
        raise FedshiftError("--slurm sets --shard for each task: give only one of the two.")
    words = iter(sys.argv[1:])
    requested = [word for word in words if not (word.startswith("--slurm") and ("=" in word or next(words, None)))]
    job = Slurm.of(forecasts, folder, [sys.executable, "-m", "fedshift", *requested], shards, options)
    path = job.write()
    typer.echo(job.script)
    typer.echo(f"Written: {path}\nsbatch {shlex.quote(str(path))}")


def print_study(plan: StudyPlan) -> None:
    """Print what the cells of a study would cost, and why scenarios are skipped."""
    from fedshift.study.execute import forecast, unfinished_runs

    print_forecasts(forecast(plan.available, unfinished_runs), plan.excluded.values())


def print_forecasts(forecasts: Sequence[Forecast], more: Iterable[str] = ()) -> None:
    """Print a line for each forecast, with ``more`` notes; seeds and held-out domains cost the same."""
    rows: list[list[str]] = []
    notes = dict[str, None]()
    count, seconds, scoring = 0, 0.0, 0.0
    for forecast in forecasts:
        name, runs, cost = forecast.label, str(forecast.runs), forecast.cost
        if cost is None:
            rows.append([name, runs, *["-"] * 7, "cannot run" if forecast.problem else "finished"])
            notes |= {f"{name}: {forecast.problem}": None} if forecast.problem else {}
            continue
        count += forecast.runs
        seconds += forecast.runs * (cost.seconds or 0.0)
        scoring += forecast.runs * cost.scored * (cost.scoring or 0.0)
        notes |= dict.fromkeys(f"{name}: {note}" if note.startswith("Engine") else note for note in cost.notes)
        clients, cohort = cost.clients
        everybody = str(clients) if clients == cohort else f"{cohort} of {clients}"
        lines: list[tuple[str, str, str, StageCost]] = [(name, runs, everybody, cost)]
        lines += [(f"  stage {stage.name}", "", "", stage) for stage in cost.stages if len(cost.stages) > 1]
        for title, number, who, each in lines:
            counts = [str(each.rounds), str(each.steps), str(each.scored)]
            sent = [bytes_text(each.bytes_down), bytes_text(each.bytes_up)]
            memory = bytes_text(cost.memory) if number else ""
            took = "-" if each.seconds is None else clock(each.seconds)
            rows.append([title, number, who, *counts, *sent, memory, took])
    title = f"{count} {'run' if count == 1 else 'runs'} planned"
    print_tables([Table(title, COLUMNS, rows)], [*notes, *more], least=WIDTH)
    typer.echo(
        "All figures are for one run. Memory is this process's peak so far and a round's messages; a batch needs more "
        "while it is trained on."
    )
    if seconds:
        typer.echo(
            f"Training takes about {clock(seconds)} in all on one process, by a few steps of one client; evaluation "
            f"takes about {clock(scoring)}."
        )
    typer.echo("Nothing was written.")


def print_engines(experiments: Sequence[Experiment], dry_run: bool) -> None:
    """Measure the engines for the first run of each method, and print the measurements."""
    console, first = open_console(), dict[str, Experiment]()
    for each in experiments:
        first.setdefault(each.method_name, each)
    for name, experiment in first.items():
        title = f"{name}, {type(experiment.model).__name__}, batches of {experiment.train.batch}"
        if dry_run:
            typer.echo(title)
            continue
        with console.status("") as status:
            calibration = api.bench(experiment, notify=status.update)
        rows = [
            [str(timing.choice), f"{timing.milliseconds:.2f}", str(len(timing.turns)), "; ".join(timing.notes)]
            for timing in (*calibration.kernels, *calibration.engines)
        ]
        console.print(Table(title, ["engine", "ms a client's step", "turns", ""], rows).rich())
        typer.echo(f"{calibration}\n")
    kept = (
        '`run.engine = "auto"` measures this again before each run that is long enough. The number is the median over '
        "turns; an engine that was far slower than the fastest was dropped early."
    )
    typer.echo("Nothing was measured." if dry_run else kept)


def print_indices(experiments: Sequence[Experiment], dry_run: bool) -> None:
    """Build and write the client index of each run; runs that differ only in how they use it share an index."""
    from fedshift.runs.lockstep import describe

    different = {repr((e.seed, e.data, e.partition, e.protocol, e.method.prepares)): e for e in experiments}
    with needs("parquet", "Writing an index"):
        import pyarrow.parquet  # noqa: F401  # before the work of making it
    for experiment in different.values():
        if dry_run:
            typer.echo(describe(experiment))
            continue
        with interruptible("; nothing was written."):
            index = api.index(experiment)
        for line in (*index.summary, *(f"Note: {note}" for note in index.notes)):
            open_console().print(line, highlight=False)
        folder = f"index-seed{experiment.seed}-{experiment.fingerprint[:8]}"
        for path in index.write(Path(experiment.run.out) / experiment.name / folder):
            typer.echo(f"Written: {path}")
