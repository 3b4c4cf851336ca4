"""What ``fedshift benchmark`` does and prints."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from fedshift.cli.ending import interruptible
from fedshift.cli.options import PluginOption, listed, names_known_to, names_of, paths_of

SCALES = names_known_to("fedshift.study.scenarios", "scales", "benchmark")
FEDERATIONS = names_known_to("fedshift.study.scenarios", "scenarios", "benchmark")


def benchmark(
    scale: Annotated[
        str, typer.Option("--scale", help="smoke, short or paper: how large.", autocompletion=SCALES)
    ] = "smoke",
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="Rows; all: every published method.", autocompletion=names_of("METHODS")),
    ] = "all",
    federation: Annotated[
        str | None,
        typer.Option("--federation", help="Columns; by default all of the scale.", autocompletion=FEDERATIONS),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="Data that are not there or made: pacs=FILE, shakespeare=FILE.")
    ] = None,
    plugin: PluginOption = None,
    out: Annotated[str | None, typer.Option("--out", help="The folder; by default runs/benchmark.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many runs there are and how long they take; write nothing.")
    ] = False,
) -> None:
    """Carry out the benchmark, or say what it would cost."""
    from fedshift.cli.console import open_console, print_tables
    from fedshift.cli.estimates import print_study
    from fedshift.study.benchmark import carry_out_benchmark, plan_benchmark

    columns = listed(federation) if federation is not None else None
    plan = plan_benchmark(
        scale, listed(method), columns, data=paths_of(data or []), plugins=plugin or [], out=out or None
    )
    if dry_run:
        with interruptible("."):
            print_study(plan)
        return
    again = shlex.join(["fedshift", *sys.argv[1:]])
    with interruptible(f". The same command carries on: {again}"):
        done = carry_out_benchmark(plan)
    console = open_console(least=done.WIDTH)
    print_tables(console, done.tables(), done.notes())
    console.print(f"Written: {plan.folder}/benchmark.md, .csv, .json, .png and .html", highlight=False, soft_wrap=True)
    if done.failed:
        raise typer.Exit(1)
