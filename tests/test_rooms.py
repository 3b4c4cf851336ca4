"""Which room of the package may import which, read from the source: every import, wherever it stands, counts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import fedshift

ROOT = Path(fedshift.__file__).parent

# From low to high. A module may import its own room and rooms of lower layers; a name with a dot is a single module.
LAYERS: list[set[str]] = [
    {"errors"},
    {"files", "hub", "memory", "streams"},
    {"parquet", "manifest"},
    {"spec", "content", "written"},
    {"catalogue"},
    {"clients"},
    {"core"},
    {"page"},
    {"engines", "models", "datasets"},
    {"methods", "rounds"},
    {"experiments"},
    {"runs"},
    {"reporting"},
    {"deployment", "study"},
    {"sklearn"},
    {"fedshift"},  # the package's own __init__
    {"cli"},
    {"__main__"},
]
# What is needed beside that, and why.
ALLOWED: dict[tuple[str, str], str] = {}
# Modules, or rooms, that may import less than their layer: these rooms only, beside their own.
ONLY: dict[str, set[str]] = {
    "clients.protocols": {"errors", "streams", "spec"},
    "clients.partitions": {"errors", "streams", "spec"},
    "clients.inputs": {"errors", "streams"},
    "clients.domains": {"errors"},
}
PATH = r"(\.+|fedshift\.)(\w+\.)*\w+(:\w+)?"  # a module, or a class in one, as text
LISTS = ["core.servers", "methods", "methods.client2vec", "datasets", "models", "clients"]
# The two ends of the wire: no module of one imports one of the other.
COORDINATOR = {f"rounds.{name}" for name in ("coordinator", "checks", "ledger", "outliers")}
SITE = {f"rounds.{name}" for name in ("site", "store", "versions")}


def sources() -> dict[str, Path]:
    """Every module's file, by its name below ``fedshift``; the package itself is ``fedshift``."""
    files = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in sorted(ROOT.rglob("*.py"))}
    return {name.removesuffix(".__init__") if name != "__init__" else "fedshift": file for name, file in files.items()}


SOURCES = sources()
ROOMS = {room: height for height, layer in enumerate(LAYERS) for room in layer}


def room_of(module: str) -> str:
    """The room of a module: itself where it has a place of its own, else its first folder."""
    return module if module in ROOMS else module.partition(".")[0]


def known(name: str) -> str:
    """The module, below ``fedshift``, that a full dotted name is or lies in; empty if it is not fedshift's."""
    words = name.split(".")
    if words[0] != "fedshift":
        return ""
    below = words[1:]
    while below and ".".join(below) not in SOURCES:
        below.pop()
    return ".".join(below) or "fedshift"


def targets(module: str, node: ast.AST) -> Iterator[str]:
    """The full names that a node imports; text such as ".page:Class" and "fedshift.room.page" counts as well."""
    package = f"fedshift.{module}" if SOURCES[module].name == "__init__.py" else f"fedshift.{module}".rpartition(".")[0]
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        source = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
        yield from (f"{source}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        named = resolve_name(node.value.partition(":")[0], package) if re.fullmatch(PATH, node.value) else ""
        if named.removeprefix("fedshift.") in SOURCES:  # ".new" may be the end of a file's name
            yield named


@cache
def imports(module: str) -> dict[str, int]:
    """The modules of fedshift that a module names, each with the line of the first place."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        for name in targets(module, node):
            if known(name) and known(name) != module:
                found.setdefault(known(name), node.lineno)  # type: ignore[attr-defined]  # of nodes that import
    return found


def wrong(module: str, imported: str) -> str:
    """Why a module may not import another; empty if it may."""
    here, there = room_of(module), room_of(imported)
    if here == there or (module, imported) in ALLOWED:
        return ""
    only = ONLY.get(module)
    if only is not None and there not in only:
        return f"it may import {', '.join(sorted(only)) or 'nothing of fedshift'} only"
    if ROOMS[there] > ROOMS[here]:
        return f"{there} is above {here}"
    return f"{there} is beside {here}" if ROOMS[there] == ROOMS[here] else ""


def test_every_module_has_its_place():
    assert [module for module in SOURCES if room_of(module) not in ROOMS] == []
    assert [name for name in (*ROOMS, *ONLY) if name not in SOURCES] == []


def test_a_module_imports_its_own_room_and_lower_layers_only():
    found = [
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {imported}: {why}"
        for module in SOURCES
        for imported, line in imports(module).items()
        if (why := wrong(module, imported))
    ]
    assert not found, f"{len(found)} imports against the layers:\n" + "\n".join(found)


def test_coordinator_and_site_do_not_import_each_other():
    assert {module for module in COORDINATOR if imports(module).keys() & SITE} == set()
    assert {module for module in SITE if imports(module).keys() & COORDINATOR} == set()


def test_what_is_allowed_beside_the_layers_is_needed():
    assert [pair for pair in ALLOWED if pair[1] not in imports(pair[0])] == []


def needs(module: str) -> set[str]:
    """The modules of fedshift that a module imports when it runs, now or later; types alone do not count."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body.clear()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {known(name) for node in nodes for name in targets(module, node)} - {"", module}


def test_modules_do_not_import_each_other_in_a_circle():
    TopologicalSorter({module: needs(module) for module in SOURCES}).prepare()  # a CycleError names the modules


def test_the_reader_sees_every_way_to_import():
    text = """
import fedshift.files
from fedshift import errors
from fedshift.core.net import Net
from .engines import local
if TYPE_CHECKING:
    from fedshift.runs.run import Run
def later():
    import fedshift.study.api as api
entries = {"a": ".methods.moon:MOON", "b": "fedshift.models.small", "c": "a.b", "d": "field: value", "e": ".new"}
"""
    seen = {known(name) for node in ast.walk(ast.parse(text)) for name in targets("errors", node)} - {""}
    expected = {"files", "errors", "core.net", "engines.local", "runs.run", "study.api", "methods.moon"}
    expected.add("models.small")
    assert seen == expected


@pytest.mark.parametrize("room", LISTS)
def test_a_room_lists_its_own_classes_only(room: str):
    tree = ast.parse(SOURCES[room].read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    paths = [text for text in texts if ":" in text and re.fullmatch(PATH, text)]
    named = {known(resolve_name(path.partition(":")[0], f"fedshift.{room}")) for path in paths}
    assert len(paths) > 2
    assert [module for module in named if not module.startswith((f"{room}.", "core."))] == []


def test_the_lists_are_read_without_a_page_and_without_torch():
    code = f"import sys; {'; '.join(f'import fedshift.{room}' for room in LISTS)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded
    light = {f"fedshift.{name}" for name in (*LISTS, "core", "errors", "spec", "catalogue")}
    assert {name for name in loaded if name.startswith("fedshift.")} == light
