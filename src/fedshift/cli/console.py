"""Where the commands print."""

from __future__ import annotations

import os

from rich.console import Console

WIDTH_OF_FILES = 160


def open_console(least: int = 0) -> Console:
    """Standard output; wide where it is no terminal and COLUMNS is not set, so that no table in a file is squeezed.

    Args:
        least: columns that what is printed needs; a narrower terminal breaks its lines, and nothing is lost.
    """
    console = Console()
    known = console.is_terminal or os.environ.get("COLUMNS")
    return Console(width=max(least, console.width if known else WIDTH_OF_FILES))
