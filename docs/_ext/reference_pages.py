"""Sphinx extension that generates the reference pages of methods, commands and settings from the package.

Before a build it writes ``methods.md``, ``methods/PAGE.md``, ``commands.md`` and ``settings.md`` into the
documentation's folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer.main
from markup import cell, markdown, table, write
from method_pages import method_page, methods_index, pages
from settings_tables import settings_table
from typer.models import ArgumentInfo

from fedshift.cli.app import app as command_line
from fedshift.cli.catalogues import listed
from fedshift.experiments import PLAIN, Experiment
from fedshift.spec import Spec

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("builder-inited", lambda app: generate(Path(app.srcdir)))
    return {"parallel_read_safe": True}


def generate(docs: Path) -> None:
    """Write all generated pages into a folder."""
    write(docs / "methods.md", methods_index())
    for page, names in pages().items():
        write(docs / "methods" / f"{page}.md", method_page(page, names, docs))
    write(docs / "commands.md", commands_page())
    write(docs / "settings.md", settings_page())


def commands_page() -> Iterator[str]:
    """Every command with its options and examples."""
    yield from ("# Commands", "", "`fedshift COMMAND --help` prints the same in the terminal.", "")
    for path, command in _commands(typer.main.get_command(command_line), "fedshift"):
        yield from (f"## {path}", "", markdown(command.help or ""), "", *_examples(command.epilog or ""), "")
        yield from (
            *table(("option", "meaning", "values", "default"), [_option(command, each) for each in command.params]),
            "",
        )


def settings_page() -> Iterator[str]:
    """Every table of an experiment and every entry's settings, except those of methods."""
    yield from (
        "# Settings",
        "",
        "An experiment is a TOML file that lists only the settings that differ from the defaults; a list in place of a",
        "single value creates a run for each. Method settings are on the [methods' pages](methods.md).",
    )
    tables: dict[str, type[Spec]] = {"Top level": Experiment}
    tables |= {f"[{name}]": cls for name, cls in PLAIN.items()}
    for title, cls in tables.items():
        yield from ("", f"## {title}", "", *settings_table(cls))
    for plural, catalogue in listed().items():
        if catalogue.kind == "method":
            continue
        yield from ("", f"## {plural[:1].upper()}{plural[1:]}")
        for name in catalogue:
            cls = catalogue.get(name)
            yield from ("", f"### {name}", "", markdown(cls.help().partition("\n\n")[0]), "")
            yield from settings_table(cls) or ["No settings."]


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, sub in command.commands.items():
        if hasattr(sub, "commands"):
            yield from _commands(sub, f"{path} {name}")
        else:
            yield f"{path} {name}", sub


def _examples(epilog: str) -> list[str]:
    """The lines that run a command as a block of code, the others as text."""
    lines = [line.strip() for line in inspect.cleandoc(epilog).splitlines()]
    code = [line for line in lines if line.startswith("fedshift ")]
    text = [markdown(line) for line in lines if line and line not in code and line != "Examples:"]
    return [*(["```bash", *code, "```"] if code else []), "", *text]


def _option(command: Any, option: Any) -> tuple[str, ...]:
    argument = option.param_type_name == "argument"
    words = f"`{option.name.upper()}`" if argument else ", ".join(f"`{word}`" for word in option.opts)
    kind = "" if getattr(option, "is_flag", False) else option.type.name.replace("integer range", "integer")
    limit = getattr(option.type, "min", None)
    values = kind if limit is None else f"{kind} ≥ {limit}"
    default = "" if option.default in (None, False, ()) or callable(option.default) else f"`{option.default}`"
    meaning = getattr(option, "help", None) or (_argument_help(command, option.name) if argument else "")
    return words, cell(meaning), values, "required" if option.required else default


def _argument_help(command: Any, name: str) -> str:
    """The help of an argument from the command's signature, because click 8.5 drops typer's."""
    annotation = inspect.signature(command.callback, eval_str=True).parameters[name].annotation
    found = [each.help for each in get_args(annotation) if isinstance(each, ArgumentInfo)]
    return found[0] or "" if found else ""
