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
    """The modules or distributions that are imported, or looked for by name, below a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "distribution":
            yield each.args[0].value


def gates_in(tree: ast.Module) -> Iterator[tuple[str, ast.With]]:
    """Each ``with needs(extra, ...)`` with its extra."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            call = node.items[0].context_expr
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "needs":
                yield call.args[0].value, node


def imports(folder: str) -> tuple[Declared, dict[str, set[str]]]:
    """The distributions that are imported by gate, and the files that import each, gated or not."""
    gated: Declared = defaultdict(set)
    files: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for extra, node in gates_in(tree):
            gated[extra] |= {name for module in modules_in(node) if (name := distribution_of(module))}
        for module in modules_in(tree):
            if name := distribution_of(module):
                files[name].add(str(path.relative_to(ROOT)))
    return gated, files


GATED, FILES = imports("src")


def test_what_src_imports_is_a_core_dependency_or_behind_the_gate_of_an_extra():
    allowed = DECLARED[CORE].union(*GATED.values())
    assert {name: files for name, files in FILES.items() if name not in allowed} == {}


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev"}))
def test_an_extra_declares_what_is_imported_behind_its_gate(extra: str):
    """No less and no more, but what the extras bring that it includes."""
    own, included = EXTRAS[extra]
    assert GATED[extra] - DECLARED[CORE] == own | (GATED[extra] & set().union(*(DECLARED[name] for name in included)))


def test_every_gate_names_an_extra():
    assert GATED.keys() <= EXTRAS.keys()


def test_every_core_dependency_is_imported():
    assert DECLARED[CORE] - FILES.keys() == set()


def test_dev_includes_every_extra_and_what_tests_import():
    own, included = EXTRAS["dev"]
    assert included == EXTRAS.keys() - {"dev"}
    everything = own.union(*DECLARED.values())
    for folder in FOLDERS:
        assert {name: files for name, files in imports(folder)[1].items() if name not in everything} == {}
