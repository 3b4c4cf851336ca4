"""Errors a user can act on: one readable message that names the value and the fix."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

MOST_NAMES = 200  # that an error lists

# Control characters but for the line end, as text that a terminal shows and does not obey.
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(10), *range(11, 32), *range(127, 160))}


class FedshiftError(Exception):
    """Something the user gave or the machine lacks; the command line prints it and exits with 2."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message.encode(errors="backslashreplace").decode().translate(_ESCAPED))

    def _render_traceback_(self) -> list[str]:
        if sys.exc_info()[1] is not self:
            return traceback.format_exception(self)
        return [f"{type(self).__name__}: {self}", "(%tb shows where it was raised.)"]


class FedshiftWarning(UserWarning):
    """Something the user gave has no effect; the command line prints it as a note."""


class DivergedError(FedshiftError):
    """Training blew up; other runs of a grid go on."""

    def __init__(self, what: str = "", fix: str = "") -> None:
        super().__init__(f"{what} {fix}" if fix else what)
        self.what, self.fix = what, fix


class StoppedError(FedshiftError):
    """Who asked for a run gives it up; it is left as it is."""


class DiskError(FedshiftError):
    """A file could not be written: the disk is full, say."""


class LockedError(FedshiftError):
    """Another process is at work in a folder."""


class AuditError(FedshiftError):
    """What a client would have sent holds what must stay."""


class DamagedError(FedshiftError):
    """A file of a run is not what was written; `fedshift resume` makes it again."""


class UnknownNameError(FedshiftError):
    """A name that is not among the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Build the message.

        Args:
            kind: what was looked up, such as "method".
            name: the name that was given.
            known: every right name, in the order of a sequence, else in that of the alphabet.
            hint: what else would help, such as a command that lists them.
        """
        names = [*known] if isinstance(known, Sequence) else sorted(known)
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        tail = f" {hint}" if hint else ""
        more = f", and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        listed = f"{', '.join(names[:MOST_NAMES]) or 'none'}{more}"
        super().__init__(f"Unknown {kind} '{name}'.{guess} Known: {listed}.{tail}")


class MissingExtraError(FedshiftError):
    """A feature needs an extra that is not installed."""


class Problems:
    """Errors gathered over many items, and raised as one, so that a user can mend all of them at once."""

    SHOWN = 10

    def __init__(self, what: str) -> None:
        self.count, self._what, self._shown = 0, what, list[FedshiftError]()

    def add(self, problem: FedshiftError) -> None:
        """Count a problem, and keep it if it is among the first."""
        self.count += 1
        if self.count <= self.SHOWN:
            self._shown.append(problem)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Add whatever is raised within, and go on; without an extra there is no going on."""
        try:
            yield
        except MissingExtraError:
            raise
        except FedshiftError as error:
            self.add(error)

    def check(self) -> None:
        """Raise what was gathered.

        Raises:
            FedshiftError: the only problem, or a list of the first ones that says how many more there are.
        """
        if self.count == 1:
            raise self._shown[0]
        if self.count:
            lines = [f"{self.count} {self._what}:", *(f"- {problem}" for problem in self._shown)]
            more = self.count - len(self._shown)
            raise FedshiftError("\n".join([*lines, f"- and {more} more"] if more else lines))


@contextmanager
def needs(extra: str, feature: str) -> Iterator[None]:
    """Import within what an extra of fedshift brings.

    Args:
        extra: its name in pyproject.toml.
        feature: what needs it, as the subject of the error's sentence.

    Raises:
        MissingExtraError: one of the packages is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{feature} needs the extra '{extra}' ({error.name} is not installed): pip install 'fedshift[{extra}]'"
        ) from error
