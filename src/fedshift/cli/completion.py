"""Tab completion of settings and their values, as --set takes them, from the schema of experiments."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

Schema = Mapping[str, Any]

COMPLETE = "_FEDSHIFT_COMPLETE"  # the variable by which a shell asks for completions
SPLIT = re.compile("\n=\n?")  # a word that is only an equals sign


def settings(incomplete: str) -> list[str]:
    """Tab completion of an assignment: a setting by its dotted name, and after ``=`` its values, if they have names.

    A table that is the only one of its kind is followed to its settings, since a shell takes a single word for whole.
    """
    from fedshift.settings.schema import json_schema

    schema = json_schema()
    name, equals, text = incomplete.partition("=")
    return [*(_values(schema, name, text) if equals else _names(schema, name))]


def _names(schema: Schema, incomplete: str) -> list[str]:
    above, dot, word = incomplete.rpartition(".")
    found: list[str] = []
    for name in dict.fromkeys(name for table in _tables(schema, above) for name in table["properties"]):
        if name.startswith(word):
            kinds = [*_at(schema, f"{above}{dot}{name}")]
            found += [f"{above}{dot}{name}="] * any(_single(kind) for kind in kinds)
            found += [f"{above}{dot}{name}."] * any("properties" in kind for kind in kinds)
    if len(found) > 1 or not found:
        return found
    return _names(schema, found[0]) if found[0].endswith(".") else [*_values(schema, found[0][:-1], "")] or found


def _values(schema: Schema, name: str, text: str) -> Iterator[str]:
    """The values that have names and begin with what follows the last comma, each after what comes before it."""
    before, comma, word = text.rpartition(",")
    values = (value for kind in _at(schema, name) for value in _named(kind))
    written = (value if isinstance(value, str) else json.dumps(value) for value in values)
    return (f"{name}={before}{comma}{value}" for value in dict.fromkeys(written) if value.startswith(word))


def _tables(schema: Schema, name: str) -> Iterator[Schema]:
    return (kind for kind in _at(schema, name) if "properties" in kind)


def _at(schema: Schema, name: str) -> Iterator[Schema]:
    """Everything that a setting may be, or a table of them, by its dotted name."""
    if not name:
        yield schema
        return
    above, _, last = name.rpartition(".")
    for table in _tables(schema, above):
        if last in table["properties"]:
            yield from _kinds(schema, table["properties"][last])


def _kinds(schema: Schema, described: Schema) -> Iterator[Schema]:
    """What a description allows, one by one; of a list, that of its items."""
    yield described
    if "$ref" in described:
        found: Any = schema
        for word in described["$ref"].removeprefix("#/").split("/"):
            found = found[word]
        yield from _kinds(schema, found)
    for each in described.get("anyOf", ()):
        yield from _kinds(schema, each)
    if "items" in described:
        yield from _kinds(schema, described["items"])


def _single(kind: Schema) -> bool:
    return kind.get("type", "object") != "object" or "enum" in kind or "const" in kind


def _named(kind: Schema) -> Sequence[Any]:
    """The values that a description names."""
    truths = (False, True) if kind.get("type") == "boolean" else ()
    const = (kind["const"],) if "const" in kind else ()
    return (*kind.get("enum", ()), *const, *truths, *kind.get("examples", ()))


@contextmanager
def assignments_joined(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Complete an assignment as one word in bash, which splits a command line at ``=`` and replaces what follows it.

    Args:
        environment: in which bash passes on the words, a line each, and the number of the last.
    """
    if environment.get(COMPLETE) != "complete_bash":
        yield
        return
    words = environment["COMP_WORDS"]
    number = int(environment["COMP_CWORD"]) - sum(len(found.group()) - 1 for found in SPLIT.finditer(words))
    environment.update(COMP_WORDS=SPLIT.sub("=", words), COMP_CWORD=str(number))
    before, equals, _ = SPLIT.sub("=", words).splitlines()[-1].rpartition("=")
    completions = StringIO()
    try:
        with redirect_stdout(completions):
            yield
    finally:
        sys.stdout.writelines(line.removeprefix(before + equals) for line in completions.getvalue().splitlines(True))
