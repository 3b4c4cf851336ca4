"""Errors a user can act on: one readable message that names the value and the fix."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches


class FedshiftError(Exception):
    """Something the user gave or the machine lacks; the command line prints it and exits with 2."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message alone where the error is raised, and the traceback where ``%tb`` asks for it.

        IPython renders an uncaught error while it handles it, and ``%tb`` when nothing is handled any more.
        """
        if sys.exc_info()[1] is not self:
            return traceback.format_exception(self)
        return [f"{type(self).__name__}: {self}", "(%tb shows where it was raised.)"]


class DivergedError(FedshiftError):
    """Training blew up; other runs of a grid go on."""


class UnknownNameError(FedshiftError):
    """A name that is not among the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Build the message.

        Args:
            kind: what was looked up, such as "method".
            name: the name that was given.
            known: every right name.
            hint: what else would help, such as a command that lists them.
        """
        names = sorted(known)
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        tail = f" {hint}" if hint else ""
        super().__init__(f"Unknown {kind} '{name}'.{guess} Known: {', '.join(names) or 'none'}.{tail}")


def need(extra: str, feature: str, error: ImportError) -> FedshiftError:
    """The error for a feature whose optional dependency is not installed."""
    return FedshiftError(
        f"{feature} needs the '{extra}' extra ({error.name} is not installed): pip install 'fedshift[{extra}]'"
    )
