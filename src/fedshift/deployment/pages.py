"""The pages that members read, from templates: READMEs, the audit page, and the files of containers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache, partial
from shlex import join
from typing import Any

import jinja2

from fedshift.deployment import shell

WIDEST = 100  # columns of a command before it is written on several lines


def render(template: str, **values: Any) -> str:
    """A page.

    Args:
        template: its file in the folder ``templates``, without the suffix.
        values: what the template names.
    """
    return _templates().get_template(f"{template}.jinja").render(shell=shell, **values)


@cache  # each template is compiled once for all members
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(  # what is made is read as text or run by a shell, never as HTML
        loader=jinja2.PackageLoader("fedshift", "deployment/templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["typed"] = _typed
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    environment.filters["code"] = _code
    environment.filters["codes"] = _codes
    return environment


def _typed(command: shell.Command) -> str:
    """A command as it is typed; a long one on several lines, a line for each option."""
    line = join(command)
    return line if len(line) <= WIDEST else line.replace(" --", " \\\n    --")


def _code(text: str) -> str:
    """A name as Markdown shows it letter by letter, also in a table."""
    plain = text.replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def _codes(names: Iterable[str], most: int | None = None) -> str:
    """Names between commas, each once; with ``most``, the first ones and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - most} more" if most is not None and len(distinct) > most else ""
    return ", ".join(map(_code, distinct[:most])) + more
