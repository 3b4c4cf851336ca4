"""Writing files so that a crash or a full disk loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

from fedshift.errors import FedshiftError


def write(path: Path, data: bytes | str) -> None:
    """Replace a file at once: after a crash it holds either the old content or the new.

    Raises:
        FedshiftError: it could not be written; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        try:
            with temporary.open("wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def append(path: Path, line: str) -> None:
    """Add a line and see it to the disk.

    Raises:
        FedshiftError: it could not be written whole.
    """
    try:
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it.

    Raises:
        FedshiftError: it could not be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> FedshiftError:
    return FedshiftError(
        f"'{path}' cannot be written: {error.strerror or error}. What was written before is kept: make room, or choose "
        "another folder; `fedshift resume` carries a run that has begun on from its last checkpoint."
    )
