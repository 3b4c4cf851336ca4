"""The settings of many runs in one place: those that all have, and where they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.reporting.results import flat

Nested = Mapping[str, Any]


@dataclass(frozen=True)
class Merged:
    """Nested tables, merged.

    Attributes:
        common: the values that all of them have, nested as they were.
        differing: by dotted name, the others' values in words, one text for each group.
    """

    common: dict[str, Any]
    differing: dict[str, list[str]]


def merged(groups: Sequence[Sequence[Nested]]) -> Merged:
    """Merge groups of nested tables; the values that a group's tables have of one name stand together."""
    flats = [[flat(table) for table in group] for group in groups]
    every = [values for group in flats for values in group]
    names = list(dict.fromkeys(name for values in every for name in values))
    same = {name for name in names if len({in_words(values, name) for values in every}) == 1}
    common: dict[str, Any] = {}
    for name in (name for name in names if name in same):
        *above, last = name.split(".")
        inner = common
        for table in above:
            inner = inner.setdefault(table, {})
        inner[last] = every[0][name]
    differing = {
        name: [", ".join(dict.fromkeys(filter(None, (in_words(values, name) for values in group)))) for group in flats]
        for name in names
        if name not in same
    }
    return Merged(common, differing)


def in_words(values: Nested, name: str) -> str:
    """A value as TOML writes it; empty where there is none."""
    return json.dumps(values[name], ensure_ascii=False) if name in values else ""
