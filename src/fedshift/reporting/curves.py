"""Scores by round and by test environment, as the panels of a page.

A figure holds lines and numbers alone. What users name (environments, methods, quantities) stands beside it as text of
the page: no font lacks its letters, nothing in it is read as mark-up, and it can be read at any width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from statistics import mean
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedshift.reporting.charts import Chart, style
from fedshift.reporting.results import MeanStd
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.selection import SERVER, by_environment

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_PANELS = 12
LEAST_HEIGHT = 10.0  # percentage points that a panel covers
MOST_MARKED = 15  # points of a line that are marked one by one; of a single one nothing but the mark is seen
MOST_UPRIGHT = 30  # letters in a line beside a vertical axis
SIZE = (4.8, 3.0)  # inches of a panel, which fill a narrow screen at about the size they have


@dataclass(frozen=True)
class Line:
    """A curve with a band of one standard deviation over seeds to either side.

    Attributes:
        label: whose score it is, and on what.
        points: what was measured, by round or place, ascending.
        colour: as #rrggbb.
        dashed: whether it is of validation.
        row: which row of the tables it is of, from 0.
    """

    label: str
    points: Mapping[float, MeanStd]
    colour: str = ""
    dashed: bool = False
    row: int = 0

    def edge(self, sign: int) -> list[float]:
        """The means, less or plus one standard deviation."""
        return [value.mean + sign * (value.std or 0.0) for value in self.points.values()]


@dataclass(frozen=True)
class Panel:
    """What one figure shows.

    Attributes:
        title: of what.
        across: what its horizontal axis is.
        up: what its vertical axis is.
        lines: its curves.
        ticks: what places are called; empty where they are numbers.
    """

    title: str
    across: str
    up: str
    lines: Sequence[Line]
    ticks: Mapping[float, str] = field(default_factory=dict)


def colours(count: int) -> list[str]:
    """A colour for each row of the tables, none of them twice."""
    if count <= 10:
        return [to_hex(f"C{number}") for number in range(count)]
    shades = matplotlib.colormaps["turbo"].resampled(count)
    return [to_hex(shades(number)) for number in range(count)]


def by_round(comparison: Comparison) -> list[Panel]:
    """A panel for each test environment: the test score solid, the mean of validation dashed.

    Where the environments are many, a single panel shows their mean.
    """
    names = comparison.environments("test")
    shown: list[str | None] = [*names] if len(names) <= MOST_PANELS else [None]
    rows, test = comparison.rows(), comparison.label("test")
    panels = []
    for environment in shown:
        lines = []
        for number, (row, colour) in enumerate(zip(rows, colours(len(rows)), strict=True)):
            for role in ("test", "validation"):
                points = row.curve(partial(_rounds, environment=environment, role=role, metric=row.metric.name))
                lines.append(Line(f"{row.label}, {comparison.label(role)}", points, colour, role != "test", number))
        heading = comparison.heading("test", environment) if environment is not None else ""
        title = heading or f"{test}, mean over {len(names)} environments"
        its = [line for line in lines if line.points]
        panels.append(Panel(title, "training round", upright(comparison.metric.quantity), its))
    return panels


def _rounds(run: Run, environment: str | None, role: str, metric: str) -> Iterator[tuple[float, float]]:
    """The training rounds and scores in % of a run that is tested on the environment (None: on any).

    Rounds count from the first stage that is scored, so that those of several methods can be compared: an index of
    clients, say, is made before.
    """
    tested = {scored["environment"] for scored in run.records[-1]["environments"] if scored["role"] == "test"}
    before = run.records[0]["position"] - run.records[0]["round"]
    for record in run.records if environment is None or environment in tested else ():
        for name, score in by_environment(record, role, metric).items():
            if role == "validation" or environment in (None, name):
                yield record["position"] - before, 100 * score


def by_place(comparison: Comparison) -> Panel | None:
    """The test score at the last round by test environment, a line for each row.

    None unless every test environment is named as a number of one quantity, such as p=0.3, and there are two of them.
    """
    names = comparison.environments("test")
    found = [re.fullmatch(r"(\w+)=(-?\d+(?:\.\d+)?)", name) for name in names]
    places = {match[0]: float(match[2]) for match in found if match}
    quantities = {match[1] for match in found if match}
    if len(places) < max(2, len(names)) or len(quantities) > 1:
        return None
    rows = comparison.rows()
    lines = []
    for number, (row, colour) in enumerate(zip(rows, colours(len(rows)), strict=True)):

        def scores(run: Run, metric: str = row.metric.name) -> Iterator[tuple[float, float]]:
            for name, score in by_environment(run.records[-1], "test", metric).items():
                yield places[name], 100 * score

        lines.append(Line(row.label, row.curve(scores), colour, row=number))
    title, up = f"{comparison.label('test')}, last round", upright(comparison.metric.quantity)
    return Panel(title, quantities.pop(), up, [line for line in lines if line.points])


def by_term(comparison: Comparison) -> list[Panel]:
    """A panel for each loss term: its weighted mean over clients and their steps by round; the server's apart."""
    rows = comparison.rows()
    lines: dict[str, list[Line]] = {}
    for number, (row, colour) in enumerate(zip(rows, colours(len(rows)), strict=True)):
        for name in dict.fromkeys(name for run in row.runs for record in run.records for name in _terms(record)):
            line = Line(row.label, row.curve(partial(_term, name=name)), colour, row=number)
            lines.setdefault(name, []).append(line)
    return [Panel(name, "training round", "weighted loss", its) for name, its in [*lines.items()][:MOST_PANELS]]


def _term(run: Run, name: str) -> Iterator[tuple[float, float]]:
    before = run.records[0]["position"] - run.records[0]["round"]
    for record in run.records:
        if name in (terms := _terms(record)):
            yield record["position"] - before, terms[name]


def _terms(record: Record) -> dict[str, float]:
    """The mean over clients of each of their terms; the server's as "server: NAME"."""
    found: dict[str, list[float]] = {}
    for who, terms in record["terms"].items():
        for name, value in terms.items():
            found.setdefault(f"{SERVER}: {name}" if who == SERVER else name, []).append(value)
    return {name: mean(values) for name, values in found.items()}


def scores_drawn(panels: Sequence[Panel], name: str, alt: str) -> list[Chart]:
    """Panels of percentages as charts, all to the same scale, which small changes do not fill."""
    lines = [line for panel in panels for line in panel.lines]
    values = [min(100.0, max(0.0, value)) for line in lines for sign in (-1, 1) for value in line.edge(sign)] or [0.0]
    middle = min(max((min(values) + max(values)) / 2, LEAST_HEIGHT / 2), 100 - LEAST_HEIGHT / 2)
    up = _with_margin([*values, middle - LEAST_HEIGHT / 2, middle + LEAST_HEIGHT / 2])
    return [_drawn(panel, f"{name}-{number}", alt, up, (0.0, 100.0)) for number, panel in enumerate(panels)]


def losses_drawn(panels: Sequence[Panel], name: str, alt: str) -> list[Chart]:
    """Panels of losses as charts, each to a scale of its own."""
    charts = []
    for number, panel in enumerate(panels):
        values = [value for line in panel.lines for sign in (-1, 1) for value in line.edge(sign) if isfinite(value)]
        charts.append(_drawn(panel, f"{name}-{number}", alt, _with_margin(values), (-inf, inf)))
    return charts


def _drawn(panel: Panel, name: str, alt: str, up: tuple[float, float], within: tuple[float, float]) -> Chart:
    """A panel as a chart, its bands cut off at the ends of ``within``."""
    places = [place for line in panel.lines for place in line.points]
    with style():
        figure = Figure(figsize=SIZE, layout="constrained")
        axis = figure.subplots()
        few = all(len(line.points) <= MOST_MARKED for line in panel.lines)
        for number, line in enumerate(panel.lines):
            _draw(axis, line, number, within, marked=few or len(line.points) == 1)
        axis.set(xlim=_with_margin(places), ylim=up, ylabel=panel.up)
        whole = all(float(place).is_integer() for place in places)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=whole))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return Chart(name, panel.title, panel.across, f"{alt}: {panel.title}", figure, _numbers(panel))


def _numbers(panel: Panel) -> list[dict[str, Any]]:
    """What is drawn, a row for each place on the horizontal axis."""
    rows: dict[float, dict[str, Any]] = {}
    for line in panel.lines:
        for place, value in line.points.items():
            row = rows.setdefault(place, {panel.across: place})
            row[line.label] = round(value.mean, 4)
            if value.std is not None:
                row[f"{line.label}, standard deviation"] = round(value.std, 4)
    return [rows[place] for place in sorted(rows)]


def upright(quantity: str) -> str:
    """What stands beside a vertical axis of percentages, in lines no longer than it."""
    return fill(f"{quantity} (%)", MOST_UPRIGHT)


def _with_margin(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, a little beyond the values so that none lies on its edge."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _draw(axis: Axes, line: Line, number: int, within: tuple[float, float], *, marked: bool) -> None:
    (drawn,) = axis.plot(
        [*line.points],
        line.edge(0),
        color=line.colour,
        label=line.label,
        linestyle="--" if line.dashed else "-",
        linewidth=1.6,
        marker="o" if marked else "",
        markersize=4,
        markerfacecolor="white" if line.dashed else line.colour,
    )
    drawn.set_gid(f"row-{line.row}-{number}")
    if line.edge(-1) != line.edge(1):
        low, high = ([min(within[1], max(within[0], value)) for value in line.edge(sign)] for sign in (-1, 1))
        shade = 0.08 if line.dashed else 0.15
        band = axis.fill_between([*line.points], low, high, color=line.colour, alpha=shade, linewidth=0)
        band.set_gid(f"row-{line.row}-{number}-band")
