"""A curve as a figure: a panel for each scenario, and a line for each row with its standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.reporting.results import MeanStd
from fedshift.reporting.units import printable
from fedshift.study.beside import PaperNumbers, place
from fedshift.study.figures import as_png, make_plain
from fedshift.study.scenarios import Scenario

MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")  # so that lines that coincide can be told apart
WIDTH, HEIGHT = 5.2, 3.8  # inches of a panel


def draw_curve(done: PaperNumbers) -> bytes:
    """The curve as a PNG file."""
    scenarios = done.plan.known
    drawn = Figure(figsize=(WIDTH * len(scenarios), HEIGHT), layout="constrained")
    for axis, scenario in zip(drawn.subplots(1, len(scenarios), squeeze=False)[0], scenarios, strict=True):
        draw_panel(done, scenario, axis)
    return as_png(drawn)


def draw_panel(done: PaperNumbers, scenario: Scenario, axis: Axes) -> None:
    """Draw a scenario's lines."""
    exhibit, columns = done.plan.exhibit, done.columns(scenario)
    along = isinstance(exhibit.along, str)
    places = {name: place(name) if along else float(number) for number, name in enumerate(columns)}
    for row, marker, dashes in zip(exhibit.carried_out, cycle(MARKERS), cycle(DASHES), strict=False):
        found = {name: ours for name in columns if (ours := done.beside(scenario, row, name).ours) is not None}
        _line(axis, row.name, [places[name] for name in found], [*found.values()], marker=marker, linestyle=dashes)
    if not along:
        axis.set_xticks([*places.values()], [*map(printable, places)])
    ((heading, _),) = exhibit.quantities(scenario).items()
    title = f"{printable(done.plan.title(scenario))}\nscale {done.plan.scale.name}"
    axis.set(title=title, xlabel=exhibit.across, ylabel=printable(f"{heading} ({done.unit(scenario, heading)})"))
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
