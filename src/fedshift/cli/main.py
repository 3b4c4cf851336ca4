"""The entry point of the command ``fedshift``."""

from __future__ import annotations

import sys
from contextlib import suppress
from io import TextIOWrapper

import typer

from fedshift import memory
from fedshift.cli.app import app
from fedshift.errors import FedshiftError


def main() -> None:
    """Run the command; a user's error is one message and exit code 2, a system error exit code 1."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    if isinstance(sys.stdout, TextIOWrapper):  # it is missing where it was closed
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(arguments)
    except FedshiftError as error:
        if debug:
            raise
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2)
    except Exception as error:
        shortage = memory.is_shortage(error)
        if debug or not (shortage or isinstance(error, OSError)):
            raise
        if not isinstance(error, BrokenPipeError):
            typer.secho(f"Error: {memory.in_words(error) if shortage else error}", fg="red", err=True)
        if not shortage and sys.stdout is not None:
            with suppress(OSError):
                sys.stdout.close()  # otherwise Python writes the rest of the output again at exit
        sys.exit(1)
