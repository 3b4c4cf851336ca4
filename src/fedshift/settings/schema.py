"""The JSON Schema (draft 2020-12) of an experiment's TOML file: every table, setting, limit and default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Any, get_args, get_origin

from fedshift.core.servers import SERVERS
from fedshift.datasets import DATASETS
from fedshift.federation import PARTITIONS, PROTOCOLS
from fedshift.methods import METHODS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.models import MODELS
from fedshift.settings.catalogue import Catalogue, Entry, From
from fedshift.settings.experiment import DEFAULT_NAMES, NAMED, PLAIN, Experiment
from fedshift.settings.spec import adapter, as_toml, is_text, setting_type

Schema = dict[str, Any]
CATALOGUES: dict[str, Catalogue[Any]] = {
    "methods": METHODS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "models": MODELS,
    "protocols": PROTOCOLS,
    "indices": INDICES,
    "encoders": ENCODERS,
    "servers": SERVERS,
}


NUMBER: Schema = {"type": "number"}
INTERVAL: Schema = {
    "type": "object",
    "properties": {"low": NUMBER, "high": NUMBER, "log": {"type": "boolean"}},
    "required": ["low", "high"],
    "additionalProperties": False,
}
WHERE_TO_LOOK: Schema = {
    "description": "where `fedshift tune` looks, by the dotted names of settings: choices, or an interval",
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            {"type": "array", "minItems": 2},
            {"type": "string", "pattern": r"\.\."},
            INTERVAL,
            {"$ref": "#/$defs/search"},  # dots that make tables
        ]
    },
}


def json_schema() -> Schema:
    """What a file may hold: a list stands where a single value does, as it makes a run for each.

    Settings without a default are not required, since a command line may give them.
    """
    fields = {name: Entry(Experiment).settings()[name] for name in ("name", "seed", "data_seed", "plugins")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An experiment of fedshift",
        "type": "object",
        "properties": {
            **{name: _setting(Experiment, name) for name in fields if name != "plugins"},
            "plugins": {**_about(Experiment, "plugins"), "type": "array", "items": {"type": "string"}},
            **{name: _table(Entry(cls)) for name, cls in PLAIN.items()},
            **{name: _alternatives(NAMED[name], DEFAULT_NAMES[name]) for name in NAMED if name != "method"},
            "method": _method(),
            "search": {"$ref": "#/$defs/search"},
        },
        "additionalProperties": False,
        "$defs": {"search": WHERE_TO_LOOK}
        | {name: _nested(catalogue) for name, catalogue in CATALOGUES.items()}
        | {f"method.{name}": _table(METHODS.get(name)) for name in METHODS},
    }


def _about(cls: type[Any], name: str) -> Schema:
    """What an editor shows of a setting: its help, source and default."""
    about = cls.settings()[name]
    source = f" ({about.metadata['source']})" if about.metadata.get("source") else ""
    described: Schema = {"description": f"{about.metadata.get('help', '')}{source}"}
    if about.default is not MISSING and about.default is not None:
        described["default"] = as_toml(about.default)
    if about.metadata.get("examples"):
        described["examples"] = [*about.metadata["examples"]]
    return described


def _setting(cls: type[Any], name: str) -> Schema:
    """One value of a setting, or a list of them."""
    hint, nested = setting_type(cls, name), cls.nested().get(name)
    if isinstance(nested, From):
        key = next(key for key, catalogue in CATALOGUES.items() if catalogue is nested.catalogue)
        value: Schema = {"$ref": f"#/$defs/{key}"}
        default = cls.settings()[name].default
        if isinstance(default, str):  # a table without a name is of the default's
            value = {"anyOf": [value, _table(nested.catalogue.get(default))]}
        return {**_about(cls, name), "anyOf": [value, _list_of(value)]}
    value = _value(hint)
    if get_origin(hint) is not tuple:
        return {**_about(cls, name), "anyOf": [value, _list_of(value)]}
    single = [] if "prefixItems" in value or get_origin(get_args(hint)[0]) is tuple else [value["items"]]
    return {**_about(cls, name), "anyOf": [value, *single, _list_of(value)]}


def _list_of(value: Schema) -> Schema:
    return {"type": "array", "items": value, "minItems": 1}


def _value(hint: Any) -> Schema:
    """What the check of a setting says of its values."""
    described: Schema = _for_toml(adapter(hint).json_schema(), is_text(hint))
    return described


def _for_toml(described: Any, text: bool) -> Any:
    """The schema without null, which TOML has not; a whole number may stand for a text."""
    if isinstance(described, list):
        return [_for_toml(item, text) for item in described if item != {"type": "null"}]
    if not isinstance(described, dict):
        return described
    if text and described.get("type") == "string" and not described.keys() & {"enum", "const"}:
        return {**described, "type": ["string", "integer"]}
    return {key: _for_toml(value, text) for key, value in described.items()}


def _table(entry: Entry[Any], named: Schema | None = None) -> Schema:
    """The table of an entry's settings, with its name if ``named`` says what that may be."""
    name = {"name": named} if named else {}
    settings = {field: _setting(entry.cls, field) for field in entry.settings()}
    return {"type": "object", "properties": {**name, **settings}, "additionalProperties": False}


def _alternatives(catalogue: Catalogue[Any], default: str = "") -> Schema:
    """A table for each entry, which its name tells; that of the default needs no name."""
    tables = []
    for name in catalogue:
        entry = catalogue.get(name)
        table = {"title": name, **_table(entry, {"const": name, "description": entry.help.splitlines()[0]})}
        tables.append(table if name == default else {**table, "required": ["name"]})
    return {"description": f"a {catalogue.kind}, by its name", "anyOf": tables}


def _nested(catalogue: Catalogue[Any]) -> Schema:
    """An entry as a setting: its name alone, or a table."""
    return {"anyOf": [{"enum": [*catalogue]}, _alternatives(catalogue)]}


def _method() -> Schema:
    """The table of methods: one by its name, or several with the settings of any."""
    own = {name: {"$ref": f"#/$defs/method.{name}"} for name in METHODS}
    common = {field: _setting(METHODS.base(), field) for field in METHODS.base().settings()}
    tables = []
    for name in METHODS:
        entry = METHODS.get(name)
        settings = {**common, **{field: _reference(name, field) for field in entry.settings()}}
        table = _methods_table({"const": name, "description": entry.help.splitlines()[0]}, [entry], settings, own)
        tables.append({"title": name, **table, **({} if name == DEFAULT_NAMES["method"] else {"required": ["name"]})})
    entries = [METHODS.get(name) for name in METHODS]
    found: dict[str, list[tuple[Schema, Schema]]] = {}  # by a setting's name, each meaning it has and a reference to it
    for entry in entries:
        for field in entry.settings():
            described = _setting(entry.cls, field)
            if all(described != other for other, _ in found.setdefault(field, [])):
                found[field].append((described, _reference(entry.name, field)))
    settings = {field: {"anyOf": [reference for _, reference in meanings]} for field, meanings in found.items()}
    names = {"type": "array", "items": {"enum": [*METHODS]}, "minItems": 1, "uniqueItems": True}
    several = {"title": "several methods", **_methods_table(names, entries, settings, own), "required": ["name"]}
    return {"description": "a method by its name, or a list of them", "anyOf": [*tables, several]}


def _reference(method: str, field: str) -> Schema:
    return {"$ref": f"#/$defs/method.{method}/properties/{field}"}


def _methods_table(
    name: Schema, entries: Iterable[Entry[Any]], settings: Mapping[str, Schema], own: Mapping[str, Schema]
) -> Schema:
    presets = sorted({data for entry in entries for data in entry.presets})
    preset = {"preset": {"description": "published settings, by a data set's name", "enum": presets}} if presets else {}
    properties = {"name": name, **preset, **own, **settings}
    return {"type": "object", "properties": properties, "additionalProperties": False}
