"""Scores by round and by test environment, as the panels of a page.

A figure holds lines and numbers alone. What users name (environments, methods, quantities) stands beside it as text of
the page: no font lacks its letters, nothing in it is read as mark-up, and it can be read at any width.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from statistics import mean, stdev
from textwrap import fill

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedshift.core.metrics import Metric
from fedshift.reporting.results import Results, Row
from fedshift.reporting.stages import unscored_before
from fedshift.runs.selection import by_environment

MOST_PANELS = 12
LEAST_HEIGHT = 10.0  # percentage points that a panel covers
MOST_MARKED = 15  # points of a line that are marked one by one; of a single one nothing but the mark is seen
MOST_UPRIGHT = 30  # letters in a line beside a vertical axis
SIZE = (4.8, 3.0)  # inches of a panel, which fill a narrow screen at about the size they have

BySeed = dict[float, dict[int, list[float]]]  # scores in %, by round or place and by seed


@dataclass(frozen=True)
class Line:
    """A curve with its band, in %.

    Attributes:
        label: whose score it is, and on what.
        colour: as #rrggbb.
        dashed: whether it is of validation.
        places: rounds or places, ascending.
        middle: means over seeds.
        low: one standard deviation over seeds below, not under 0.
        high: one standard deviation above, not over 100.
    """

    label: str
    colour: str
    dashed: bool
    places: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def of(cls, label: str, colour: str, found: BySeed, *, dashed: bool = False) -> Line:
        """The line of scores; each seed counts as the mean of its values."""
        places = sorted(found)
        seeds = [[mean(values) for values in found[place].values()] for place in places]
        middle = [mean(values) for values in seeds]
        spread = [stdev(values) if len(values) > 1 else 0.0 for values in seeds]
        low = [max(0.0, m - s) for m, s in zip(middle, spread, strict=True)]
        high = [min(100.0, m + s) for m, s in zip(middle, spread, strict=True)]
        return cls(label, colour, dashed, places, middle, low, high)

    @property
    def banded(self) -> bool:
        """Whether seeds differ."""
        return self.low != self.high


@dataclass(frozen=True)
class Panel:
    """What one figure shows.

    Attributes:
        title: of what.
        across: what its horizontal axis is.
        lines: its curves.
        metric: what its vertical axis is.
    """

    title: str
    across: str
    lines: list[Line]
    metric: Metric


def colours(count: int) -> list[str]:
    """A colour for each row of the tables, none of them twice."""
    if count <= 10:
        return [to_hex(f"C{number}") for number in range(count)]
    shades = matplotlib.colormaps["turbo"].resampled(count)
    return [to_hex(shades(number)) for number in range(count)]


def by_round(results: Results) -> list[Panel]:
    """A panel for each test environment: the test score solid, the mean of validation dashed.

    Where the environments are many, a single panel shows their mean.
    """
    names = results.environments("test")
    shown: list[str | None] = [*names] if len(names) <= MOST_PANELS else [None]
    rows = results.rows()
    test, validation = results.label("test"), results.label("validation")
    panels = []
    for environment in shown:
        lines = []
        for row, colour in zip(rows, colours(len(rows)), strict=True):
            lines.append(Line.of(f"{row.label}, {test}", colour, _by_round(row, environment, "test")))
            found = _by_round(row, environment, "validation")
            lines.append(Line.of(f"{row.label}, {validation}", colour, found, dashed=True))
        heading = results.heading("test", environment) if environment is not None else ""
        title = heading or f"{test}, mean over {len(names)} environments"
        panels.append(Panel(title, "training round", [line for line in lines if line.places], results.metric))
    return panels


def _by_round(row: Row, environment: str | None, role: str) -> BySeed:
    """Scores by training round of the runs that are tested on the environment (None: on any)."""
    found: BySeed = defaultdict(lambda: defaultdict(list))
    for run in row.runs:
        tested = {scored["environment"] for scored in run.records[-1]["environments"] if scored["role"] == "test"}
        if environment is not None and environment not in tested:
            continue
        before = unscored_before(run.records)
        for record in run.records:
            for name, score in by_environment(record, role, row.metric.name).items():
                if role == "validation" or environment in (None, name):
                    found[record["position"] - before][run.table["seed"]].append(100 * score)
    return found


def by_place(results: Results) -> Panel | None:
    """The test score at the last round by test environment, a line for each row.

    None unless every test environment is named as a number of one quantity, such as p=0.3, and there are two of them.
    """
    names = results.environments("test")
    found = [re.fullmatch(r"(\w+)=(-?\d+(?:\.\d+)?)", name) for name in names]
    places = {match[0]: float(match[2]) for match in found if match}
    quantities = {match[1] for match in found if match}
    if len(places) < max(2, len(names)) or len(quantities) > 1:
        return None
    rows = results.rows()
    lines = [
        Line.of(row.label, colour, _by_place(row, places)) for row, colour in zip(rows, colours(len(rows)), strict=True)
    ]
    shown = [line for line in lines if line.places]
    return Panel(f"{results.label('test')}, last round", quantities.pop(), shown, results.metric)


def _by_place(row: Row, places: Mapping[str, float]) -> BySeed:
    """Scores at the last round by place."""
    found: BySeed = defaultdict(lambda: defaultdict(list))
    for run in row.runs:
        for name, score in by_environment(run.records[-1], "test", row.metric.name).items():
            found[places[name]][run.table["seed"]].append(100 * score)
    return found


def figures(panels: Sequence[Panel]) -> list[Figure]:
    """A figure for each panel, all to the same scale."""
    lines = [line for panel in panels for line in panel.lines]
    across = _with_margin([place for line in lines for place in line.places])
    up = _with_margin(_at_least(LEAST_HEIGHT, [value for line in lines for value in (*line.low, *line.high)]))
    few = all(len(line.places) <= MOST_MARKED for line in lines)
    whole = all(float(place).is_integer() for line in lines for place in line.places)
    drawn = []
    for panel in panels:
        figure = Figure(figsize=SIZE, layout="constrained")
        axis = figure.subplots()
        for line in panel.lines:
            _draw(axis, line, marked=few or len(line.places) == 1)
        axis.set(xlim=across, ylim=up, ylabel=upright(panel.metric.quantity))
        axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=whole))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        drawn.append(figure)
    return drawn


def upright(quantity: str) -> str:
    """What stands beside a vertical axis of percentages, in lines no longer than it."""
    return fill(f"{quantity} (%)", MOST_UPRIGHT)


def _with_margin(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, a little beyond the values so that none lies on its edge."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _at_least(height: float, values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest of some percentages, so far apart at least that small changes look small."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    low = max(0.0, low - max(0.0, height - (high - low)) / 2)
    high = min(100.0, max(high, low + height))
    return min(low, high - height) if high == 100.0 else low, high


def _draw(axis: Axes, line: Line, *, marked: bool) -> None:
    axis.plot(
        line.places,
        line.middle,
        color=line.colour,
        label=line.label,
        linestyle="--" if line.dashed else "-",
        linewidth=1.6,
        marker="o" if marked else "",
        markersize=4,
        markerfacecolor="white" if line.dashed else line.colour,
    )
    if line.banded:
        shade = 0.08 if line.dashed else 0.15
        axis.fill_between(line.places, line.low, line.high, color=line.colour, alpha=shade, linewidth=0)


def as_svg(figure: Figure) -> bytes:
    """The figure as an SVG file; equal figures give equal files."""
    buffer = BytesIO()
    # Numbers stay text, in whatever font the reader has.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedshift"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue()
