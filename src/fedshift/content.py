"""Digests of what files hold, so that a changed input is never taken for the old one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from fedshift import files
from fedshift.errors import FedshiftError

KEPT = b"fedshift kept object "  # how a file begins whose first line goes on with a digest of what it means
RAN_HERE = "plugins"  # the cache's folder that knows, by the digests of their bytes, which code ran on this machine


def digest(path: str | Path) -> str:
    """A digest of what decides results in a file, or a folder's files and their names below it; empty if there is none.

    Of a Python file it is of the files that it imports from its own folder as well, and of a kept object
    (:data:`KEPT`) that of what the object means, which its first line says.

    Raises:
        FedshiftError: there is such a path, but it cannot be read.
    """
    exact = code_digest(path) if str(path).endswith(".py") else _content(path)
    if not exact or not Path(path).expanduser().is_file():
        return exact
    with Path(path).expanduser().open("rb") as file:
        words = file.readline(200).split() if file.read(len(KEPT)) == KEPT else []
    return words[0].decode(errors="replace") if words else exact


def code_digest(path: str | Path) -> str:
    """A digest of the bytes of a file, and of those that a Python file imports from its own folder; empty if none.

    Raises:
        FedshiftError: one of them cannot be read.
    """
    own, beside = _content(path), imported(path)
    if not own or not beside:
        return own
    folder = Path(path).expanduser().resolve().parent
    total = blake2b(own.encode(), digest_size=16)
    for file in beside:
        total.update(f"{file.relative_to(folder).as_posix()} {_content(file)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _content(path: str | Path) -> str:
    """A digest of a file, or of a folder's files and their names below it; empty if there is no such path."""
    if not str(path):
        return ""
    try:
        root = Path(path).expanduser()
        inside = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
        state = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in inside)
        return _digest(str(root), state) if inside else ""
    except (OSError, RuntimeError, ValueError) as error:  # in turn: files, ~ of a user who is not there, a zero byte
        where = getattr(error, "filename", None) or path
        reason = getattr(error, "strerror", None) or error
        raise FedshiftError(f"'{where}' cannot be read ({reason}). Allow reading it, or move it elsewhere.") from error


def remember_code(path: str | Path) -> None:
    """Remember that a user of this machine ran a file of code."""
    files.cache(RAN_HERE, code_digest(path), str(path))


def ran_here(path: str | Path) -> bool:
    """Whether a user of this machine ran a file of code, byte for byte."""
    folder = files.cache_folder(RAN_HERE)
    return folder is not None and (folder / code_digest(path)).is_file()


def imported(path: str | Path) -> list[Path]:
    """The files below a Python file's folder that its import statements name, and theirs, in the order of their names.

    Modules from elsewhere, such as installed packages, and what is imported by a function call are not among them.

    Raises:
        FedshiftError: one of them cannot be read.
    """
    first = Path(path).expanduser().resolve()
    found, left = {first}, [first]
    while left:
        file = left.pop()
        new = {each for each in _named(file, first.parent, _content(file)) if each.is_file()} - found
        found |= new
        left += new
    return sorted(found - {first})


@lru_cache(maxsize=256)
def _named(file: Path, folder: Path, content: str) -> tuple[Path, ...]:
    """The files that the import statements of a file may mean below a folder; read again when its content changes."""
    try:
        tree = ast.parse(file.read_bytes()) if content else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):  # which importing it says
        return ()
    modules = (module for node in ast.walk(tree) for module in _modules(node, file, folder))
    return tuple(each for module in modules for each in (module.with_suffix(".py"), module / "__init__.py"))


def _modules(node: ast.AST, file: Path, folder: Path) -> Iterator[Path]:
    """The modules of an import statement, with the packages around them, as paths without a suffix."""
    if isinstance(node, ast.Import):
        start, names = folder, [each.name for each in node.names]
    elif isinstance(node, ast.ImportFrom):
        start = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
        names = [".".join(filter(None, (node.module, each.name))) for each in node.names]
    else:
        return
    for name in names:
        module = start
        for part in name.split("."):
            module /= part
            if module.is_relative_to(folder) and part != "*":
                yield module


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
