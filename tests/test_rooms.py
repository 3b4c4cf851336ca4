"""Which room of the package may import which, read from the source; and every public name is described."""

from __future__ import annotations

import ast
import inspect
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
    {"files", "hub", "streams"},
    {"manifest", "written"},
    {"content", "heat_maps", "memory", "spec"},
    {"catalogue", "parquet"},
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
# Modules, or rooms, that may import less than their layer: these rooms only, beside their own.
ONLY: dict[str, set[str]] = {
    "clients.protocols": {"errors", "streams", "spec"},
    "clients.partitions": {"errors", "streams", "spec"},
    "clients.inputs": {"errors", "streams"},
    "clients.domains": {"errors"},
}
PATH = r"(\.+|fedshift\.)(\w+\.)*\w+(:\w+)?"  # a module, or a class in one, as text
LISTS = ["core.servers", "methods", "methods.client2vec", "datasets", "models", "clients"]
LISTS += ["reporting.analyses", "reporting.trackers"]
# The two ends of the wire: no module of one imports one of the other.
COORDINATOR = {f"rounds.{name}" for name in ("coordinator", "message_checks", "ledger", "outliers")}
SITE = {f"rounds.{name}" for name in ("site", "store", "versions")}


def sources() -> dict[str, Path]:
    """Every module's file, by its name below ``fedshift``; the package itself is ``fedshift``."""
    files = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in sorted(ROOT.rglob("*.py"))}
    return {name.removesuffix(".__init__") if name != "__init__" else "fedshift": file for name, file in files.items()}


SOURCES = sources()
ROOMS = {room: height for height, layer in enumerate(LAYERS) for room in layer}


def room_of(module: str) -> str:
    """The room of a module: itself where it has a separate place, else its first folder."""
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
def imports(module: str) -> set[str]:
    """The modules of fedshift that a module names."""
    nodes = ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8")))
    return {known(name) for node in nodes for name in targets(module, node)} - {"", module}


def allowed(module: str, imported: str) -> bool:
    """Whether a module may import another: of its own room, or of a lower layer that nothing keeps it from."""
    here, there = room_of(module), room_of(imported)
    return here == there or (ROOMS[there] < ROOMS[here] and there in ONLY.get(module, {there}))


def test_every_module_has_its_place():
    assert [module for module in SOURCES if room_of(module) not in ROOMS] == []
    assert [name for name in (*ROOMS, *ONLY) if name not in SOURCES] == []


def test_the_table_of_the_design_has_these_layers():
    page = (ROOT.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", page[page.index("| layer |") : page.index("## The contract")], re.M
    )
    assert [set(re.findall(r"\w+", row)) for row in rows] == LAYERS


def test_a_module_imports_its_own_room_and_lower_layers_only():
    assert {(one, other) for one in SOURCES for other in imports(one) if not allowed(one, other)} == set()


def test_coordinator_and_site_do_not_import_each_other():
    assert {module for module in COORDINATOR if imports(module) & SITE} == set()
    assert {module for module in SITE if imports(module) & COORDINATOR} == set()


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


def test_the_lists_are_read_without_a_page_and_without_torch():
    code = f"import sys; {'; '.join(f'import fedshift.{room}' for room in LISTS)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded
    light = {
        f"fedshift.{name}" for name in (*LISTS, "core", "reporting", "errors", "files", "written", "spec", "catalogue")
    }
    assert {name for name in loaded if name.startswith("fedshift.")} == light


SECTION = r"^ *Attributes:\n((?:(?: {4,}.*)?\n)*?)(?=^ *[A-Z]\w+:\n|\Z)"


@pytest.mark.parametrize("name", fedshift.__all__)
def test_public_names_are_described(name: str):
    value = getattr(fedshift, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}(")  # what dataclass writes where there is none
    if inspect.isclass(value):
        has = {*dir(value), *(field for cls in value.__mro__ for field in getattr(cls, "__annotations__", {}))}
        source = inspect.getsource(value)
        found = re.search(SECTION, inspect.cleandoc(value.__doc__ or "") + "\n", re.MULTILINE)
        attributes = re.findall(r"^    (\w+):", found[1], re.MULTILINE) if found else []
        assert [each for each in attributes if each not in has and f"self.{each}" not in source] == []
