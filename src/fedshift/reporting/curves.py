"""Scores by round and by test environment, and terms of the loss by round, as charts.

A figure contains lines and numbers alone. What users name (environments, methods, quantities) stands beside it as text
of the page: no font lacks its letters, nothing in it is read as mark-up, and it can be read at any width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedshift.reporting.charts import COLOURS, PAPER, Chart, row_id, style
from fedshift.reporting.results import MeanStd, Row
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.selection import SERVER, by_environment, last
from fedshift.written import file_name

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_PANELS = 12
MOST_TOLD = 8  # lines whose ends a text for those who see no figure shows
ROUND = "training round"
LEAST_HEIGHT = 10.0  # percentage points that a panel covers
MOST_MARKED = 15  # points of a line that are marked one by one; of a single one nothing but the mark is seen
MOST_UPRIGHT = 30  # letters in a line beside a vertical axis
SIZE = (4.8, 3.0)  # inches of a panel, which fill a narrow screen at about the size they have


@dataclass(frozen=True)
class Line:
    """A curve with a band of one standard deviation over seeds to either side."""

    label: str  # whose score it is, and on what
    points: Mapping[float, MeanStd]  # what was measured, by round or place, ascending
    colour: str = ""  # as #rrggbb
    dashed: bool = False  # whether it is of validation
    method: str = ""  # the label of the row of the tables that it is of
    row: int = 0  # the number of that row, from 0

    def edge(self, sign: int) -> list[float]:
        """The means, minus or plus one standard deviation."""
        return [value.mean + sign * (value.std or 0.0) for value in self.points.values()]


@dataclass(frozen=True)
class Panel:
    """What one figure shows."""

    title: str  # of what
    across: str  # what its horizontal axis is
    up: str  # what its vertical axis is
    lines: Sequence[Line]  # its curves
    ticks: Mapping[float, str] = field(default_factory=dict)  # what places are called; empty where they are numbers


def colours(count: int) -> list[str]:
    if count <= len(COLOURS):
        return COLOURS[:count]
    shades = matplotlib.colormaps["turbo"].resampled(count)
    return [to_hex(shades(number)) for number in range(count)]


def by_round(comparison: Comparison) -> list[Panel]:
    """A panel for each test environment: the test score solid, the mean of validation dashed.

    Where the environments are many, a single panel shows their mean.
    """
    names = comparison.environments("test")
    shown: list[str | None] = [*names] if len(names) <= MOST_PANELS else [None]
    panels = []
    for environment in shown:
        lines = [
            replace(
                line,
                label=f"{line.label}, {comparison.label(role)}",
                points=row.curve(partial(_rounds, environment=environment, role=role, metric=row.metric.name)),
                dashed=role != "test",
            )
            for row, line in _rows(comparison)
            for role in ("test", "validation")
        ]
        heading = comparison.heading("test", environment) if environment is not None else ""
        title = heading or f"{comparison.label('test')}, mean over {len(names)} environments"
        its = [line for line in lines if line.points]
        panels.append(Panel(title, ROUND, upright(comparison.metric.quantity), its))
    return panels


def _rows(comparison: Comparison) -> list[tuple[Row, Line]]:
    rows = comparison.rows()
    every = enumerate(zip(rows, colours(len(rows)), strict=True))
    return [(row, Line(row.label, {}, colour, method=row.label, row=number)) for number, (row, colour) in every]


def _rounds(run: Run, environment: str | None, role: str, metric: str) -> Iterator[tuple[float, float]]:
    """The training rounds and scores in % of a run that is tested on the environment (None: on any).

    Rounds count from the first stage that is scored, so that those of several methods can be compared: an index of
    clients, for example, is made before.
    """
    tested = {scored["environment"] for scored in run.records[-1]["environments"] if scored["role"] == "test"}
    before = _before(run)
    for record in run.records if environment is None or environment in tested else ():
        for name, score in by_environment(record, role, metric).items():
            if role == "validation" or environment in (None, name):
                yield record["position"] - before, 100 * score


def _before(run: Run) -> int:
    return int(run.records[0]["position"] - run.records[0]["round"])


def by_term(comparison: Comparison) -> list[Panel]:
    """A panel for each term of the losses: its mean over clients, weighted as it is minimised."""
    found: dict[tuple[bool, str], list[Line]] = {}
    for row, line in _rows(comparison):
        names = dict.fromkeys(key for run in row.runs for record in run.records for key in _terms(record))
        for key in names:
            points = row.curve(partial(_term, key=key))
            found.setdefault(key, []).append(replace(line, points=points))
    return [
        Panel(f"{name} (on the server)" if server else name, ROUND, "mean of a step", lines)
        for (server, name), lines in found.items()
    ]


def _terms(record: Record) -> dict[tuple[bool, str], list[float]]:
    found: dict[tuple[bool, str], list[float]] = {}
    for who, terms in record["terms"].items():
        for name, value in terms.items():
            found.setdefault((who == SERVER, name), []).append(value)
    return found


def _term(run: Run, key: tuple[bool, str]) -> Iterator[tuple[float, float]]:
    before = _before(run)
    for record in run.records:
        if values := _terms(record).get(key):
            yield record["position"] - before, fmean(values)


def by_place(comparison: Comparison) -> Panel | None:
    """The headline test score by test environment, a line for each row.

    None unless every test environment is named as a number of one quantity, such as p=0.3, and there are two of them.
    """
    names = comparison.environments("test")
    found = [re.fullmatch(r"(\w+)=(-?\d+(?:\.\d+)?)", name) for name in names]
    places = {match[0]: float(match[2]) for match in found if match}
    quantities = {match[1] for match in found if match}
    if len(places) < max(2, len(names)) or len(quantities) > 1:
        return None
    lines = []
    for row, line in _rows(comparison):

        def scores(run: Run, metric: str = row.metric.name) -> Iterator[tuple[float, float]]:
            for name, score in by_environment(last(run.records), "test", metric).items():
                yield places[name], 100 * score

        lines.append(replace(line, points=row.curve(scores)))
    title, up = f"{comparison.label('test')}, {comparison.moment}", upright(comparison.metric.quantity)
    return Panel(title, quantities.pop(), up, [line for line in lines if line.points])


def charts(panels: Sequence[Panel], name: str, about: str, percent: bool = True) -> list[Chart]:
    """Panels as charts; those of percentages all to the same scale, which small changes do not fill.

    Args:
        panels: what they show.
        name: of their files, before the number of the panel.
        about: how to read them.
        percent: whether values are percentages.
    """
    lines = [line for panel in panels for line in panel.lines]
    across = _with_margin([place for line in lines for place in line.points])
    up = _percentages(lines) if percent else None
    made = []
    for number, panel in enumerate(panels, 1):
        scale = up or _with_margin([value for line in panel.lines for sign in (-1, 1) for value in line.edge(sign)])
        figure = _figure(panel, across, scale)
        keys = {line.method: line.colour for line in panel.lines}
        named = file_name(name, str(number), panel.title)
        made.append(Chart(named, panel.title, about, _in_words(panel), figure, _data(panel), keys=keys))
    return made


def _in_words(panel: Panel) -> str:
    ends = [(line.label, [*line.points.items()][-1]) for line in panel.lines if line.points]
    last = "; ".join(f"{label} {value.mean:.4g} at {place:g}" for label, (place, value) in ends[:MOST_TOLD])
    more = f"; and {len(ends) - MOST_TOLD} more lines" if len(ends) > MOST_TOLD else ""
    return f"{' '.join(panel.up.split())} by {panel.across}, {panel.title}. Last: {last}{more}."


def _data(panel: Panel) -> list[dict[str, Any]]:
    return [
        {"line": line.label, panel.across: place, "mean": f"{value.mean:.5g}", "std": _std(value)}
        for line in panel.lines
        for place, value in line.points.items()
    ]


def _std(value: MeanStd) -> str:
    return "" if value.std is None else f"{value.std:.3g}"


def _percentages(lines: Sequence[Line]) -> tuple[float, float]:
    values = [min(100.0, max(0.0, value)) for line in lines for sign in (-1, 1) for value in line.edge(sign)] or [0.0]
    middle = min(max((min(values) + max(values)) / 2, LEAST_HEIGHT / 2), 100 - LEAST_HEIGHT / 2)
    return _with_margin([*values, middle - LEAST_HEIGHT / 2, middle + LEAST_HEIGHT / 2])


def _figure(panel: Panel, across: tuple[float, float], up: tuple[float, float]) -> Figure:
    places = [place for line in panel.lines for place in line.points]
    few = all(len(line.points) <= MOST_MARKED for line in panel.lines)
    with style():
        figure = Figure(figsize=SIZE, layout="constrained")
        axis = figure.subplots()
        for line in panel.lines:
            _draw(axis, line, up, marked=few or len(line.points) == 1)
        axis.set(xlim=across, ylim=up, xlabel=panel.across, ylabel=panel.up)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=all(float(place).is_integer() for place in places)))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def upright(quantity: str) -> str:
    """What stands beside a vertical axis of percentages, in lines no longer than it."""
    return fill(f"{quantity} (%)", MOST_UPRIGHT)


def _with_margin(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if isfinite(value)]  # a loss may not be
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _draw(axis: Axes, line: Line, up: tuple[float, float], *, marked: bool) -> None:
    axis.plot(
        [*line.points],
        line.edge(0),
        color=line.colour,
        label=line.label,
        linestyle="--" if line.dashed else "-",
        linewidth=1.6,
        marker="o" if marked else "",
        markersize=4,
        markerfacecolor=PAPER if line.dashed else line.colour,
        gid=row_id(line.row),
    )
    if line.edge(-1) != line.edge(1):
        low, high = ([min(up[1], max(up[0], value)) for value in line.edge(sign)] for sign in (-1, 1))
        shade, its = 0.08 if line.dashed else 0.15, row_id(line.row)
        axis.fill_between([*line.points], low, high, color=line.colour, alpha=shade, linewidth=0, gid=its)
