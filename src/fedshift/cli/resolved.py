"""What ``fedshift show`` prints of an experiment: the settings with which its runs would go, and where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedshift.errors import FedshiftError
from fedshift.experiments import DEFAULT_NAMES
from fedshift.methods import METHODS
from fedshift.reporting.results import flat
from fedshift.study.grid import expand, override, read

Values = dict[str, list[Any]]


def print_resolved(console: Console, name: str, changes: Mapping[str, Any]) -> None:
    """Print the runs of an experiment: the settings that all share, then what each method has beside these."""
    document = override(read(name), changes, lambda line: console.print(f"Note: {line}", highlight=False, markup=False))
    try:
        experiments = expand(document)
    except FedshiftError as error:
        console.print(f"As it stands it cannot run: {error}", highlight=False, markup=False)
        return
    runs: dict[str, list[dict[str, Any]]] = {}
    for one in experiments:
        runs.setdefault(one.method_name, []).append(flat(one.table()))
    every = [settings for its in runs.values() for settings in its]
    shared = {key for key, value in every[0].items() if all(key in its and its[key] == value for its in every)}
    _print(console, f"{len(every)} runs, all with", _values(every[:1], shared), document, changes, [*runs])
    for method, its in runs.items():
        own = _values(its, {key for settings in its for key in settings} - shared)
        if own:
            _print(console, f"{method}, {len(its)} runs, with", own, document, changes, [method])


def _values(runs: list[dict[str, Any]], keys: set[str]) -> Values:
    """The different values of some settings."""
    found: Values = {}
    for settings in runs:
        for key, value in settings.items():
            if key in keys and value not in found.setdefault(key, []):
                found[key].append(value)
    return found


def _print(
    console: Console,
    title: str,
    settings: Values,
    document: Mapping[str, Any],
    changes: Mapping[str, Any],
    methods: list[str],
) -> None:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("setting", no_wrap=True)  # a name that is cut cannot be copied
    table.add_column("value", overflow="fold")
    table.add_column("from")
    for key, values in settings.items():
        text = " | ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
        sources = dict.fromkeys(_origin(key, method, document, changes) for method in methods)
        table.add_row(escape(key), escape(text), ", ".join(sources))
    console.print(table)
    console.print()


def _origin(key: str, method: str, document: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Where a setting of a run comes from."""
    keys = (key, key.replace("method.", f"method.{method}.", 1))
    names = {*keys, *(each.removesuffix(".name") for each in keys)}
    if any(name == change or name.startswith(f"{change}.") for name in names for change in changes):
        return "command line"
    if names & {*flat(document)}:
        return "file"
    table, _, setting = key.partition(".")
    preset = _setting(document, "method", "preset") or _setting(document, "data", "name") or DEFAULT_NAMES["data"]
    published = table == "method" and setting in METHODS.get(method).presets.get(str(preset), {})
    return f"published for {preset}" if published else "default"


def _setting(document: Mapping[str, Any], table: str, name: str) -> Any:
    held = document.get(table)
    return held.get(name) if isinstance(held, Mapping) else held if name == "name" else None
