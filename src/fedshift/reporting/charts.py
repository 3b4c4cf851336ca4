"""A chart: a figure, the numbers drawn in it, and the words beside it."""

from __future__ import annotations

import re
import warnings
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedshift.reporting.table import as_csv
from fedshift.written import printable

# Okabe and Ito's colours, which readers who see red and green the same can distinguish, and three more.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F", "#9467BD", "#17BECF"]
MARKERS = "osD^vP*X"
MOST_LABELLED = 12  # cells in a row of a heat map that contain their number
INK = "#010203"  # what is drawn in the colour of text: `currentColor` in an SVG file, so that a dark page shows it
PAPER = "#fdfeff"  # what is filled with the colour of the page
IN_FILES = PAPER.encode(), b"#fff"
XLINK = "http://www.w3.org/1999/xlink"
OF_A_KEY = 0.2  # inches of a line of a legend
DECIMALS = 2  # of points of a drawing, 72 to an inch


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
        keys: the colours of the rows that it shows, by label; what is drawn of row n has the ``gid`` of :func:`row_id`.
    """

    name: str
    title: str
    about: str
    alt: str
    figure: Figure
    data: Sequence[Mapping[str, Any]]
    method: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Chart({self.name!r}, {len(self.data)} rows)"

    def svg(self) -> bytes:
        """As an SVG file; equal charts give equal files."""
        with self._complete():
            return as_svg(self.figure, self.name).replace(INK.encode(), b"currentColor").replace(*IN_FILES)

    def png(self) -> bytes:
        """As a PNG file, in which text is black on white."""
        buffer = BytesIO()
        with self._complete():
            self.figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None}, facecolor="white")
        return buffer.getvalue()

    def inline(self, key: str) -> Markup:
        """As an element of a page that has the colours, and shows the title and the keys, itself.

        What is drawn of row n of the tables has the class of :func:`row_id`.

        Args:
            key: what no other figure of the page is called; its identifiers begin with it.
        """
        text = as_svg(self.figure, self.name).decode()
        text = text[text.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "var(--paper, #fff)")
        text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
        text = re.sub(r'(?<= (?:d|x|y)=")[^"]*', lambda found: _shortened(found[0]), text)
        used = {*re.findall(r'(?:url\(|href=")#([\w.-]+)', text)}
        text = re.sub(r' id="([^"]*)"', lambda found: _identified(found[1], used, key), text)
        text = re.sub(r'(url\(|href=")#', rf"\1#{key}-", text)
        view = re.search(r'viewBox="[^"]*"', text)
        about = f'aria-labelledby="{key}-title" aria-describedby="{key}-alt"'
        head = f'<svg {view[0] if view else ""} xmlns:xlink="{XLINK}" role="img" {about}>'
        title = f'<title id="{key}-title">{escape(printable(self.title))}</title>'
        alt = f'<desc id="{key}-alt">{escape(printable(self.alt))}</desc>'
        text = re.sub("<svg[^>]*>", lambda found: f"{head}{title}{alt}", text, count=1)
        return Markup(text)  # which matplotlib wrote but for what is escaped

    @contextmanager
    def _complete(self) -> Iterator[None]:
        """With a title, and a legend if there are keys, for a file that stands alone."""
        size = self.figure.get_size_inches()
        letters: Any = {"text.parse_math": False, "text.color": INK, "font.size": 9.0}
        with matplotlib.rc_context(letters), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # of names in letters that the font lacks
            marks = [Patch(color=colour, label=printable(label)) for label, colour in self.keys.items()]
            made: list[Artist] = []
            if marks:
                self.figure.set_size_inches(size[0], size[1] + OF_A_KEY * (len(marks) + 1))
                made = [self.figure.legend(handles=marks, loc="outside lower left", frameon=False)]
                made.append(self.figure.suptitle(printable(self.title), fontsize=10))
            yield
        for artist in made:
            artist.remove()
        self.figure.set_size_inches(*size)

    def csv(self) -> str:
        """Its numbers as CSV."""
        return as_csv(self.data)

    def _repr_html_(self) -> str:
        return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(self.svg()).decode()}">'


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


def as_svg(figure: Figure, salt: str) -> bytes:
    """The figure as an SVG file, ink and paper as they are; equal figures with equal salts give equal files."""
    buffer = BytesIO()
    # Numbers stay text, in whatever font the reader has.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue()


def row_id(number: int) -> str:
    """The ``gid`` of what is drawn of a row of the tables, and its class on a page."""
    return f"row-{number}"


def _shortened(text: str) -> str:
    text = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.{DECIMALS}f}".rstrip("0").rstrip("."), text)
    return re.sub(r"\s*\n\s*", "", text)


def _identified(name: str, used: set[str], key: str) -> str:
    if name.startswith("row-"):
        return f' class="{name}"'
    return f' id="{key}-{name}"' if name in used else ""
