"""What ``fedshift list`` and ``fedshift show`` print."""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from fedshift.core.contract import term_names
from fedshift.core.method import Method
from fedshift.datasets import DATASETS
from fedshift.errors import UnknownNameError
from fedshift.experiments import shipped, shipped_text
from fedshift.federation import PARTITIONS, PROTOCOLS
from fedshift.methods import METHODS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.models import MODELS
from fedshift.settings.catalogue import Catalogue, Entry, From
from fedshift.settings.experiment import PLAIN
from fedshift.settings.spec import Spec, setting_type

KINDS: dict[str, Catalogue[Any]] = {
    "methods": METHODS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "models": MODELS,
    "protocols": PROTOCOLS,
    "indices": INDICES,
    "encoders": ENCODERS,
}
TYPES = {
    "NoneType": "none",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true | false",
    "dict": "table",
}


def print_list(kind: str) -> None:
    """Print the names of one kind, or of all, each with a line about it."""
    kinds = [*KINDS, "experiments"]
    if kind not in (*kinds, "all"):
        raise UnknownNameError("kind", kind, [*kinds, "all"])
    console = Console()
    for one in kinds if kind == "all" else [kind]:
        table = Table(title=one, title_justify="left", box=None, show_header=False, padding=(0, 3, 0, 0))
        if one == "experiments":
            lines = {name: shipped_text(name).splitlines()[0].lstrip("# ") for name in shipped()}
        else:
            lines = {name: KINDS[one].get(name).help.splitlines()[0] for name in KINDS[one]}
        for name, line in lines.items():
            paper = METHODS.get(name).paper if one == "methods" else ""
            table.add_row(f"[bold]{name}[/bold]", line, f"[dim]{paper}[/dim]")
        console.print(table)
        console.print()


def print_settings(name: str) -> None:
    """Print what one named thing is and every setting it has."""
    console = Console()
    if name in shipped() and all(name not in catalogue for catalogue in KINDS.values()):
        console.print(shipped_text(name), highlight=False, markup=False, soft_wrap=True)
        return
    entry = _find(name)
    page = sys.modules[entry.cls.__module__].__doc__ or ""
    console.print(f"[bold]{name}[/bold]: {_plain(entry.help)}\n", highlight=False, soft_wrap=True)
    if "Choices" in page:
        console.print(_plain(page.strip()) + "\n", highlight=False, markup=False, soft_wrap=True)
    prefix = next((catalogue.table for catalogue in KINDS.values() if name in catalogue), name)
    console.print(f"Settings, with defaults (--set {prefix}.NAME=VALUE):\n", highlight=False)
    inherited = Method.settings() if issubclass(entry.cls, Method) else {}
    for setting in sorted(entry.settings(), key=lambda setting: setting in inherited):
        _print_setting(console, entry.cls, setting)
    for data, preset in entry.presets.items():
        values = ", ".join(f"{key} = {_value(value)}" for key, value in preset.items())
        console.print(f"Published for {data}: {values}", highlight=False)
    if issubclass(entry.cls, Method):
        console.print(f"Loss terms that clients tell: {', '.join(_terms(entry()))}", highlight=False)
    if entry.presets:
        console.print("They apply when data.name is that name, or with --set method.preset=NAME.", highlight=False)


def _terms(method: Method) -> list[str]:
    """The names of all that clients tell of their losses, in every exchange."""
    exchanges = [exchange for stage in method.stages(1) for exchange in stage.exchanges]
    return list(dict.fromkeys(name for exchange in exchanges for name in term_names(exchange.phases).values()))


def _print_setting(console: Console, cls: type[Spec], name: str) -> None:
    """Three lines: name and default; what it means; values, search range and source."""
    field = cls.settings()[name]
    about = field.metadata
    default = "(required)" if field.default is MISSING else f"= {_value(field.default)}"
    console.print(f"  [bold]{name}[/bold] {default}", highlight=False)
    console.print(Padding(about.get("help", ""), (0, 0, 0, 6)), highlight=False, markup=False)
    facts = [_type(setting_type(cls, name))]
    if search := about.get("search"):
        facts.append(f"search: {_value(search) if isinstance(search, tuple) else search}")
    if about.get("source"):
        facts.append(f"source: {about['source']}")
    console.print(Padding("; ".join(facts), (0, 0, 0, 6)), style="dim", highlight=False, markup=False)


def shown_names() -> list[str]:
    """Every name that :func:`print_settings` knows."""
    return [*dict.fromkeys([*(entry for catalogue in KINDS.values() for entry in catalogue), *PLAIN, *shipped()])]


def _find(name: str) -> Entry[Any]:
    for catalogue in KINDS.values():
        if name in catalogue:
            return catalogue.get(name)
    if name in PLAIN:
        return Entry(PLAIN[name])
    raise UnknownNameError("name", name, shown_names(), hint="`fedshift list` shows them with a line each.")


def _plain(text: str) -> str:
    """A docstring without the marks that only a documentation tool reads."""
    return re.sub(r"(?::\w+:)?`+~?([^`]+)`+", r"\1", text).replace("*Choices", "Choices").replace("Choices*", "Choices")


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_value(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type(hint: Any) -> str:
    """A type and its limits, for a reader."""
    if get_origin(hint) is Literal:
        return " | ".join(str(value) for value in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}" if get_args(hint) else "list"
    if metadata := getattr(hint, "__metadata__", None):
        for mark in metadata:
            if isinstance(mark, From):
                return f"{mark.catalogue.kind}: a name (`fedshift list`), or a table with a name and its settings"
        limits = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        bounds = [
            f"{sign} {getattr(limit, name):g}"
            for limit in metadata
            for name, sign in limits.items()
            if getattr(limit, name, None) is not None
        ]
        return f"{_type(get_args(hint)[0])} {', '.join(bounds)}"
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_type(option) for option in get_args(hint))
    return TYPES.get(getattr(hint, "__name__", ""), str(hint))
