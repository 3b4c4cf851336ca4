"""What ``fedshift show`` prints of an experiment: the settings with which its runs would go, and where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.reporting.results import flattened
from fedshift.settings.change import opened
from fedshift.settings.experiment import DEFAULT_NAMES, Experiment
from fedshift.settings.grid import expand, read_changed
from fedshift.settings.written import Written


def print_resolved(console: Console, name: str, changes: Mapping[str, Written]) -> None:
    """Print the runs of an experiment: the settings that all share, then what each method has beside these."""
    change = read_changed(name, changes)
    for note in change.left_out:
        console.print(f"Note: {note}", highlight=False, markup=False)
    try:
        experiments = expand(change.document)
    except FedshiftError as error:
        console.print(f"As it stands it cannot run: {error}", highlight=False, markup=False)
        return
    runs = [(one.method_name, _settings(one)) for one in experiments]
    first, others = runs[0][1], [settings for _, settings in runs[1:]]
    shared = {key: [value] for key, value in first.items() if all(other.get(key) == value for other in others)}

    def show(title: str, methods: Mapping[str, None], settings: Mapping[str, list[Any]]) -> None:
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("setting", no_wrap=True)  # a name that is cut cannot be copied
        table.add_column("value", overflow="fold")
        table.add_column("from")
        for key, values in settings.items():
            sources = dict.fromkeys(_origin(key, method, change.document, changes) for method in methods)
            table.add_row(escape(key), escape(" | ".join(map(_text, values))), ", ".join(sources))
        console.print(table)
        console.print()

    methods = dict.fromkeys(method for method, _ in runs)
    show("1 run, with" if len(runs) == 1 else f"{len(runs)} runs, all with", methods, shared)
    for method in methods:
        its = [settings for name, settings in runs if name == method]
        own: dict[str, list[Any]] = {}
        for settings in its:
            for key, value in settings.items():
                if key not in shared and value not in own.setdefault(key, []):
                    own[key].append(value)
        if own:
            show(f"{method}, {'1 run' if len(its) == 1 else f'{len(its)} runs'}, with", {method: None}, own)


def _settings(experiment: Experiment) -> dict[str, Any]:
    """All settings by dotted name, those of [run] as well."""
    table = experiment.table()
    return {**flattened(table), **{f"run.{key}": value for key, value in table["run"].items()}}


def _origin(key: str, method: str, document: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Where a setting of a run comes from."""
    path = key.split(".")
    given = [path]
    if path[0] == "method" and path[1] != "name":
        given.append(["method", method, *path[1:]])
    if any(".".join(names[:depth]) in changes for names in given for depth in range(1, len(names) + 1)):
        return "command line"
    if any(_holds(document, names) for names in given):
        return "file"
    if path[0] == "method" and len(path) == 2:
        held = opened(document.get("method"))
        preset = held.get("preset", opened(document.get("data")).get("name", DEFAULT_NAMES["data"]))
        if path[1] in METHODS.get(method).presets.get(str(preset), {}):
            return f"published for {preset}"
    return "default"


def _holds(document: Mapping[str, Any], path: list[str]) -> bool:
    held: Any = document
    for name in path:
        held = opened(held)
        if name not in held:
            return False
        held = held[name]
    return True


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
