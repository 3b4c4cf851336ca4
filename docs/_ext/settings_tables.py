"""Tables of settings, from the fields of a Spec."""

from __future__ import annotations

from typing import Any

from markup import cell, table

from fedshift.cli.catalogues import describe_type, describe_value, described
from fedshift.spec import Spec

HEAD = ("setting", "default", "meaning", "values", "searched")
SIGNS = {">=": "≥", "<=": "≤"}


def settings_table(cls: type[Spec], without: type[Spec] | None = None) -> list[str]:
    """The lines of a table of the settings, except for those that ``without`` has with the same declaration."""
    known = without.settings() if without else {}
    return table(HEAD, [_row(cls, name) for name, about in cls.settings().items() if known.get(name) != about])


def _row(cls: type[Spec], name: str) -> tuple[str, ...]:
    about = cls.settings()[name]
    default = "required" if about.required else _default(about.default)
    search = about.search if isinstance(about.search, tuple) else str(about.search or "")
    searched = describe_value(search) if search else ""
    values = describe_type(described(cls, name)).replace(" (`fedshift list`)", "")
    for sign, printed in SIGNS.items():
        values = values.replace(sign, printed)
    meaning = f"{about.help} ({about.source})" if about.source else about.help
    return f"`{name}`", default, cell(meaning), cell(values), cell(searched)


def _default(value: Any) -> str:
    if isinstance(value, Spec):
        return "see below"
    text = describe_value(value)
    return "not set" if text == "(not set)" else f"`{text}`" if text else '`""`'
