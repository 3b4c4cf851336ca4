"""Files of named tensors that notice damage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from fedshift import files
from fedshift.core.messages import pack, pack_in_pieces
from fedshift.errors import DamagedError
from fedshift.files import digest_of

_BLANK = b"0" * 32  # stands where the checksum will, while that is computed
_PIECE = 1 << 20  # bytes read together
LONGEST_HEADER = 100_000_000  # bytes, the most that safetensors reads
_WRONG = "its checksum is wrong"


class About(BaseModel):
    """What a sealed file says beside its tensors; each kind of file says more.

    Attributes:
        experiment: the fingerprint of the experiment that it belongs to.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    experiment: str


A = TypeVar("A", bound=About)
M = TypeVar("M", bound=BaseModel)


def sealed(tensors: Mapping[str, Tensor], about: About) -> bytes:
    """A safetensors file with a checksum over all of it.

    Args:
        tensors: named tensors of any shape, type, layout and device.
        about: what it says beside them.
    """
    data = pack(tensors, _said(about))
    return data.replace(_BLANK, digest_of(data).encode(), 1)


def write_sealed(path: Path, likes: Mapping[str, Tensor], tensors: Iterable[Tensor], about: About) -> None:
    """Write a sealed file of tensors that need not be in memory together, atomically.

    Args:
        path: the file.
        likes: for each name, in order, a tensor of the type and shape of the one that will come.
        tensors: the tensors, in that order.
        about: what it says beside them.

    Raises:
        FedshiftError: the disk is full, say; what was there before is kept.
    """
    total, blank = files.hashing(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal blank
        for number, piece in enumerate(pack_in_pieces(likes, tensors, _said(about))):
            if not number:
                blank = piece.index(_BLANK)
            total.update(piece)
            yield piece

    files.write(path, pieces(), patch=lambda: (blank, total.hexdigest().encode()))


def _said(about: About) -> dict[str, str]:
    """What stands first in a file's header; one entry only, as safetensors writes several in no fixed order."""
    return {"run": json.dumps({"checksum": _BLANK.decode(), **about.model_dump()})}


def unsealed(path: Path, experiment: str, what: str, kind: type[A]) -> tuple[dict[str, Tensor], A]:
    """The tensors of a sealed file, on the CPU, and what it says about them.

    Args:
        path: the file.
        experiment: the fingerprint it must carry.
        what: what the file is, for messages.
        kind: what it must say.

    Raises:
        DamagedError: it is missing, damaged or truncated, or of another experiment.
    """
    try:
        data = files.read(path)
        header = _header(data[8 : 8 + int.from_bytes(data[:8], "little")])
        _check(data, header.pop("checksum", ""))
        about, tensors = checked(header, kind), load(data)
    except (OSError, ValueError, SafetensorError) as error:
        raise _damaged(path, what, error) from error
    if about.experiment != experiment:
        raise DamagedError(
            f"The {what} '{path}' belongs to another experiment than its run ({about.experiment} is not {experiment})."
        )
    return tensors, about


def check_sealed(path: Path, what: str) -> None:
    """Raise a DamagedError unless a sealed file is whole; it is read piece by piece."""
    try:
        with files.opened(path) as file:
            start = file.read(8)
            start += file.read(min(int.from_bytes(start, "little"), LONGEST_HEADER))
            there = str(_header(start[8:]).get("checksum")).encode()
            total = files.hashing(start.replace(there, _BLANK, 1))
            while piece := file.read(_PIECE):
                total.update(piece)
    except (OSError, ValueError) as error:
        raise _damaged(path, what, error) from error
    if total.hexdigest().encode() != there:
        raise _damaged(path, what, ValueError(_WRONG))


def tensors(path: Path, what: str) -> dict[str, Tensor]:
    """The tensors of a sealed file as they are mapped from it, so that only those used are in memory.

    Raises:
        DamagedError: they cannot be read.
    """
    try:
        files.opened(path).close()  # safetensors would wait for a pipe
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, what, error) from error


def said(path: Path, what: str, kind: type[A]) -> A:
    """What a sealed file says about its tensors; neither they nor the checksum are looked at.

    Raises:
        DamagedError: that cannot be read.
    """
    try:
        with files.opened(path) as file:
            length = int.from_bytes(file.read(8), "little")
            header = _header(file.read(min(length, LONGEST_HEADER)))
        return checked(header, kind)
    except (OSError, ValueError) as error:
        raise _damaged(path, what, error) from error


def _header(text: bytes) -> dict[str, Any]:
    """What a file's header says beside names and shapes.

    Raises:
        ValueError: it is no such header.
    """
    try:
        header = json.loads(json.loads(text)["__metadata__"]["run"])
        return dict(header.items())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError("its header is none of fedshift's") from error


def _check(data: bytes, checksum: object) -> None:
    """Raise a ValueError unless the checksum is that of the file."""
    there = str(checksum).encode()
    if len(there) != len(_BLANK) or digest_of(data.replace(there, _BLANK, 1)).encode() != there:
        raise ValueError(_WRONG)


def checked(value: Any, kind: type[M]) -> M:
    """A parsed value as what a file should hold.

    Raises:
        ValueError: it is none; the message says where and why.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise ValueError(f"{where or 'it'}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error


def _damaged(path: Path, what: str, error: Exception) -> DamagedError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return DamagedError(f"The {what} '{path}' is damaged or truncated ({reason}).")
