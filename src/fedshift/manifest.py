"""Whether files are intact: a manifest lists the size and digest of each file, and is replaced atomically.

Every file is durable before the manifest that names it. A process that is killed at any moment therefore leaves a
manifest whose files all exist; files that no manifest names are ignored.
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
    """A manifest's entry for a file, or for the first part of a growing file."""

    model_config = ConfigDict(frozen=True, strict=True)

    size: NonNegativeInt
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(size=len(data), digest=files.digest_of(data))


class Manifest(BaseModel):
    """The files of a folder."""

    model_config = ConfigDict(frozen=True, strict=True)

    run: str  # the fingerprint of the run that they belong to
    files: dict[str, FileDigest]  # the entries by path in the folder

    def write(self, path: Path) -> None:
        """Write it atomically; all files that it names must be durable."""
        files.write(path, digested_json(self.model_dump()))

    @classmethod
    def read(cls, path: Path, run: str) -> Self:
        """Read a manifest.

        Raises:
            DamagedError: it is missing, was changed, or belongs to another run.
        """
        found = read_json(path, cls)
        if found.run != run:
            raise DamagedError(f"'{path}' belongs to another run ({found.run} is not {run}).")
        return found


# Files --------------------------------------------------------------------------------------------


def write_file(path: Path, data: bytes | Iterable[bytes], *, soon: bool = False, private: bool = False) -> FileDigest:
    """Replace a file atomically and return its entry; arguments as in :func:`fedshift.files.write`."""
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
        entry: its entry in the manifest; None: it has none, so the file counts as damaged.
        growing: whether the file may be longer than its entry; the rest is not read.

    Raises:
        DamagedError: it is missing, or differs from its entry.
    """
    return b"".join(_intact_pieces(path, entry, growing))


def check_file(path: Path, entry: FileDigest | None) -> None:
    """Raise a DamagedError unless a file matches its entry; it is read piece by piece."""
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
        raise DamagedError(f"'{path}' is damaged or truncated: its digest differs from the manifest's.")


class GrowingFile:
    """A file to which lines are appended; a manifest has its length and digest so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size, self._total = 0, files.hashing()

    @property
    def entry(self) -> FileDigest:
        """The entry for the lines so far."""
        return FileDigest(size=self._size, digest=self._total.hexdigest())

    def append(self, line: str) -> None:
        """Append a line durably."""
        files.append(self._path, line)
        self._add(line.encode() + b"\n")

    def go_back(self, entry: FileDigest | None) -> bytes:
        """Remove what was appended after a manifest's entry, or everything if it is None; return the rest.

        Raises:
            DamagedError: the file does not start as the entry describes.
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
    """Read a file that :func:`digested_json` wrote.

    Raises:
        DamagedError: it is missing, was changed, or does not fit the model ``kind``.
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
    """A JSON file that a manifest names.

    Raises:
        DamagedError: it is missing, differs from its entry, or does not fit the model ``kind``.
    """
    try:
        table: dict[str, Any] = parsed(read_file(path, entry))
        checked(table, kind)
    except ValueError as error:
        raise DamagedError(f"'{path}' is not what was written ({error}).") from error
    return table


def read_lines(path: Path, data: bytes, kind: type[Kind]) -> list[Kind]:
    """The lines of a JSON-lines file; ``data`` is the part of it that counts.

    Raises:
        DamagedError: a line does not fit the model ``kind``.
    """
    with intact(path):
        return [checked(parsed(line), kind) for line in data.splitlines()]


@contextmanager
def intact(path: Path, fix: str = "") -> Iterator[None]:
    """Turn any error of reading a file within this context into a DamagedError with a fix."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise DamagedError(f"'{path}' is not what was written ({error}). {fix}".rstrip()) from error


def parsed(text: bytes) -> Any:
    """The value of JSON in UTF-8; a ValueError explains what is wrong."""
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8, at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error


def checked(value: Any, kind: type[Kind]) -> Kind:
    """A parsed value as a model; a ValueError explains what is wrong and where."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise ValueError(f"{where or 'it'}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error
