"""Where commands print, and how they end: with the tables of their runs, or by a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from fedshift.errors import FedshiftError
from fedshift.written import printable

if TYPE_CHECKING:
    from fedshift.reporting.table import Table
    from fedshift.study.api import Comparison

WIDTH_OF_FILES = 160
OF_SIGNALS = 128  # what shells add to a signal's number to make an exit code
TERMINATING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # HUP: no terminal


def open_console(least: int = 0) -> Console:
    """Standard output, at least ``least`` columns wide if it is not a terminal and COLUMNS is not set."""
    console = Console()
    known = console.is_terminal or os.environ.get("COLUMNS")
    return Console(width=max(least, console.width if known else WIDTH_OF_FILES))


def print_tables(tables: Sequence[Table], notes: Sequence[str], least: int = 0) -> None:
    console = open_console(least)
    for table in tables:
        console.print(table.rich())
    for note in notes:
        typer.echo(f"Note: {printable(note)}")


def print_report(
    comparison: Comparison, folder: Path, to: Path | None = None, files: Path | None = None, images: bool = False
) -> None:
    """Write the HTML report of runs, and print their tables.

    Args:
        comparison: the runs.
        folder: their folder.
        to: the HTML file; None: report.html in the folder.
        files: a folder for its tables and figures as files, if any.
        images: whether to read the data for sample images of each domain.
    """
    try:
        written = comparison.report(to or folder / "report.html", images)  # first: a reader's pipe may end the printing
        exported = comparison.write(files) if files else []
    finally:
        print_tables(comparison.tables(), comparison.notes())
    typer.echo(f"Run folders: {folder}\nReport: {written}")
    if exported:
        typer.echo(f"Tables and figures: {len(exported)} files in {files}")
    if comparison.failed:
        raise FedshiftError(comparison.failure)


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """After Ctrl-C or a termination signal print how to resume."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    listening = threading.current_thread() is threading.main_thread()  # no other may set a handler
    heard = [number for number in TERMINATING if listening and signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = next(iter(interrupt.args), signal.SIGINT)
        typer.echo(f"\n{'Terminated' if interrupt.args else 'Interrupted'}{message}", err=True)
        raise typer.Exit(OF_SIGNALS + number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
