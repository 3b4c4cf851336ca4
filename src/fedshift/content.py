"""Digests of file contents, so that a changed input is never taken for the old one; and importing a user's file."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import blake2b, file_digest
from importlib import util
from pathlib import Path
from types import ModuleType

from fedshift import files
from fedshift.errors import FedshiftError

KEPT = (
    b"fedshift kept object "  # the first bytes of a file whose first line continues with a digest of the object in it
)
PLUGIN = "fedshift_plugin_"  # how the names of modules begin that are plugins
RAN_HERE = "plugins"  # the cache's folder that knows, by the digests of their bytes, which code ran on this machine


def digest(path: str | Path) -> str:
    """A digest of what decides results in a file, or in a folder's files and their names; empty if it is missing.

    The digest of a Python file covers the files that it imports from its folder. The digest of a kept object
    (:data:`KEPT`) is read from its first line.
    """
    exact = code_digest(path) if str(path).endswith(".py") else _content(path)
    if not exact or not Path(path).expanduser().is_file():
        return exact
    with Path(path).expanduser().open("rb") as file:
        words = file.readline(200).split() if file.read(len(KEPT)) == KEPT else []
    return words[0].decode(errors="replace") if words else exact


def code_digest(path: str | Path) -> str:
    """A digest of a file's bytes, and of the files that it imports from its folder; empty if it is missing."""
    own, beside = _content(path), imported(path)
    if not own or not beside:
        return own
    folder = Path(path).expanduser().resolve().parent
    total = files.hashing(own.encode())
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
    """Whether a user of this machine ran a file of code with exactly these bytes."""
    folder = files.cache_folder(RAN_HERE)
    return folder is not None and (folder / code_digest(path)).is_file()


def imported(path: str | Path) -> list[Path]:
    """The files below a Python file's folder that its import statements name, recursively, sorted by name.

    Installed packages and modules imported by a function call are excluded.
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
    """The files that a file's import statements may mean below a folder; cached by the file's content."""
    try:
        tree = ast.parse(file.read_bytes()) if content else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):  # which the import itself reports
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
    """The cached digest of files; they are read again only if a size or time changed."""
    total = files.hashing()
    for file, size, _ in state:
        total.update(f"{Path(file).relative_to(root)} {size}\n".encode(errors="surrogateescape"))
        with Path(file).open("rb") as opened:
            file_digest(opened, lambda: total)
    return total.hexdigest()


# A Python file as a module ------------------------------------------------------------------------------


def module_of(path: str | Path) -> ModuleType:
    """The module that a file defines; imported again only if the file, or what it imports from its folder, changed."""
    return _loaded(str(Path(path).expanduser().resolve()), code_digest(path))


@cache
def _loaded(path: str, content: str) -> ModuleType:
    if not content:
        raise FedshiftError(f"The plugin '{path}' does not exist; give the path of a Python file.")
    name = f"{PLUGIN}{Path(path).stem}_{blake2b(path.encode(), digest_size=4).hexdigest()}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FedshiftError(f"The plugin '{path}' is no Python file.")
    module = util.module_from_spec(spec)
    if name in sys.modules:  # it is imported again, so what it imports from its folder is as well
        stale = {str(file) for file in imported(path)}
        for each in [key for key, loaded in sys.modules.items() if getattr(loaded, "__file__", None) in stale]:
            del sys.modules[each]
        importlib.invalidate_caches()
    sys.modules[name] = module
    linecache.checkcache(path)
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)  # what a plugin is for
    except FedshiftError:
        raise
    except (Exception, SystemExit) as error:  # which would end the command without a message
        raise FedshiftError(f"The plugin '{path}' fails when imported: {type(error).__name__}: {error}") from error
    return module
