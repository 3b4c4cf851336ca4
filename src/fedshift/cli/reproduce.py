"""What ``fedshift reproduce`` does and prints."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from fedshift.cli.ending import interruptible
from fedshift.cli.options import DryRunOption, names_known_to, paths_of

NAME_ONE = (
    "`fedshift reproduce fedsr --list`, of one paper, or of one table, says what is needed and how to get it, and why "
    "some are not reproduced."
)
TABLES = names_known_to("fedshift.study.papers", "exhibits")
SCALES = names_known_to("fedshift.study.scenarios", "scales", "papers")
PANELS = names_known_to("fedshift.study.scenarios", "scenarios", "papers")


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="A table or curve, such as fedsr-table1; with --list also a paper's, as in fedsr.",
            autocompletion=TABLES,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            help="smoke (the default), short or paper: how large.",
            autocompletion=SCALES,
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Say how far all tables are, and what they need that is not here.")
    ] = False,
    panel: Annotated[
        list[str] | None,
        typer.Option(
            "--panel",
            help="Of its federations only this, or several: once for each.",
            autocompletion=PANELS,
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", help="Of its rows only this, as it is printed, or several: once for each."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Data: pacs=FILE, or another setting: digits.usps=FILE."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help=r"A setting of \[run], which decides no result: run.threads=2.")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="The folder; by default runs/reproduce.")] = None,
    dry_run: DryRunOption = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """Carry out a table, say what it would cost, or say how far all are."""
    from fedshift import api
    from fedshift.cli.console import open_console, print_tables
    from fedshift.cli.estimates import print_study
    from fedshift.errors import FedshiftError
    from fedshift.reporting.units import printable
    from fedshift.settings.written import parse_assignments
    from fedshift.study.table_plan import OUT, TablePlan

    paths, folder = paths_of(data or []), out or OUT
    if list_:
        ignored = {"--panel": panel, "--row": row, "--set": set_, "--dry-run": dry_run}
        if given := [name for name, value in ignored.items() if value]:
            raise FedshiftError(f"--list says how far whole tables are: leave out {', '.join(given)}.")
        found = api.reproductions(None if table is None else [table], scale, data=paths, out=folder)
        if json_:
            typer.echo(found.json())
        else:
            print_tables(open_console(least=found.WIDTH), found.tables(), found.notes() if table else [NAME_ONE])
        return
    if json_:
        raise FedshiftError("--json is of --list; a table's folder has TABLE.json.")
    if table is None:
        raise FedshiftError("No table is named; `fedshift reproduce --list` lists them.")
    run = parse_assignments(set_ or [])
    plan = TablePlan.of(table, scale or "smoke", panel or None, row or None, folder, paths, run)
    if dry_run:
        with interruptible("."):
            print_study(plan)
        return
    again = shlex.join(["fedshift", *sys.argv[1:]])
    with interruptible(f". The same command carries on: {again}"):
        done = api.reproduce(
            table, plan.scale.name, panels=panel or None, rows=row or None, data=paths, settings=run, out=folder
        )
    console = open_console(least=done.WIDTH)
    print_tables(console, done.tables(), done.notes())
    console.print(f"Written: {printable(str(plan.folder))}", highlight=False, markup=False, soft_wrap=True)
