"""Markdown of the generated pages: tables, and text that was written as reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*(?: [a-z]+\.[\w.]+=[^\s),;]+)?)")  # on the command line
CODE = re.compile(r"(`[^`]+`|\$[^$]+\$)")


def markdown(text: str) -> str:
    """A docstring's paragraph as Markdown on one line."""
    text = " ".join(text.split())
    text = re.sub(r"(?<!\w)\$|\$(?!\w)", r"\\$", text)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = text.replace("``", "`")
    pieces = CODE.split(text)
    pieces[::2] = [OPTION.sub(r"`\1`", piece) for piece in pieces[::2]]
    pieces = CODE.split("".join(pieces))
    pieces[::2] = [re.sub(r"([<*_])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return markdown(text).replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table without the columns that are empty in every row."""
    columns = [column for column in zip(head, *rows, strict=True) if any(column[1:])]
    if not columns:
        return []
    first, *others = zip(*columns, strict=True)
    return [_row(first), "|" + "---|" * len(first), *map(_row, others)]


def write(path: Path, lines: Iterable[str]) -> None:
    """Write a page; Sphinx does not rebuild an unchanged page."""
    text = "\n".join(lines) + "\n"
    path.parent.mkdir(exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
