"""Output of ``fedshift list``, ``show`` and ``schema``: catalogues, their entries, and an experiment's settings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedshift.catalogue import YOUR_OWN, Catalogue, From
from fedshift.cli.console import open_console
from fedshift.core.contract import term_names
from fedshift.core.method import Averaging, Method
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import DEFAULT_NAMES, NAMED, PLAIN, Experiment
from fedshift.methods import METHODS
from fedshift.reporting.analyses import ANALYSES
from fedshift.reporting.results import flat, merged
from fedshift.reporting.trackers import TRACKERS
from fedshift.spec import Spec
from fedshift.study.grid import expand, override, read, shipped, shipped_text
from fedshift.written import is_text, text_of

TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true | false", "object": "table"}
ANY_NUMBER = 2**62  # a larger limit only reflects how numbers are stored
SIGNS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def print_list(kind: str) -> None:
    """Print the names of one kind, or of all, each with a one-line description."""
    kinds = [*listed(), "experiments"]
    if kind not in (*kinds, "all"):
        raise UnknownNameError("kind", kind, [*kinds, "all"])
    console = open_console()
    for one in kinds if kind == "all" else [kind]:
        table = Table(title=one, title_justify="left", box=None, show_header=False, padding=(0, 3, 0, 0))
        if one == "experiments":
            lines = {name: shipped_text(name).splitlines()[0].lstrip("# ") for name in shipped()}
        else:
            lines = {name: listed()[one].get(name).help().splitlines()[0] for name in listed()[one]}
        for name, line in lines.items():
            paper = f" [dim]({METHODS.get(name).cited()})[/dim]" if one == "methods" else ""
            table.add_row(f"[bold]{escape(name)}[/bold]", f"{escape(plain(line)).removesuffix('.')}{paper}.")
        console.print(table)
        console.print()


def print_named(name: str, changes: Mapping[str, Any]) -> None:
    """Print whatever has a name: an entry or table with every setting, or an experiment with its resolved settings.

    Raises:
        UnknownNameError: nothing has that name.
        FedshiftError: changes are given for something other than an experiment.
    """
    console = open_console()
    entries = [(catalogue.table, catalogue.get(name)) for catalogue in listed().values() if name in catalogue]
    entries += [(name, PLAIN[name])] if name in PLAIN else []
    is_experiment = name in shipped() or Path(name).suffix == ".toml" or Path(name).is_file()
    if not entries and not is_experiment:
        raise UnknownNameError("name", name, shown_names(), hint=f"`fedshift list` describes them. {YOUR_OWN}")
    if changes and not is_experiment:
        raise FedshiftError(
            f"--set changes an experiment, but '{name}' is not an experiment; `fedshift list experiments` lists them."
        )
    for table, cls in entries:
        _print_entry(console, name, table, cls)
    if is_experiment:
        text = shipped_text(name) if name in shipped() else text_of(Path(name))
        console.print(f"[bold]The experiment {escape(name)}[/bold]\n", highlight=False)
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        _print_resolved(console, name, changes)


def _print_resolved(console: Console, name: str, changes: Mapping[str, Any]) -> None:
    """Print an experiment's runs: the settings that all share, then each method's further settings, with origins."""
    document = override(read(name), changes, lambda line: console.print(f"Note: {line}", highlight=False, markup=False))
    runs: dict[str, list[dict[str, Any]]] = {}
    try:
        for one in expand(document):
            runs.setdefault(one.method_name, []).append(one.table())
    except FedshiftError as error:
        console.print(f"As it stands it cannot run: {error}", highlight=False, markup=False)
        return
    settings = merged([*runs.values()])
    parts = [(f"{sum(map(len, runs.values()))} runs, all with", settings.common, [*runs])]
    for number, (method, its) in enumerate(runs.items()):
        own = {key: values[number] for key, values in settings.differing.items() if values[number]}
        parts.append((f"{method}, {len(its)} runs, with", own, [method]))
    for title, values, methods in parts:
        if values:
            table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
            table.add_column("setting", no_wrap=True)  # a name that is cut cannot be copied
            table.add_column("value", overflow="fold")
            table.add_column("from")
            for key, text in values.items():
                origins = dict.fromkeys(_origin(key, method, document, changes) for method in methods)
                table.add_row(escape(key), escape(text), ", ".join(origins))
            console.print(table, "")


def _origin(key: str, method: str, document: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """The source of a run's setting: the command line, the file, a preset or a default."""
    keys = (key, key.replace("method.", f"method.{method}.", 1))
    names = {*keys, *(each.removesuffix(".name") for each in keys)}
    if any(name == change or name.startswith(f"{change}.") for name in names for change in changes):
        return "command line"
    given = flat(document)
    if names & given.keys():
        return "file"
    data = given.get("data.name", given.get("data", DEFAULT_NAMES["data"]))
    preset, (table, _, setting) = str(given.get("method.preset", data)), key.partition(".")
    published = table == "method" and setting in METHODS.get(method).published().get(preset, {})
    return f"published for {preset}" if published else "default"


def print_schema(as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))
        return
    console = open_console()
    console.print("An experiment is a TOML file; a list where one value is expected makes a run for each.")
    tables: dict[str, type[Spec]] = {"before any table": Experiment}
    tables |= {f"[{name}]": cls for name, cls in PLAIN.items()}
    for catalogue in catalogues().values():
        tables |= {f"{catalogue.kind} {name}": catalogue.get(name) for name in catalogue}
    for title, cls in tables.items():
        console.print(f"\n[bold]{escape(title)}[/bold]", highlight=False)
        for setting in cls.settings():
            _print_setting(console, cls, setting)


def _print_entry(console: Console, name: str, prefix: str, cls: type[Spec]) -> None:
    page = sys.modules[cls.__module__].__doc__ or ""
    console.print(f"[bold]{name}[/bold]: {escape(plain(cls.help()))}\n", highlight=False)
    if "Choices" in page:
        console.print(f"{plain(page.strip())}\n", highlight=False, markup=False)
    console.print(f"Settings, with defaults (--set {prefix}.NAME=VALUE):\n", highlight=False)
    inherited = Averaging.settings() if issubclass(cls, Method) else {}
    for setting in sorted(cls.settings(), key=lambda setting: setting in inherited):
        _print_setting(console, cls, setting)
    if issubclass(cls, Method):
        for data, preset in cls.published().items():
            values = ", ".join(f"{key} = {describe_value(value)}" for key, value in preset.items())
            console.print(f"Preset for {data}: {values}", highlight=False)
        if cls.presets:
            console.print("They apply when data.name is that name, or with --set method.preset=NAME.", highlight=False)
        console.print(f"Loss terms, whose means leave the client: {', '.join(_terms(cls()))}", highlight=False)
    console.print()


def _terms(method: Method) -> list[str]:
    exchanges = [exchange for stage in method.stages(1) for exchange in stage.exchanges]
    return list(dict.fromkeys(name for exchange in exchanges for name in term_names(exchange.phases).values()))


def _print_setting(console: Console, cls: type[Spec], name: str) -> None:
    """Print three lines: name and default; meaning; values, search range and source."""
    about = cls.settings()[name]
    default = "(required)" if about.required else f"= {describe_value(about.default)}"
    console.print(f"  [bold]{name}[/bold] {escape(default)}", highlight=False)
    console.print(Padding(about.help, (0, 0, 0, 6), expand=False), highlight=False, markup=False)
    facts = [describe_type(described(cls, name))]
    if about.search:
        facts.append(f"search: {describe_value(about.search) if isinstance(about.search, tuple) else about.search}")
    if about.source:
        facts.append(f"source: {about.source}")
    console.print(Padding("; ".join(facts), (0, 0, 0, 6), expand=False), style="dim", highlight=False, markup=False)


def shown_names() -> list[str]:
    entries = (entry for catalogue in listed().values() for entry in catalogue)
    return [*dict.fromkeys([*entries, *PLAIN, *shipped()])]


MARKUP = {  # what a terminal does not render: reStructuredText, then LaTeX
    r"^\.\. math::\n\n": "",
    r"(?::\w+:)?`+~?([^`]+)`+": r"\1",
    r"\*\*([^*\n]+)\*\*|\*(Choices[^*\n]*)\*": r"\1\2",
    r"&(?=[\\=])": "",
    r"^( +)&": r"\1",
    r" ?\\\\$|\\(?:Big|big)(?![a-z]) ?": "",
    r" ?\\(?:,|;|qquad|quad) ?": " ",
    r"\\(?:mathrm|text|operatorname)\{([^{}]*)\}": r"\1",
    r"\\leftarrow": "<-",
    r"\\langle ": "<",
    r" \\rangle": ">",
    r"\^\\top": "'",
    r"\\cdot": ".",
    r"\\\|": "||",
    r"\\([A-Za-z]+|[{}])": r"\1",
}


def plain(text: str) -> str:
    """A docstring as text for a terminal, without markup."""
    for pattern, replacement in MARKUP.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def describe_value(value: Any) -> str:
    """A default or published value, shortened."""
    if isinstance(value, tuple):
        return ", ".join(describe_value(item) for item in value) or "[]"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "(not set)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_type(schema: Mapping[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "$ref" in schema:
        return f"one of the {schema['$ref'].rpartition('/')[2]} (`fedshift list`), or a table with a name and settings"
    if "anyOf" in schema:
        return " | ".join(describe_type(option) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {describe_type(schema['items'])}" if schema.get("items") else "list"
    signs = {key: sign for key, sign in SIGNS.items() if key in schema and abs(schema[key]) < ANY_NUMBER}
    limits = ", ".join(f"{sign} {schema[key]:,.15g}" for key, sign in signs.items())
    kind = schema.get("type", "any")
    return " ".join(filter(None, (TYPES.get(kind if isinstance(kind, str) else kind[0], kind), limits)))


Schema = dict[str, Any]


SEARCH: Schema = {
    "description": "where `fedshift tune` looks, by the dotted names of settings: choices, or an interval",
    "type": "object",
}


def json_schema() -> Schema:
    """The JSON Schema of an experiment file; a list may stand for a single value, as it makes a run for each.

    Settings without a default are not required, since the command line may set them.
    """
    table = _table(Experiment)
    table["properties"] |= {"method": {"$ref": "#/$defs/method"}, "search": SEARCH}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An experiment of fedshift",
        **table,
        "$defs": {"method": _methods(), **{name: _choice(catalogue) for name, catalogue in catalogues().items()}},
    }


def listed() -> dict[str, Catalogue[Any]]:
    """Every catalogue that experiments, analyses and trackers use."""
    return catalogues() | {each.plural: each for each in (ANALYSES, TRACKERS)}


@cache
def catalogues() -> dict[str, Catalogue[Any]]:
    """Every catalogue from which an experiment, or one of its entries, selects an entry."""
    found: dict[str, Catalogue[Any]] = {}
    waiting = [METHODS, *NAMED.values()]
    while waiting:
        catalogue = waiting.pop(0)
        if catalogue not in found.values():
            found[catalogue.plural] = catalogue
            nested = [its for name in catalogue for its in catalogue.get(name).nested().values()]
            waiting += [its.catalogue for its in nested if isinstance(its, From)]
    return found


def described(cls: type[Spec], name: str) -> Schema:
    nested = cls.nested().get(name)
    schema = _properties(cls)[name]
    if isinstance(nested, From):
        key = next(key for key, catalogue in catalogues().items() if catalogue is nested.catalogue)
        return {key: schema[key] for key in ("description", "default") if key in schema} | {"$ref": f"#/$defs/{key}"}
    if nested:
        return _table(nested.cls)
    found: Schema = _for_toml(schema, is_text(cls.model_fields[name].annotation))
    return found


@cache
def _properties(cls: type[Spec]) -> Schema:
    properties: Schema = cls.model_json_schema()["properties"]
    return properties


def _for_toml(schema: Any, text: bool) -> Any:
    """The schema without null, which TOML lacks; a number may stand for a text."""
    if isinstance(schema, list):
        return [_for_toml(item, text) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    if text and schema.get("type") == "string" and "enum" not in schema:
        return {**schema, "type": ["string", "number"]}
    return {key: _for_toml(value, text) for key, value in schema.items() if not (key == "default" and value is None)}


def _table(cls: type[Spec], name: Schema | None = None) -> Schema:
    properties = {field: _or_list(described(cls, field)) for field in cls.settings()}
    named = {"name": name} if name else {}
    return {"type": "object", "properties": named | properties, "additionalProperties": False}


def _or_list(value: Schema) -> Schema:
    about: Schema = {key: value[key] for key in ("description", "default", "examples") if key in value}
    single = [value["items"]] if isinstance(value.get("items"), dict) else []
    return {**about, "anyOf": [value, *single, {"type": "array", "items": value, "minItems": 1}]}


def _choice(catalogue: Catalogue[Any]) -> Schema:
    tables = []
    for name in catalogue:
        cls = catalogue.get(name)
        tables.append({"title": name, **_table(cls, {"const": name, "description": cls.help().splitlines()[0]})})
    return {"anyOf": [{"enum": [*catalogue]}, *tables]}


def _methods() -> Schema:
    """The table [method]: an entry, with tables for single methods, or with a list of names."""
    own = {name: _table(METHODS.get(name)) for name in METHODS}
    published = sorted({data for name in METHODS for data in METHODS.get(name).presets})
    preset = {"description": "published settings, by a data set's name", "enum": published}
    choice = _choice(METHODS)
    for table in choice["anyOf"][1:]:
        table["properties"] |= {"preset": preset, **{name: {"$ref": f"#/$defs/method/own/{name}"} for name in own}}
    names = {"type": "array", "items": {"enum": [*METHODS]}, "minItems": 1, "uniqueItems": True}
    several = {"title": "several methods", "type": "object", "properties": {"name": names}, "required": ["name"]}
    return {**choice, "anyOf": [*choice["anyOf"], several], "own": own}
