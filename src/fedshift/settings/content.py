"""Digests of what files hold, so that a changed input is never taken for the old one."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from fedshift.errors import FedshiftError


def digest(path: str | Path) -> str:
    """A digest of a file, or of a folder's files and their names below it; empty if there is no such path.

    Raises:
        FedshiftError: there is, but it cannot be read.
    """
    if not str(path):
        return ""
    try:
        root = Path(path).expanduser()
        files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
        state = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
        return _digest(str(root), state) if files else ""
    except (OSError, RuntimeError, ValueError) as error:  # in turn: files, ~ of a user who is not there, a zero byte
        where = getattr(error, "filename", None) or path
        reason = getattr(error, "strerror", None) or error
        raise FedshiftError(f"'{where}' cannot be read ({reason}). Allow reading it, or move it elsewhere.") from error


@lru_cache(maxsize=64)
def _digest(root: str, state: tuple[tuple[str, int, int], ...]) -> str:
    """Read the files again only when a size or a time has changed."""
    total = blake2b(digest_size=16)
    for file, size, _ in state:
        total.update(f"{Path(file).relative_to(root)} {size}\n".encode(errors="surrogateescape"))
        with Path(file).open("rb") as opened:
            while block := opened.read(1 << 20):
                total.update(block)
    return total.hexdigest()
