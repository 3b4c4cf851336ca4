"""Where the commands print."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from fedshift.reporting.units import printable

if TYPE_CHECKING:
    from fedshift.reporting.table import Table

WIDTH_OF_FILES = 160


def open_console(least: int = 0) -> Console:
    """Standard output; wide where it is no terminal and COLUMNS is not set, so that no table in a file is squeezed.

    Args:
        least: columns that what is printed needs; a narrower terminal breaks its lines, and nothing is lost.
    """
    console = Console()
    known = console.is_terminal or os.environ.get("COLUMNS")
    return Console(width=max(least, console.width if known else WIDTH_OF_FILES))


def print_tables(console: Console, tables: Sequence[Table], notes: Sequence[str]) -> None:
    """Print tables and, below them, notes."""
    for table in tables:
        console.print(table.rich())
    for note in notes:
        console.print(f"Note: {printable(note)}", highlight=False, markup=False, soft_wrap=True)


def say(line: str) -> None:
    """Print a line as it is."""
    open_console().print(line, highlight=False, markup=False, soft_wrap=True)
