"""Where the commands print."""

from __future__ import annotations

import os

from rich.console import Console

WIDTH_OF_FILES = 160


def open_console() -> Console:
    """Standard output; wide where it is no terminal and COLUMNS is not set, so that no table in a file is squeezed."""
    console = Console()
    return console if console.is_terminal or os.environ.get("COLUMNS") else Console(width=WIDTH_OF_FILES)
