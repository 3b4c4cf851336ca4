"""How commands end: by a signal, with a word on how to go on, or with the tables of their runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fedshift.study.api import Comparison
    from fedshift.study.tuned import Tuning

OF_SIGNALS = 128  # what shells add to a signal's number to make an exit code
TERMINATING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # HUP: no terminal


class _Terminated(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _terminate(number: int, frame: object) -> None:
    raise _Terminated(number)


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """After Ctrl-C or a signal that asks for the end say so, and how to go on."""
    listening = threading.current_thread() is threading.main_thread()  # no other may set a handler
    ignored = [number for number in TERMINATING if signal.getsignal(number) is signal.SIG_IGN]  # as nohup does
    heard = [number for number in TERMINATING if number not in ignored] if listening else []
    before = {number: signal.signal(number, _terminate) for number in heard}
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = interrupt.number if isinstance(interrupt, _Terminated) else signal.SIGINT
        typer.echo(f"\n{'Interrupted' if number == signal.SIGINT else 'Terminated'}{message}", err=True)
        raise typer.Exit(OF_SIGNALS + number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def print_report(comparison: Comparison, folder: Path, to: Path | None = None) -> None:
    """Write the HTML report of runs, and print their tables.

    Args:
        comparison: the runs.
        folder: theirs.
        to: the HTML file; None: report.html in the folder.

    Raises:
        FedshiftError: it cannot be written.
    """
    from fedshift.cli.console import open_console, print_tables

    console = open_console()
    try:
        written = comparison.report(to or folder / "report.html")  # first, as printing may end with the reader's pipe
    finally:
        print_tables(console, comparison.tables(), comparison.notes())
    console.print(f"Run folders: {folder}\nReport: {written}", highlight=False, markup=False, soft_wrap=True)


def print_tuning(tuning: Tuning) -> None:
    """Write the page of plots, and print what was found."""
    from fedshift.cli.console import open_console, print_tables

    page, console = tuning.report(), open_console()
    print_tables(console, tuning.tables(), tuning.notes())
    console.print(
        f"Tuned settings: {tuning.path}\nReport: {page}\n`fedshift compare --tuned {tuning.path}`, with the same "
        "experiment and options, compares the methods with them.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
