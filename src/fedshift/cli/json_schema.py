"""The JSON Schema (draft 2020-12) of an experiment's TOML file: every table, setting, limit and default."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedshift.catalogue import Catalogue, From
from fedshift.core.servers import SERVERS
from fedshift.experiments import NAMED, Experiment
from fedshift.methods import METHODS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.spec import Spec, is_text, setting_type

Schema = dict[str, Any]
CATALOGUES: dict[str, Catalogue[Any]] = {
    "methods": METHODS,
    "datasets": NAMED["data"],
    "partitions": NAMED["partition"],
    "models": NAMED["model"],
    "protocols": NAMED["protocol"],
    "indices": INDICES,
    "encoders": ENCODERS,
    "servers": SERVERS,
}
SEARCH: Schema = {
    "description": "where `fedshift tune` looks, by the dotted names of settings: choices, or an interval",
    "type": "object",
}


def json_schema() -> Schema:
    """What a file may hold: a list stands where a single value does, as it makes a run for each.

    Settings without a default are not required, since a command line may give them.
    """
    table = _table(Experiment)
    table["properties"] |= {"method": {"$ref": "#/$defs/method"}, "search": SEARCH}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An experiment of fedshift",
        **table,
        "$defs": {"method": _methods(), **{name: _choice(catalogue) for name, catalogue in CATALOGUES.items()}},
    }


def described(cls: type[Spec], name: str) -> Schema:
    """One value of a setting."""
    nested = cls.nested().get(name)
    schema = _properties(cls)[name]
    if isinstance(nested, From):
        key = next(key for key, catalogue in CATALOGUES.items() if catalogue is nested.catalogue)
        return {key: schema[key] for key in ("description", "default") if key in schema} | {"$ref": f"#/$defs/{key}"}
    if nested:
        return _table(nested.cls)
    found: Schema = _for_toml(schema, is_text(setting_type(cls, name)))
    return found


@cache
def _properties(cls: type[Spec]) -> Schema:
    properties: Schema = cls.model_json_schema()["properties"]
    return properties


def _for_toml(schema: Any, text: bool) -> Any:
    """The schema without null, which TOML has not; a number may stand for a text."""
    if isinstance(schema, list):
        return [_for_toml(item, text) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    if text and schema.get("type") == "string" and "enum" not in schema:
        return {**schema, "type": ["string", "number"]}
    return {key: _for_toml(value, text) for key, value in schema.items() if not (key == "default" and value is None)}


def _table(cls: type[Spec], name: Schema | None = None) -> Schema:
    """The table of a class's settings."""
    properties = {field: _or_list(described(cls, field)) for field in cls.settings()}
    named = {"name": name} if name else {}
    return {"type": "object", "properties": named | properties, "additionalProperties": False}


def _or_list(value: Schema) -> Schema:
    """A value, or a list that makes a run for each; of a setting that is a list, a single item as well."""
    about: Schema = {key: value[key] for key in ("description", "default", "examples") if key in value}
    single = [value["items"]] if isinstance(value.get("items"), dict) else []
    return {**about, "anyOf": [value, *single, {"type": "array", "items": value, "minItems": 1}]}


def _choice(catalogue: Catalogue[Any]) -> Schema:
    """An entry: its name alone, or a table; one without a name is of the default."""
    tables = []
    for name in catalogue:
        cls = catalogue.get(name)
        tables.append({"title": name, **_table(cls, {"const": name, "description": cls.help().splitlines()[0]})})
    return {"anyOf": [{"enum": [*catalogue]}, *tables]}


def _methods() -> Schema:
    """The table [method]: as any entry, with tables for single methods, or with a list of names."""
    own = {name: _table(METHODS.get(name)) for name in METHODS}
    published = sorted({data for name in METHODS for data in METHODS.get(name).presets})
    preset = {"description": "published settings, by a data set's name", "enum": published}
    choice = _choice(METHODS)
    for table in choice["anyOf"][1:]:
        table["properties"] |= {"preset": preset, **{name: {"$ref": f"#/$defs/method/own/{name}"} for name in own}}
    names = {"type": "array", "items": {"enum": [*METHODS]}, "minItems": 1, "uniqueItems": True}
    several = {"title": "several methods", "type": "object", "properties": {"name": names}, "required": ["name"]}
    return {**choice, "anyOf": [*choice["anyOf"], several], "own": own}
