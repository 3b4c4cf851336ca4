"""Every public name of fedshift is described, with attributes that there are."""

from __future__ import annotations

import inspect
import re

import pytest

import fedshift

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
