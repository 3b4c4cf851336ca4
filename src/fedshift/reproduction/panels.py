"""The panels of tables and curves: a federation of a paper, as published, and how each scale changes it.

A file is an experiment without a method, as the paper has it, and a table ``[panel]``: ``title``; ``columns``, what is
read off its runs, by heading; ``open``, what the paper leaves open or is another thing here; and for every scale that
has the panel a table with ``settings`` (dotted), and perhaps ``experiment``, the name of a shipped experiment that
takes the place of the file's, and a ``title`` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from fedshift.errors import UnknownNameError
from fedshift.settings.grid import read
from fedshift.settings.written import parse_toml

AS_PRINTED = "paper"  # the scale that is as the papers have it


@dataclass(frozen=True)
class Size:
    """A panel at a scale.

    Attributes:
        experiment: the tables of the experiment that it begins with.
        settings: dotted settings that differ from it.
        title: what it is, where that is not as in the paper.
    """

    experiment: Mapping[str, Any]
    settings: Mapping[str, Any]
    title: str = ""

    @property
    def data(self) -> str:
        """The name of its data set."""
        return str(self.settings.get("data.name", self.experiment["data"]["name"]))


@dataclass(frozen=True)
class Panel:
    """A federation of a paper.

    Attributes:
        name: the file's.
        title: over its columns.
        columns: what :func:`fedshift.reproduction.scores.score` reads off its runs, by heading.
        sizes: by the scale's name.
        open: what the paper leaves open, or is another thing here at any scale.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    sizes: Mapping[str, Size]
    open: str = ""

    def title_at(self, scale: str) -> str:
        """The title at a scale, which says it where other data stand in the place of the paper's."""
        size = self.sizes[scale]
        if self.has_its_data(scale):
            return size.title or self.title
        return f"{size.title or size.data} in the place of {self.title}"

    def has_its_data(self, scale: str) -> bool:
        """Whether the data set of a scale is the paper's, so that numbers can be compared."""
        return self.sizes[scale].data == self.sizes[AS_PRINTED].data

    @classmethod
    def of(cls, name: str, text: str) -> Panel:
        """The panel that a file describes."""
        tables = parse_toml(text, f"the panel '{name}'")
        about = tables.pop("panel")
        named = {key: about.pop(key) for key in ("title", "columns", "open") if key in about}
        return cls(name, sizes={scale: _size(tables, **size) for scale, size in about.items()}, **named)


def _size(tables: Mapping[str, Any], settings: Mapping[str, Any], experiment: str = "", title: str = "") -> Size:
    return Size(read(experiment) if experiment else tables, settings, title)


@cache
def panels() -> Mapping[str, Panel]:
    """Every panel by name."""
    entries = (resources.files(__package__) / "panels").iterdir()
    texts = {entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8") for entry in entries}
    return {name: Panel.of(name, texts[name]) for name in sorted(texts)}


@dataclass(frozen=True)
class Scale:
    """How large a table is carried out.

    Attributes:
        name: "smoke", "short" or "paper".
        about: what it is for.
        seeds: of its runs.
        compared: whether its numbers can be compared with the paper's.
        panels: how many of a table's panels it has, the first ones; None: all.
        settings: dotted settings of every panel.
        methods: settings of single methods, by their names.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    compared: bool = True
    panels: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@cache
def scales() -> Mapping[str, Scale]:
    """Every scale by name, from small to large."""
    text = (resources.files(__package__) / "scales.toml").read_text(encoding="utf-8")
    tables = parse_toml(text, "the scales of reproductions")
    return {name: Scale(name, seeds=tuple(table.pop("seeds")), **table) for name, table in tables.items()}


def scale_of(name: str) -> Scale:
    """The scale of a name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in scales():
        raise UnknownNameError("scale", name, [*scales()])
    return scales()[name]
