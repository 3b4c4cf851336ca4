"""What ``fedshift schema`` prints: every table and setting of an experiment on one page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from fedshift.cli.catalogues import default_in_words, plain, type_in_words
from fedshift.cli.console import open_console
from fedshift.settings.catalogue import Catalogue, Entry
from fedshift.settings.experiment import DEFAULT_NAMES, NAMED, PLAIN, Experiment
from fedshift.settings.schema import CATALOGUES, json_schema
from fedshift.settings.spec import Spec, setting_type

INTRODUCTION = (
    "An experiment is a TOML file; only what differs from the defaults need stand in it. A list where one value is "
    "expected makes a run for each."
)


@dataclass(frozen=True)
class Field:
    """A setting, in words."""

    name: str
    default: str
    type: str
    help: str
    source: str


@dataclass(frozen=True)
class Part:
    """A table of an experiment, or what an entry adds to it."""

    title: str
    help: str
    fields: tuple[Field, ...]
    level: int = 2


def print_schema(form: str) -> None:
    """Print the schema as text, Markdown or JSON Schema."""
    if form == "json":
        typer.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))
    elif form == "markdown":
        typer.echo("\n".join(_markdown()))
    else:
        _print_text(open_console())


def parts() -> Iterator[Part]:
    """The tables in the order of a file, each followed by its entries."""
    top = [name for name in Experiment.settings() if name not in (*NAMED, *PLAIN)]
    yield Part("the file", "Before any table.", tuple(_field(Experiment, name) for name in top))
    for name, cls in PLAIN.items():
        yield Part(f"[{name}]", _first_line(Entry(cls)), tuple(_field(cls, field) for field in cls.settings()))
    for name, catalogue in NAMED.items():
        yield from _catalogue(f"[{name}]", catalogue, DEFAULT_NAMES[name])
    for catalogue in CATALOGUES.values():
        if catalogue not in NAMED.values():
            yield from _catalogue(f"{catalogue.kind} (a setting of some methods)", catalogue, "")


def _catalogue(title: str, catalogue: Catalogue[Any], default: str) -> Iterator[Part]:
    """The settings that all entries have, and then those of each."""
    base = catalogue.base()
    several = "; or a list" if title == "[method]" else ""
    chosen = Field("name", f'= "{default}"' if default else "(required)", f"{' | '.join(catalogue)}{several}", "", "")
    common = [_field(base, name) for name in base.settings()]
    if title == "[method]":
        common.append(Field("preset", "", "text", "published settings, by a data set's name; by default data.name", ""))
    article = "An" if catalogue.kind[0] in "aeiou" else "A"
    yield Part(title, f"{article} {catalogue.kind}; all have:", (chosen, *common))
    for name in catalogue:
        entry = catalogue.get(name)
        own = [_field(entry.cls, field) for field in entry.settings() if not _same(base, entry.cls, field)]
        heading = f'{title.rstrip("]")}] name = "{name}"' if title.startswith("[") else f"{catalogue.kind} {name}"
        yield Part(heading, _first_line(entry), tuple(own), level=3)


def _same(base: type[Spec], cls: type[Spec], name: str) -> bool:
    return name in base.settings() and _field(base, name) == _field(cls, name)


def _field(cls: type[Spec], name: str) -> Field:
    about = cls.settings()[name]
    default, values = default_in_words(about.default), type_in_words(setting_type(cls, name))
    return Field(name, default, values, about.metadata["help"], about.metadata["source"])


def _first_line(entry: Entry[Any]) -> str:
    return plain(entry.help.splitlines()[0]) if entry.help else ""


def _print_text(console: Console) -> None:
    console.print(INTRODUCTION, highlight=False)
    for part in parts():
        console.print(f"\n{'' if part.level == 2 else '  '}[bold]{escape(part.title)}[/bold]", highlight=False)
        console.print(Padding(part.help, (0, 0, 0, 2), expand=False), highlight=False, markup=False)
        for field in part.fields:
            console.print(f"    [bold]{field.name}[/bold] {escape(field.default)}", highlight=False, soft_wrap=True)
            about = "; ".join(word for word in (field.help, field.type, field.source) if word)
            console.print(Padding(about, (0, 0, 0, 8), expand=False), style="dim", highlight=False, markup=False)


def _markdown() -> Iterator[str]:
    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    yield f"# An experiment\n\n{INTRODUCTION}"
    for part in parts():
        yield f"\n{'#' * part.level} `{part.title}`\n\n{part.help}"
        if part.fields:
            yield "\n| setting | default | values | what it is | source |\n|---|---|---|---|---|"
        for field in part.fields:
            cells = (f"`{field.name}`", field.default.removeprefix("= "), field.type, field.help, field.source)
            yield f"| {' | '.join(map(cell, cells))} |"
