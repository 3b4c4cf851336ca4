"""Errors a user can act on: one readable message that names the value and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedshiftError(Exception):
    """Something the user gave or the machine lacks; the command line prints it and exits with 2."""


class FedshiftWarning(UserWarning):
    """Something the user gave has no effect; the command line prints it as a note."""


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
