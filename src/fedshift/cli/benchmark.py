"""What ``fedshift benchmark`` does and prints."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fedshift.cli.ending import interruptible
from fedshift.cli.options import PluginOption, listed, names_of, paths_of

if TYPE_CHECKING:
    from fedshift.benchmarking.plan import Plan


def _scales(incomplete: str) -> list[str]:
    from fedshift.benchmarking.columns import scales

    return [name for name in scales() if name.startswith(incomplete)]


def _federations(incomplete: str) -> list[str]:
    from fedshift.benchmarking.columns import all_columns

    before, comma, word = incomplete.rpartition(",")
    return [f"{before}{comma}{column.name}" for column in all_columns() if column.name.startswith(word)]


def _data(incomplete: str) -> list[str]:
    from fedshift.benchmarking.columns import all_columns

    names = dict.fromkeys(f"{column.data}=" for column in all_columns())
    return [name for name in names if name.startswith(incomplete)]


def benchmark(
    scale: Annotated[
        str, typer.Option("--scale", help="smoke, short or paper: how large.", autocompletion=_scales)
    ] = "smoke",
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="Rows; all: every published method.", autocompletion=names_of("METHODS")),
    ] = "all",
    federation: Annotated[
        str | None,
        typer.Option("--federation", help="Columns; by default all of the scale.", autocompletion=_federations),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", help="Data that are not there or made: pacs=FILE, shakespeare=FILE.", autocompletion=_data
        ),
    ] = None,
    plugin: PluginOption = None,
    out: Annotated[str | None, typer.Option("--out", help="The folder; by default runs/benchmark.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many runs there are and how long they take; write nothing.")
    ] = False,
) -> None:
    """Carry out the benchmark, or say what it would cost."""
    from fedshift import api
    from fedshift.benchmarking.plan import OUT
    from fedshift.benchmarking.plan import Plan as BenchmarkPlan
    from fedshift.cli.console import open_console, print_tables

    methods, columns = listed(method), listed(federation) if federation is not None else None
    paths, plugins, folder = paths_of(data or []), plugin or [], out or OUT
    plan = BenchmarkPlan.of(scale, methods, columns, folder, paths, plugins)
    if dry_run:
        with interruptible("."):
            _print_forecast(plan)
        return
    again = shlex.join(["fedshift", *sys.argv[1:]])
    with interruptible(f". The same command carries on: {again}"):
        done = api.benchmark(scale, methods, columns, data=paths, plugins=plugins, out=folder)
    console = open_console(least=done.WIDTH)
    print_tables(console, done.tables(), done.notes())
    console.print(f"Written: {plan.folder}/benchmark.md, .csv, .json, .png and .html", highlight=False, soft_wrap=True)
    if done.failed:
        raise typer.Exit(1)


def _print_forecast(plan: Plan) -> None:
    """Say how many runs a benchmark has, and about how long they take."""
    from fedshift.benchmarking.forecast import forecast
    from fedshift.cli.estimates import print_costs
    from fedshift.reporting.live import LiveProgress

    with LiveProgress(0) as progress:
        columns, left_out = plan.available(progress)
        costs = {column.title: list(forecast(plan, column)) for column in columns}
    print_costs(costs, left_out.values())
