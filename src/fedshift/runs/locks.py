"""Which process uses a folder, also across machines that share it.

Two mechanisms exclude a second process. A system lock (flock) ends with its process; NFS passes it to the server,
from version 4 on in the protocol, before by lockd. And a claim, a file that names the process and counts its beats,
for file systems whose locks end at the machine (mounts with nolock or local_lock, some of Lustre's).

*Choices.* A claim is created by link(2), which fails if there is one, and renewed and taken over by rename(2): both are
atomic on NFS of every version. Without links, it is created by an exclusive open. A stale claim is recognised without a
clock: on its machine by the system's lock, which is free; on another because its number of beats stands still for
:data:`SILENT` seconds. A process that was suspended for that long finds its claim gone, and ends before it writes a
checkpoint.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from secrets import token_hex

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from fedshift import files
from fedshift.errors import DiskError, LockedError

LOCK, CLAIM = ".lock", ".claim"
LOOKS = 0.2  # seconds in which an observer of a lock releases it
TURN = 60.0  # seconds in which who reads and writes something short has done it
BEAT = 5.0  # seconds between two beats of a claim
LARGEST = 4096  # bytes of a claim
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # errors for missing support
SILENT = 60.0  # seconds without a beat after which a process of another machine is gone


@dataclass(frozen=True)
class Claim:
    """A process that is running in a folder."""

    host: str  # its machine's name
    machine: str  # identifies the machine since its start, all of whose processes see the same system locks
    process: int  # its number
    token: str  # distinguishes this claim from every other
    beats: int = 0  # how often it was renewed

    @classmethod
    def of(cls, folder: Path) -> Claim | None:
        """The claim on a folder, if there is one; a damaged claim counts as none."""
        try:
            return _CLAIMS.validate_json(files.read(folder / CLAIM, LARGEST))
        except (OSError, ValidationError):
            return None

    def __str__(self) -> str:
        return f"process {self.process} of {self.host}"


_CLAIMS = TypeAdapter(Claim)


@cache
def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:  # a system without /proc
        return platform.node()


class _Claims:
    """The claims of this process on folders; a thread renews them while there are any."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._claims: dict[Path, Claim] = {}
        self._idle = threading.Event()
        self._idle.set()

    def add(self, folder: Path, claim: Claim) -> None:
        with self._mutex:
            self._claims[folder] = claim
            if self._idle.is_set():
                self._idle = threading.Event()
                threading.Thread(target=self._renew_all, args=(self._idle,), name="claims", daemon=True).start()

    def remove(self, folder: Path) -> None:
        with self._mutex:
            claim = self._claims.pop(folder)
            if not self._claims:
                self._idle.set()
            if _is_on(folder, claim):
                (folder / CLAIM).unlink(missing_ok=True)

    def stands(self, folder: Path) -> bool:
        claim = self._claims.get(folder)
        return claim is None or _is_on(folder, claim)

    def _renew_all(self, idle: threading.Event) -> None:
        while not idle.wait(BEAT):
            with self._mutex:
                for folder, claim in self._claims.items():
                    self._claims[folder] = _renewed(folder, claim)


def _is_on(folder: Path, claim: Claim) -> bool:
    there = Claim.of(folder)
    return there is not None and there.token == claim.token


def _renewed(folder: Path, claim: Claim) -> Claim:
    """Count a beat, unless the folder was taken over."""
    later = replace(claim, beats=claim.beats + 1)
    if _is_on(folder, claim):
        try:
            files.write(folder / CLAIM, json.dumps(asdict(later)), soon=True)
        except DiskError:  # full, for example: the run ends when it writes, and until then the system's lock is there
            return claim
    return later


_claims = _Claims()


def _claim(folder: Path) -> Claim:
    before = Claim.of(folder)
    if before and before.machine != _machine():
        _wait_for_silence(folder, before)
    mine = Claim(platform.node(), _machine(), os.getpid(), token_hex(8))
    draft, aside = (folder / f"{CLAIM}.{mine.token}.{name}" for name in ("new", "old"))
    if (folder / CLAIM).exists() and Claim.of(folder) == before:
        (folder / CLAIM).replace(aside)
        aside.unlink()
    draft.write_text(json.dumps(asdict(mine)), encoding="utf-8")
    try:
        _put(draft, folder / CLAIM)
    except FileExistsError:
        raise LockedError(_is_active(folder)) from None
    finally:
        draft.unlink()
    return mine


def _put(draft: Path, claim: Path) -> None:
    """Turn a draft into a claim; raises a FileExistsError if there is a claim."""
    try:
        os.link(draft, claim)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with claim.open("xb") as file:
            file.write(draft.read_bytes())


def _wait_for_silence(folder: Path, before: Claim) -> None:
    end = time.monotonic() + SILENT
    while (now := Claim.of(folder)) and time.monotonic() < end:
        if now != before:
            raise LockedError(_is_active(folder))
        time.sleep(LOOKS)


def _is_active(folder: Path) -> str:
    claim = Claim.of(folder)
    return f"Another process is running '{folder}'{f' ({claim})' if claim else ''}; wait for it."


@contextmanager
def locked(path: Path, wait: float = LOOKS) -> Iterator[None]:
    """Lock a folder against other processes; it is created if need be.

    Waits up to ``wait`` seconds for another process. Raises a LockedError if a process is still running there, and a
    DiskError if the folder cannot be written.
    """
    files.make_folder(path)
    lock = FileLock(path / LOCK, timeout=wait)
    try:
        lock.acquire()
        _claims.add(path, _claim(path))
    except Timeout:
        raise LockedError(_is_active(path)) from None
    except LockedError:
        lock.release()
        raise
    except OSError as error:
        lock.release()
        raise DiskError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    try:
        yield
    finally:
        _claims.remove(path)
        lock.release()


def check_locked(path: Path) -> None:
    """Raise a LockedError if another process has taken over a folder, as this process stood still for too long."""
    if not _claims.stands(path):
        raise LockedError(
            f"'{path}' was taken over by another process, as this one did not renew its claim for {SILENT:g} seconds."
        )


def is_locked(path: Path) -> bool:
    """Whether a process is running in a folder, or this cannot be determined."""
    claim = Claim.of(path)
    if claim and claim.machine != _machine():
        return True
    if not (path / LOCK).exists():
        return False
    try:
        with FileLock(path / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True
