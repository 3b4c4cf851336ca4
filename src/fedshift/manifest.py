"""Whether files are intact: a manifest has the size and the digest of each, and is itself replaced atomically.

Whatever a manifest names was on the disk before it. So a process that is killed at any moment leaves a manifest whose
files are all there, and perhaps files that no manifest names, which count for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from safetensors import SafetensorError

from fedshift import files
from fedshift.errors import DamagedError

PIECE = 1 << 20  # bytes that are read together

Kind = TypeVar("Kind", bound=BaseModel)


class FileDigest(BaseModel):
    """What a manifest has of a file; of one that only grows, of its beginning."""

    model_config = ConfigDict(frozen=True, strict=True)

    size: NonNegativeInt
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(size=len(data), digest=files.digest_of(data))


class Manifest(BaseModel):
    """The files of a folder.

    Attributes:
        run: the fingerprint of what they belong to.
        files: each by its path in the folder.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    run: str
    files: dict[str, FileDigest]

    def write(self, path: Path) -> None:
        """Write it atomically; all that it names must be on the disk.

        Raises:
            DiskError: it could not be written; the one before is kept.
        """
        files.write(path, digested_json(self.model_dump()))

    @classmethod
    def read(cls, path: Path, run: str) -> Self:
        """Read a manifest.

        Raises:
            DamagedError: it is missing, was changed, or belongs to something else than ``run``.
        """
        found = read_json(path, cls)
        if found.run != run:
            raise DamagedError(f"'{path}' belongs to another run ({found.run} is not {run}).")
        return found


# Files --------------------------------------------------------------------------------------------


def write_file(path: Path, data: bytes | Iterable[bytes], *, soon: bool = False, private: bool = False) -> FileDigest:
    """Replace a file atomically.

    Args:
        path: the file.
        data: its content, perhaps in pieces.
        soon: whether the system decides when it reaches the disk, until :func:`fedshift.files.sync`.
        private: whether nobody but its owner may read it.

    Returns:
        What a manifest says of it.

    Raises:
        DiskError: it could not be written; what was there before is kept.
    """
    size, total = 0, files.hashing()

    def pieces() -> Iterator[bytes]:
        nonlocal size
        for piece in [data] if isinstance(data, bytes) else data:
            size += len(piece)
            total.update(piece)
            yield piece

    files.write(path, pieces(), private=private, soon=soon)
    return FileDigest(size=size, digest=total.hexdigest())


def read_file(path: Path, entry: FileDigest | None, *, growing: bool = False) -> bytes:
    """The content of a file.

    Args:
        path: the file.
        entry: what the manifest has of it; None: nothing, so that it is damaged.
        growing: whether more may come after that, which is not read.

    Raises:
        DamagedError: it is missing, or not what the manifest says.
    """
    return b"".join(_intact_pieces(path, entry, growing))


def check_file(path: Path, entry: FileDigest | None) -> None:
    """Raise a DamagedError unless a file is what a manifest says; it is read piece by piece."""
    for _ in _intact_pieces(path, entry, growing=False):
        pass


def _intact_pieces(path: Path, entry: FileDigest | None, growing: bool) -> Iterator[bytes]:
    total = files.hashing()
    try:
        with files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            left = entry.size if entry and (growing or size == entry.size) else 0
            while left and (piece := file.read(min(left, PIECE))):
                left -= len(piece)
                total.update(piece)
                yield piece
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
        raise DamagedError(f"'{path}' {reason}.") from error
    if entry is None or total.hexdigest() != entry.digest:
        raise DamagedError(f"'{path}' is damaged or truncated: its digest is not the one in the manifest.")


class GrowingFile:
    """A file to which lines are added; a manifest has its length and its digest so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size, self._total = 0, files.hashing()

    @property
    def entry(self) -> FileDigest:
        """What a manifest says of the lines so far."""
        return FileDigest(size=self._size, digest=self._total.hexdigest())

    def append(self, line: str) -> None:
        """Add a line and see it to the disk.

        Raises:
            DiskError: it could not be written whole.
        """
        files.append(self._path, line)
        self._add(line.encode() + b"\n")

    def go_back(self, entry: FileDigest | None) -> bytes:
        """Cut off what was added after a manifest; None: all of it.

        Returns:
            What is left.

        Raises:
            DamagedError: the file has not what the manifest says.
        """
        kept = read_file(self._path, entry, growing=True) if entry else b""
        if not self._path.exists() or self._path.stat().st_size != len(kept):
            files.write(self._path, kept)
        self._size, self._total = 0, files.hashing()
        self._add(kept)
        return kept

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        self._total.update(data)


# JSON ---------------------------------------------------------------------------------------------


def digested_json(table: Mapping[str, Any]) -> str:
    return json.dumps({**table, "digest": _digest(table)}) + "\n"


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """Read what :func:`digested_json` wrote.

    Raises:
        DamagedError: it is missing, was changed, or is of another kind.
    """
    try:
        return checked(_undigested(parsed(files.read(path))), kind)
    except FileNotFoundError as error:
        raise DamagedError(f"'{path}' is missing.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"'{path}' is not what was written ({error}).") from error


def _undigested(table: Any) -> dict[str, Any]:
    if not isinstance(table, dict) or table.pop("digest", "") != _digest(table):
        raise ValueError("its digest is another")
    return table


def _digest(table: Mapping[str, Any]) -> str:
    read_back = json.loads(json.dumps(table))  # its keys are texts: "10" is before "2"
    return files.digest_of(json.dumps(read_back, sort_keys=True).encode())


def read_table(path: Path, entry: FileDigest | None, kind: type[BaseModel]) -> dict[str, Any]:
    """A JSON file that a manifest names, as it was written.

    Raises:
        DamagedError: it is missing, not what the manifest says, or not of the kind.
    """
    try:
        table: dict[str, Any] = parsed(read_file(path, entry))
        checked(table, kind)
    except ValueError as error:
        raise DamagedError(f"'{path}' is not what was written ({error}).") from error
    return table


def read_lines(path: Path, data: bytes, kind: type[Kind]) -> list[Kind]:
    """The lines of a file of JSON lines, of which ``data`` is the part that counts.

    Raises:
        DamagedError: a line is not of the kind.
    """
    with intact(path):
        return [checked(parsed(line), kind) for line in data.splitlines()]


@contextmanager
def intact(path: Path, fix: str = "") -> Iterator[None]:
    """Turn whatever is wrong with a file that is read within into one error, which may say what helps.

    Raises:
        DamagedError: the file is not what was written.
    """
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise DamagedError(f"'{path}' is not what was written ({error}). {fix}".rstrip()) from error


def parsed(text: bytes) -> Any:
    """The value of JSON in UTF-8.

    Raises:
        ValueError: it is none; the message says why.
    """
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8, at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error


def checked(value: Any, kind: type[Kind]) -> Kind:
    """A parsed value as a model.

    Raises:
        ValueError: it does not fit; the message says where and why.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise ValueError(f"{where or 'it'}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error
