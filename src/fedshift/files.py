"""Writing files so that a crash or a full disk loses nothing."""

from __future__ import annotations

import errno
import glob
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b, file_digest
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from fedshift.errors import DiskError, FedshiftError


def write(path: Path, data: bytes | str | Iterable[bytes], *, private: bool = False, soon: bool = False) -> None:
    """Replace a file atomically and durably: after a crash it has either the old content or the new.

    Args:
        path: the file.
        data: its content; pieces are written one by one and need not fit into memory together.
        private: only the file's owner may read it, at all times.
        soon: the system, or :func:`sync`, makes it durable later; after a power cut it may have neither content.

    Raises:
        DiskError: the file could not be written; its previous content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    whole = data.encode() if isinstance(data, str) else data
    with _readable(path):
        try:
            if private:
                temporary.touch(0o600)
            with temporary.open("wb") as file:
                file.writelines([whole] if isinstance(whole, bytes) else whole)
                if not soon:
                    _sync(file)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if not soon:
            _sync_folder(path.parent)


def sync(folder: Path, names: Iterable[str]) -> None:
    """Make files of a folder, and their names, durable."""
    # Together, so that the file system writes its journal once for all of them.
    with ThreadPoolExecutor(max_workers=8) as pool:
        for _ in pool.map(lambda name: _sync_file(folder / name), names):
            pass
    with _readable(folder):
        _sync_folder(folder)


def rename(path: Path, to: Path) -> None:
    """Rename a file atomically and durably, replacing ``to``."""
    with _readable(path):
        path.replace(to)
        _sync_folder(to.parent)


def remove_abandoned(path: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote a file."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        process = leftover.suffixes[-2].removeprefix(".")
        if process.isdecimal() and not _alive(int(process)):
            leftover.unlink(missing_ok=True)


def opened(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: it cannot be read, or is a pipe, socket or device, which may block forever.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder raises a clear error
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
    return path.open("rb")


def read(path: Path, most: int | None = None) -> bytes:
    """The content of a file of at most ``most`` bytes.

    Raises:
        OSError: it cannot be read, is a pipe, socket or device, or is larger.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most:,}", str(path))
        return file.read()


def walk(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and all folders below it, each once, with the names of their files.

    Links to folders are followed last, so that a folder has its direct path if it has one below ``path``; links to
    ``path`` or a folder above it are not followed.
    """
    seen: set[tuple[int, int]] = set()
    here, starts = path.resolve(), [path]
    while starts:
        links: list[Path] = []
        for start in starts:
            for above, folders, names in os.walk(start):
                folder, about = Path(above), Path(above).stat()
                if (about.st_dev, about.st_ino) in seen:
                    folders.clear()
                    continue
                seen.add((about.st_dev, about.st_ino))
                links += [folder / name for name in sorted(folders) if (folder / name).is_symlink()]
                yield folder, names
        starts = [link for link in links if not here.is_relative_to(link.resolve())]


def digest(path: Path) -> str:
    """A digest of a file's content; empty if it cannot be read."""
    try:
        with opened(path) as file:
            return file_digest(file, hashing).hexdigest()
    except OSError:
        return ""


def digest_of(data: bytes) -> str:
    return hashing(data).hexdigest()


def hashing(data: bytes = b"") -> blake2b:
    """A hash object for the digest of data in pieces."""
    return blake2b(data, digest_size=16)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    with _readable(path):
        path.unlink(missing_ok=True)


def append(path: Path, line: str, *, soon: bool = False) -> None:
    """Append a line (without its end) durably; a line that a crash cut short is terminated first.

    Raises:
        DiskError: the line could not be written whole.
    """
    with _readable(path), path.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut_off = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut_off + line.encode() + b"\n")
        if not soon:
            _sync(file)


def cache_folder(name: str) -> Path | None:
    """The folder <name>/ in $FEDSHIFT_CACHE, by default in ~/.cache/fedshift; None if the user has no home folder."""
    root = os.environ.get("FEDSHIFT_CACHE")
    try:
        return (Path(root).expanduser() if root else Path.home() / ".cache" / "fedshift") / name
    except RuntimeError:  # what pathlib raises where there is no home
        return None


def cache(name: str, file: str, data: bytes | str) -> None:
    """Cache reproducible data; a failure is logged, once for each reason."""
    folder = cache_folder(name)
    if folder is None:
        _log_uncached(name, "there is no home folder")
        return
    try:
        make_folder(folder)
        write(folder / file, data)
    except FedshiftError as error:
        _log_uncached(name, str(error.__cause__))


@lru_cache
def _log_uncached(name: str, reason: str) -> None:
    logging.getLogger(__name__).warning(
        "The cache of %s cannot be written (%s), so every run computes its content. To fix that, set the environment "
        "variable FEDSHIFT_CACHE to a folder that can be written.",
        name,
        reason,
    )


def check_folder(path: Path) -> None:
    """Raise an error if the folder cannot be created or written; nothing is left there."""
    _check_no_file(path)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    try:
        TemporaryFile(dir=there).close()  # permissions are not enough: root has all, and /proc accepts no file
    except OSError as error:
        raise DiskError(f"'{path}' cannot be written, as '{there}' is not writable: give another folder.") from error


def _check_no_file(path: Path) -> None:
    if file := next((each for each in (path, *path.parents) if each.is_file()), None):
        cause = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(file))
        raise DiskError(f"'{path}' cannot be written, as '{file}' is a file: give another folder.") from cause


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    _check_no_file(path)
    with _readable(path):
        path.mkdir(parents=True, exist_ok=True)


def _alive(process: int) -> bool:
    """Whether a process exists; True where the system cannot be queried."""
    if os.name == "nt":  # where signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _sync_file(path: Path) -> None:
    with _readable(path), path.open("rb+") as file:
        _sync(file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # Windows opens no folders, and keeps their order itself
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the system's error into one message that names the file and the fix."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"'{path}' cannot be written: {error.strerror or error}. What was written before is kept: make room, and "
            "the same command continues (`fedshift resume` after `fedshift run`), or choose another folder."
        ) from error
