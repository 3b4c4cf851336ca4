"""Each distribution that is imported is declared where it is needed, and each that is declared is imported there."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = "core"
DISTRIBUTIONS = packages_distributions()
FOLDERS = ("src", "tests", "tools", "examples")
LOCAL = {path.stem for folder in FOLDERS for path in (ROOT / folder).iterdir()} | {"tests"}

Declared = dict[str, set[str]]


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> tuple[set[str], set[str]]:
    """The distributions of a list of requirements, and the extras of fedshift that it includes."""
    names, included = set(), set()
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[(.*)\])?", requirement).groups()
        if name == "fedshift":
            included |= set(extras.split(","))
        else:
            names.add(normalised(name))
    return names, included


EXTRAS = {name: declared(listed) for name, listed in PROJECT["optional-dependencies"].items()}
DECLARED: Declared = {CORE: declared(PROJECT["dependencies"])[0]} | {name: own for name, (own, _) in EXTRAS.items()}


def distribution_of(module: str) -> str | None:
    """The distribution that an import needs; None of Python's own modules and the project's."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names | LOCAL:
        return None
    (found,) = {normalised(name) for name in DISTRIBUTIONS[top]}
    return found


def modules_in(node: ast.AST) -> Iterator[str]:
    """The modules or distributions that are imported, or looked for by name, below a node; not those for types only."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "distribution":
        yield node.args[0].value
    for child in ast.iter_child_nodes(node):
        yield from modules_in(child)


def needed_by(node: ast.AST) -> set[str]:
    """The distributions that are imported below a node."""
    return {name for module in modules_in(node) if (name := distribution_of(module))}


def gates_in(tree: ast.Module) -> Iterator[tuple[str, ast.With]]:
    """Each ``with needs(extra, ...)`` with its extra."""
    for node in ast.walk(tree):
        for call in (item.context_expr for item in node.items) if isinstance(node, ast.With) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "needs":
                yield call.args[0].value, node


def trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    """Each file of a folder, parsed."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


GATED: Declared = defaultdict(set)  # by extra
UNGATED: Declared = {}  # by file: imported there, and by no gate there
IMPORTED: set[str] = set()
for file, tree in trees("src"):
    behind: set[str] = set()
    for extra, gate in gates_in(tree):
        behind |= needed_by(gate)
        GATED[extra] |= needed_by(gate)
    IMPORTED |= needed_by(tree)
    UNGATED[file] = needed_by(tree) - behind


def test_what_src_imports_is_a_core_dependency_or_behind_the_gate_of_an_extra():
    """A file that imports what an extra brings has the gate itself, wherever it is called from; gates name extras."""
    assert GATED.keys() <= EXTRAS.keys()
    assert DECLARED[CORE] <= IMPORTED
    assert {file: names for file, own in UNGATED.items() if (names := own - DECLARED[CORE])} == {}


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev", "docs"}))
def test_an_extra_declares_what_is_imported_behind_its_gate(extra: str):
    """No less and no more, but what the extras bring that it includes."""
    own, included = EXTRAS[extra]
    assert GATED[extra] - DECLARED[CORE] == own | (GATED[extra] & set().union(*(DECLARED[name] for name in included)))


def test_dev_includes_every_extra_and_what_tests_import():
    own, included = EXTRAS["dev"]
    assert included == EXTRAS.keys() - {"dev"}
    everything = own.union(*DECLARED.values())
    lacking = {
        file: needed_by(tree) - everything for folder in ("tests", "tools", "examples") for file, tree in trees(folder)
    }
    assert {file: names for file, names in lacking.items() if names} == {}
