"""What the code imports is declared in pyproject.toml, by the library itself, an extra, or for its tests."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WITH_OTHERS = {
    "click",
    "huggingface-hub",
    "tokenizers",
    "uvicorn",
}  # used only where typer, transformers, datasets or flwr, which need them, are


def packages(lines: list[str]) -> set[str]:
    """The names of packages in requirements."""
    return {normal(re.split(r"[\[<>=~! ]", line)[0]) for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def imported(folder: str) -> set[str]:
    """The packages that Python files of a folder import, wherever the import stands, but the standard library's."""
    files = sorted((ROOT / folder).rglob("*.py"))
    own = {"fedshift", *(file.stem for file in files), *(file.parent.name for file in files)}
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    known = packages_distributions()
    return {normal(known.get(name, [name])[0]) for name in names - own - sys.stdlib_module_names - {"__future__"}}


def test_the_library_declares_what_it_imports():
    extras = [line for name, lines in EXTRAS.items() if name != "dev" for line in lines]
    assert imported("src") - packages(PROJECT["dependencies"] + extras) <= WITH_OTHERS


def test_what_is_declared_is_imported():
    unused = packages(PROJECT["dependencies"]) - imported("src")
    assert unused == set()


def test_every_extra_is_one_that_dev_has_and_the_readme_names():
    (everything,) = [line for line in EXTRAS["dev"] if line.startswith("fedshift[")]
    extras = set(EXTRAS) - {"dev"}
    assert set(everything.removeprefix("fedshift[").removesuffix("]").split(",")) == extras
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(extras) if f"[{name}]" not in readme] == []
