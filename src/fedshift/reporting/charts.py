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
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.written import printable

# Okabe and Ito's colours, which readers who see red and green alike can tell apart, and three more.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F", "#9467BD", "#17BECF"]
MARKERS = "osD^vP*X"
MOST_LABELLED = 12  # cells in a row of a heat map that hold their number
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


def inline(chart: Chart, number: int) -> Markup:
    """A chart as an element of a page, which follows the page's colours; its identifiers begin with the number.

    What is drawn under the identifier ``row-N`` is of the N-th row of the tables, and gets the class ``row-N``.
    """
    text = chart.svg().decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'id="row-(\d+)[^"]*"', r'class="row-\1"', text)
    referred = {*re.findall(r'(?:url\(|href=")#([\w.-]+)', text)}
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="c{number}-{found[1]}"' if found[1] in referred else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\1#c{number}-", text)
    # Hundredths of a point are finer than any screen.
    text = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    named = f'<svg role="img" aria-label="{escape(printable(chart.alt))}"'
    return Markup(text.replace("<svg", named, 1))  # matplotlib wrote the rest


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


def draw_heat_map(
    axis: Axes,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    limits: tuple[float, float],
    unit: str,
    decimals: int = 2,
) -> None:
    """Draw a matrix, each cell with its number where they are few.

    Args:
        axis: where.
        values: by row and column.
        rows: the rows' names.
        columns: the columns' names.
        limits: the values of the lightest and the darkest colour.
        unit: what is shown, beside the scale.
        decimals: of the numbers.
    """
    low, high = limits
    image = axis.imshow(values, cmap="Blues", vmin=low, vmax=high)
    axis.set_xticks(range(len(columns)), columns, rotation=0 if max(map(len, columns)) < 4 else 90)
    axis.set_yticks(range(len(rows)), rows)
    axis.spines[:].set_visible(False)
    if len(columns) <= MOST_LABELLED and len(rows) <= MOST_LABELLED:
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                shade = "white" if value - low > 0.6 * (high - low) else "black"
                axis.text(x, y, f"{value:.{decimals}f}", ha="center", va="center", color=shade, fontsize=7)
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.colorbar(image, ax=axis, label=unit, fraction=0.046)


def as_svg(figure: Figure, salt: str = "fedshift") -> bytes:
    """The figure as an SVG file; equal figures with equal salts give equal files."""
    buffer = BytesIO()
    # Numbers stay text, in whatever font the reader has.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue().replace(INK.encode(), b"currentColor")
