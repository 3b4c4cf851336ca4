"""What ``fedshift list`` prints, and ``fedshift show`` of a catalogue's entry."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedshift.cli.console import open_console
from fedshift.core.contract import term_names
from fedshift.core.method import Averaging, Method
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import shipped, shipped_text
from fedshift.methods import METHODS
from fedshift.settings.catalogue import Entry, From
from fedshift.settings.experiment import PLAIN
from fedshift.settings.grid import text_of
from fedshift.settings.schema import CATALOGUES
from fedshift.settings.spec import Spec, limits, setting_type
from fedshift.settings.written import Written

KINDS = CATALOGUES
ANY_NUMBER = 2**62  # a limit beyond it says no more than how a number is stored
BEGINS_AN_ITEM = r" *(?:-|\d+\.) +|(?=\|)"
TYPES = {
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
    console = open_console()
    for one in kinds if kind == "all" else [kind]:
        table = Table(title=one, title_justify="left", box=None, show_header=False, padding=(0, 3, 0, 0))
        if one == "experiments":
            lines = {name: shipped_text(name).splitlines()[0].lstrip("# ") for name in shipped()}
        else:
            lines = {name: KINDS[one].get(name).help.splitlines()[0] for name in KINDS[one]}
        for name, line in lines.items():
            about = escape(plain(line)).removesuffix(".")
            paper = f" [dim]({METHODS.get(name).paper})[/dim]" if one == "methods" else ""
            table.add_row(f"[bold]{escape(name)}[/bold]", f"{about}{paper}.")
        console.print(table)
        console.print()


def print_named(name: str, changes: Mapping[str, Written]) -> None:
    """Print whatever has a name: entries and tables with every setting, an experiment with what it would run.

    Raises:
        UnknownNameError: nothing has that name.
        FedshiftError: there are changes, and no experiment that they could change.
    """
    console = open_console()
    entries = [(catalogue.table, catalogue.get(name)) for catalogue in KINDS.values() if name in catalogue]
    entries += [(name, Entry(PLAIN[name]))] if name in PLAIN else []
    is_experiment = name in shipped() or Path(name).suffix == ".toml" or Path(name).is_file()
    if not entries and not is_experiment:
        raise UnknownNameError("name", name, shown_names(), hint="`fedshift list` shows them with a line each.")
    if changes and not is_experiment:
        raise FedshiftError(
            f"--set changes an experiment, and '{name}' is none; `fedshift list experiments` names them."
        )
    for table, entry in entries:
        _print_entry(console, name, table, entry)
    if is_experiment:
        from fedshift.cli.resolved import print_resolved

        text = shipped_text(name) if name in shipped() else text_of(Path(name))
        console.print(f"[bold]The experiment {escape(name)}[/bold]\n", highlight=False)
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        print_resolved(console, name, changes)


def _print_entry(console: Console, name: str, prefix: str, entry: Entry[Any]) -> None:
    """What an entry or a table is, and every setting it has."""
    page = sys.modules[entry.cls.__module__].__doc__ or ""
    console.print(f"[bold]{name}[/bold]: {escape(plain(entry.help))}\n", highlight=False)
    if "Choices" in page:
        page = fitted(plain(page.strip()), console.width)
        console.print(f"{page}\n", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Settings, with defaults (--set {prefix}.NAME=VALUE):\n", highlight=False)
    inherited = Averaging.settings() if issubclass(entry.cls, Method) else {}
    for setting in sorted(entry.settings(), key=lambda setting: setting in inherited):
        _print_setting(console, entry.cls, setting)
    if entry.presets:
        console.print()
    for data, preset in entry.presets.items():
        values = ", ".join(f"{key} = {value_in_words(value)}" for key, value in preset.items())
        console.print(f"Published for {data}: {values}", highlight=False)
    if entry.presets:
        console.print("They apply when data.name is that name, or with --set method.preset=NAME.", highlight=False)
    if issubclass(entry.cls, Method):
        console.print(f"Loss terms, whose means leave the client: {', '.join(_terms(entry()))}", highlight=False)
    console.print()


def _terms(method: Method) -> list[str]:
    """The names of the loss terms of every exchange."""
    exchanges = [exchange for stage in method.stages(1) for exchange in stage.exchanges]
    return list(dict.fromkeys(name for exchange in exchanges for name in term_names(exchange.phases).values()))


def _print_setting(console: Console, cls: type[Spec], name: str) -> None:
    """Three lines: name and default; what it means; values, search range and source."""
    field = cls.settings()[name]
    about = field.metadata
    console.print(f"  [bold]{name}[/bold] {escape(default_in_words(field.default))}", highlight=False)
    console.print(Padding(about.get("help", ""), (0, 0, 0, 6), expand=False), highlight=False, markup=False)
    facts = [type_in_words(setting_type(cls, name))]
    if search := about.get("search"):
        facts.append(f"search: {value_in_words(search) if isinstance(search, tuple) else search}")
    if about.get("source"):
        facts.append(f"source: {about['source']}")
    console.print(Padding("; ".join(facts), (0, 0, 0, 6), expand=False), style="dim", highlight=False, markup=False)


def shown_names() -> list[str]:
    """Every name that :func:`print_named` knows."""
    return [*dict.fromkeys([*(entry for catalogue in KINDS.values() for entry in catalogue), *PLAIN, *shipped()])]


def plain(text: str) -> str:
    """A docstring without the marks that only a documentation tool reads."""
    return re.sub(r"\*(Choices[^*\n]*)\*", r"\1", re.sub(r"(?::\w+:)?`+~?([^`]+)`+", r"\1", text))


def fitted(text: str, width: int) -> str:
    """A text in which paragraphs and items of lists are wrapped again where a line is longer than ``width``."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if not blocks or not line.strip() or not blocks[-1][-1].strip() or re.match(BEGINS_AN_ITEM, line):
            blocks.append([])
        blocks[-1].append(line)
    return "\n".join("\n".join(lines) if max(map(len, lines)) <= width else _wrapped(lines, width) for lines in blocks)


def _wrapped(lines: list[str], width: int) -> str:
    """The lines of one paragraph or item, wrapped again; what follows the first is indented as its text is."""
    mark = re.match(BEGINS_AN_ITEM, lines[0])
    further = " " * (mark.end() if mark else len(lines[0]) - len(lines[0].lstrip()))
    first = mark[0] if mark else further
    words = " ".join(line.strip() for line in lines)[len(first.lstrip()) :]
    return textwrap.fill(
        words, width, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def default_in_words(default: Any) -> str:
    """What follows a setting's name; None is the default of what can only be left out, as TOML has no word for it."""
    if default is MISSING:
        return "(required)"
    return "(not set)" if default is None else f"= {value_in_words(default)}"


def value_in_words(value: Any) -> str:
    """A default or published value, short."""
    if isinstance(value, tuple):
        return ", ".join(value_in_words(item) for item in value) or "[]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def type_in_words(hint: Any) -> str:
    """A type and its limits, for a reader."""
    if get_origin(hint) is Literal:
        return " | ".join(str(value) for value in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {type_in_words(get_args(hint)[0])}" if get_args(hint) else "list"
    if metadata := getattr(hint, "__metadata__", None):
        for mark in metadata:
            if isinstance(mark, From):
                return f"{mark.catalogue.kind}: a name (`fedshift list`), or a table with a name and its settings"
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "limit": "<="}
        bounds = {
            sign: f"{sign} {_number(getattr(limit, name))}"
            for limit in limits(hint)
            for name, sign in signs.items()
            if getattr(limit, name, None) is not None and abs(getattr(limit, name)) < ANY_NUMBER
        }
        return " ".join([type_in_words(get_args(hint)[0]), *([", ".join(bounds.values())] if bounds else [])])
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(type_in_words(option) for option in get_args(hint) if option is not type(None))
    return TYPES.get(getattr(hint, "__name__", ""), str(hint))


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
