"""Docstrings describe the arguments and attributes that there are, and every public name of fedshift has one."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import fedshift

ROOT = Path(fedshift.__file__).parent
SECTION = r"^ *{}:\n((?:(?: {{4,}}.*)?\n)*?)(?=^ *[A-Z]\w+:\n|\Z)"


def described(docstring: str, section: str) -> list[str]:
    """The names that a section of a docstring describes."""
    found = re.search(SECTION.format(section), docstring + "\n", re.MULTILINE)
    return re.findall(r"^    (\*{0,2}\w+):", found[1], re.MULTILINE) if found else []


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
