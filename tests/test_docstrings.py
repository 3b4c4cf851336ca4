"""Docstrings describe the arguments and attributes that there are, and every public name of fedshift has one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedshift

ROOT = Path(fedshift.__file__).parent
SECTION = r"^ *{}:\n((?:(?: {{4,}}.*)?\n)*?)(?=^ *[A-Z]\w+:\n|\Z)"


def described(docstring: str, section: str) -> list[str]:
    """The names that a section of a docstring describes."""
    found = re.search(SECTION.format(section), docstring + "\n", re.MULTILINE)
    return re.findall(r"^    (\*{0,2}\w+):", found[1], re.MULTILINE) if found else []


def functions() -> Iterator[tuple[str, list[str], list[str]]]:
    """Where a function is, the arguments it has and those that its docstring describes."""
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)):
                arguments = node.args
                names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                names += [each.arg for each in (arguments.vararg, arguments.kwarg) if each]
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", names, described(docstring, "Args")


def test_described_arguments_are_there():
    found = [*functions()]
    wrong = [f"{where}: {name}" for where, names, told in found for name in told if name.strip("*") not in names]
    assert wrong == []
    assert sum(bool(told) for _, _, told in found) > 50


@pytest.mark.parametrize("name", fedshift.__all__)
def test_public_names_are_described(name: str):
    value = getattr(fedshift, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}(")  # what dataclass writes where there is none
    if inspect.isclass(value):
        has = {*dir(value), *(field for cls in value.__mro__ for field in getattr(cls, "__annotations__", {}))}
        source = inspect.getsource(value)
        attributes = described(inspect.cleandoc(value.__doc__ or ""), "Attributes")
        assert [each for each in attributes if each not in has and f"self.{each}" not in source] == []
