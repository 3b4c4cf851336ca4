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
    """Replace a file at once and see it to the disk: after a crash it holds either the old content or the new.

    Args:
        path: the file.
        data: its content; pieces are written as they come, so that they need not be in memory together.
        private: nobody but its owner may read it, at no time.
        soon: the system decides when it reaches the disk, or :func:`sync`: after a power cut it may hold neither.

    Raises:
        DiskError: it could not be written; what was there before is untouched.
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
    """See files of a folder, and their names, to the disk.

    Raises:
        DiskError: one could not be written.
    """
    # Together, since a file system that is asked for several at once writes its journal once for all of them.
    with ThreadPoolExecutor(max_workers=8) as pool:
        for _ in pool.map(lambda name: _sync_file(folder / name), names):
            pass
    with _readable(folder):
        _sync_folder(folder)


def rename(path: Path, to: Path) -> None:
    """Give a file another name, at once and on the disk, in the place of what had it.

    Raises:
        DiskError: it could not be done; both are as they were.
    """
    with _readable(path):
        path.replace(to)
        _sync_folder(to.parent)


def remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed on this machine left of a file that they were writing."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        process = leftover.suffixes[-2].removeprefix(".")
        if process.isdecimal() and not _alive(int(process)):
            leftover.unlink(missing_ok=True)


def opened(path: Path) -> BufferedReader:
    """A file, opened for reading.

    Raises:
        OSError: it cannot be read, or is a pipe, socket or device, which may never end or never begin.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder's own error is clear
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
    return path.open("rb")


def read(path: Path, most: int | None = None) -> bytes:
    """What a file holds.

    Args:
        path: the file.
        most: how many bytes it may have; None: any number.

    Raises:
        OSError: it cannot be read, is a pipe, socket or device, or has more bytes.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most:,}", str(path))
        return file.read()


def walk(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and all below it, each once, with the names of the files in it.

    Links to folders are followed after all else, so that a folder comes by its own path if it has one below ``path``;
    links to ``path`` and to the folders above it are not followed.
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
    """A digest of what a file holds; empty if it cannot be read."""
    try:
        with opened(path) as file:
            return file_digest(file, hashing).hexdigest()
    except OSError:
        return ""


def digest_of(data: bytes) -> str:
    return hashing(data).hexdigest()


def hashing(data: bytes = b"") -> blake2b:
    """What makes such a digest, of data that come in pieces."""
    return blake2b(data, digest_size=16)


def remove(path: Path) -> None:
    """Remove a file, which may be gone already.

    Raises:
        DiskError: it could not be removed.
    """
    with _readable(path):
        path.unlink(missing_ok=True)


def append(path: Path, line: str, *, soon: bool = False) -> None:
    """Add a line and see it to the disk; after one that a crash cut short it begins on a line of its own.

    Args:
        path: the file.
        line: without its end.
        soon: the system decides when it reaches the disk.

    Raises:
        DiskError: it could not be written whole.
    """
    with _readable(path), path.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut_off = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut_off + line.encode() + b"\n")
        if not soon:
            _sync(file)


def cache_folder(name: str) -> Path | None:
    """Where something is kept that could be made again: <name>/ in $FEDSHIFT_CACHE, by default in ~/.cache/fedshift.

    None where the user has no home folder and sets no other.
    """
    root = os.environ.get("FEDSHIFT_CACHE")
    try:
        return (Path(root).expanduser() if root else Path.home() / ".cache" / "fedshift") / name
    except RuntimeError:  # what pathlib raises where there is no home
        return None


def cache(name: str, file: str, data: bytes | str) -> None:
    """Keep something that could be made again; where that is impossible it is logged, once for each reason."""
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
        "Nothing is kept in the cache of %s (%s), so every run makes it anew. To change that, set the environment "
        "variable FEDSHIFT_CACHE to a folder that can be written.",
        name,
        reason,
    )


def check_folder(path: Path) -> None:
    """Raise an error if files could not be written into a folder, or it could not be made; nothing is left there.

    Raises:
        DiskError: they could not.
    """
    _check_no_file(path)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    try:
        TemporaryFile(dir=there).close()  # permissions alone do not tell: root has all, and /proc takes no file
    except OSError as error:
        raise DiskError(f"'{path}' cannot be written, as '{there}' is not writable: give another folder.") from error


def _check_no_file(path: Path) -> None:
    if file := next((each for each in (path, *path.parents) if each.is_file()), None):
        cause = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(file))
        raise DiskError(f"'{path}' cannot be written, as '{file}' is a file: give another folder.") from cause


def make_folder(path: Path) -> None:
    """Make a folder and those above it.

    Raises:
        DiskError: it could not be made.
    """
    _check_no_file(path)
    with _readable(path):
        path.mkdir(parents=True, exist_ok=True)


def _alive(process: int) -> bool:
    """Whether a process of this number exists; True where that cannot be asked."""
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
    """See to the disk which files a folder holds."""
    if os.name == "nt":  # Windows opens no folders, and keeps their order itself
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever the system objects to becomes one message that names the file and the fix."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"'{path}' cannot be written: {error.strerror or error}. What was written before is kept: make room, and "
            "the same command carries on (`fedshift resume`, if it was `fedshift run`), or choose another folder."
        ) from error
