"""One process at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedshift import files
from fedshift.errors import DiskError, LockedError

LOCK = ".lock"
LOOKS = 0.2  # seconds in which who only looks at a lock has let go of it


@contextmanager
def locked(path: Path, wait: float = LOOKS) -> Iterator[None]:
    """Keep other processes from what is done in a folder; it is made if there is none.

    Args:
        path: the folder.
        wait: for so many seconds, if one is at work there.

    Raises:
        LockedError: one is at work there now.
        DiskError: the folder cannot be written.
    """
    files.make_folder(path)
    lock = FileLock(path / LOCK, timeout=wait)
    try:
        lock.acquire()
    except Timeout:
        raise LockedError(f"Another process is running '{path}'; wait for it.") from None
    except OSError as error:
        raise DiskError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()
