"""A chart: a figure, the numbers drawn in it, and the words beside it."""

from __future__ import annotations

import csv
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK = "#010203"  # what is drawn in the colour of text: `currentColor` in an SVG file, so that a dark page shows it


@dataclass(frozen=True, eq=False, repr=False)
class Chart:
    """A figure with the numbers drawn in it.

    Attributes:
        name: of its files, such as "tsne-fedsr"; unique on a page.
        title: what it shows.
        about: how to read it, in a sentence or two.
        alt: for readers who do not see it: what is drawn, and the main finding.
        figure: what is drawn; with :func:`style` its text and axes follow the page's colours.
        data: the numbers in it, a row for each mark.
        method: the label of the only row of the tables that it is about; empty if it shows several.
    """

    name: str
    title: str
    about: str
    alt: str
    figure: Figure
    data: Sequence[Mapping[str, Any]]
    method: str = ""

    def __repr__(self) -> str:
        return f"Chart({self.name!r}, {len(self.data)} rows)"

    def svg(self) -> bytes:
        """As an SVG file; equal charts give equal files."""
        return as_svg(self.figure, self.name)

    def png(self) -> bytes:
        """As a PNG file, in which text is black on white."""
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None}, facecolor="white")
        return buffer.getvalue()

    def csv(self) -> str:
        """Its numbers as CSV."""
        return as_csv(self.data)

    def _repr_html_(self) -> str:
        return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(self.svg()).decode()}">'


def file_name(*words: str) -> str:
    """Words as the name of a file: letters, digits, dots and single hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-.")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, under every name that one of them has, in the order they come."""
    file = StringIO()
    writer = csv.DictWriter(file, [*dict.fromkeys(name for row in rows for name in row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def style() -> AbstractContextManager[None]:
    """A context in which matplotlib draws text, ticks and axes in the ink of the page."""
    inked = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    options: Any = inked | {"font.size": 9.0}
    return matplotlib.rc_context(options)


def as_svg(figure: Figure, salt: str = "fedshift") -> bytes:
    """The figure as an SVG file; equal figures with equal salts give equal files."""
    buffer = BytesIO()
    # Numbers stay text, in whatever font the reader has.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue().replace(INK.encode(), b"currentColor")
