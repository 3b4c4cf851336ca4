"""Errors that a user can act on: one readable message that names the value and the fix."""

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
    """Invalid input, or something that the machine lacks; the command line prints the message and exits with 2."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message.encode(errors="backslashreplace").decode().translate(_ESCAPED))

    def _render_traceback_(self) -> list[str]:
        if sys.exc_info()[1] is not self:
            return traceback.format_exception(self)
        return [f"{type(self).__name__}: {self}", "(%tb shows where it was raised.)"]


class FedshiftWarning(UserWarning):
    """An input that has no effect; the command line prints the message as a note."""


class DivergedError(FedshiftError):
    """Training diverged; other runs of a grid continue."""

    def __init__(self, what: str = "", fix: str = "") -> None:
        super().__init__(f"{what} {fix}" if fix else what)
        self.what, self.fix = what, fix


class StoppedError(FedshiftError):
    """The caller gave up a run; its folder stays as it is."""


class DiskError(FedshiftError):
    """A file could not be written, for example because the disk is full."""


class LockedError(FedshiftError):
    """Another process uses a folder."""


class AuditError(FedshiftError):
    """A client's message contains data that must stay at the client."""


class DamagedError(FedshiftError):
    """A file of a run differs from what was written; `fedshift resume` makes it again."""


class UnknownNameError(FedshiftError):
    """A name that is not among the known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Build the message.

        Args:
            kind: the noun for the name, such as "method".
            name: the unknown name.
            known: all valid names.
            hint: a sentence with further help, such as a command that lists them.
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
    """Errors collected over many items and raised as one, so that a user can fix all of them at once."""

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
        """Collect an error that the block raises; a missing extra is raised at once."""
        try:
            yield
        except MissingExtraError:
            raise
        except FedshiftError as error:
            self.add(error)

    def check(self) -> None:
        """Raise the only problem, or a list of the first ones with the number of the rest."""
        if self.count == 1:
            raise self._shown[0]
        if self.count:
            lines = [f"{self.count} {self._what}:", *(f"- {problem}" for problem in self._shown)]
            more = self.count - len(self._shown)
            raise FedshiftError("\n".join([*lines, f"- and {more} more"] if more else lines))


@contextmanager
def needs(extra: str, feature: str) -> Iterator[None]:
    """Import optional packages within this context.

    Args:
        extra: the extra's name in pyproject.toml.
        feature: the feature that needs it, as the subject of the error's sentence.

    Raises:
        MissingExtraError: one of the packages is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{feature} needs the extra '{extra}' ({error.name} is not installed): pip install 'fedshift[{extra}]'"
        ) from error
