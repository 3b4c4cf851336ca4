"""A curve as a figure: a panel each, a line for each row with a band of a standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.reporting.results import MeanStd
from fedshift.reporting.units import printable
from fedshift.reproduction.numbers import Numbers, place
from fedshift.reproduction.panels import Panel
from fedshift.reproduction.scores import score
from fedshift.study.figures import as_png, make_plain

MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")  # so that lines that coincide can be told apart
WIDTH, HEIGHT = 5.2, 3.8  # inches of a panel


def figure(done: Numbers) -> bytes:
    """The curve as a PNG file."""
    panels = list(done.panels)
    drawn = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
    for axis, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_panel(done, panel, axis)
    return as_png(drawn)


def draw_panel(done: Numbers, panel: Panel, axis: Axes) -> None:
    """Draw a panel's lines."""
    exhibit, columns = done.plan.exhibit, done.columns(panel)
    along = isinstance(exhibit.along, str)
    places = {name: place(name) if along else float(number) for number, name in enumerate(columns)}
    for row, marker, dashes in zip(exhibit.carried_out, cycle(MARKERS), cycle(DASHES), strict=False):
        found = {name: ours for name in columns if (ours := done.beside(panel, row, name).ours) is not None}
        _line(axis, row.name, [places[name] for name in found], [*found.values()], marker=marker, linestyle=dashes)
    if not along:
        axis.set_xticks([*places.values()], [*map(printable, places)])
    ((heading, its),) = exhibit.scores(panel).items()
    title = f"{printable(done.plan.title(panel))}\nscale {done.plan.scale.name}"
    axis.set(title=title, xlabel=exhibit.across, ylabel=printable(f"{heading} ({score(its).unit})"))
    axis.legend(frameon=False, fontsize=8)
    make_plain(axis)


def _line(axis: Axes, name: str, across: Sequence[float], found: Sequence[MeanStd], **style: Any) -> None:
    means = [each.mean for each in found]
    (line,) = axis.plot(
        across, means, markersize=4, linewidth=1.2, markerfacecolor="none", label=printable(name), **style
    )
    if found and all(each.std is not None for each in found):
        low, high = ([each.mean + sign * (each.std or 0.0) for each in found] for sign in (-1, 1))
        axis.fill_between(across, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
