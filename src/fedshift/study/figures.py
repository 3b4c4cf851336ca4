"""Figures as PNG files: of a benchmark's ranks, and of a paper's curve."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.reporting.results import MeanStd
from fedshift.reporting.units import printable
from fedshift.study.benchmark_plan import BASE
from fedshift.study.beside import PaperNumbers, place
from fedshift.study.ranking import Ranking
from fedshift.study.scenarios import Scenario
from fedshift.study.search_figures import as_png, make_plain

WIDTH, BESIDE_ROWS, OF_A_ROW = 9.6, 1.1, 0.24  # inches of the benchmark's figure
CLEAR, OPEN = "#1f77b4", "#8c8c8c"
PANEL_WIDTH, PANEL_HEIGHT = 5.2, 3.8  # inches of a curve's panel
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")  # so that lines that coincide can be told apart


def draw_benchmark(done: Ranking) -> bytes:
    """Mean ranks, and the overall differences to FedAvg with their intervals, as a PNG file; the best row above."""
    methods = [method for method in done.by_rank() if done.mean_rank(method) is not None][::-1]
    drawn = Figure(figsize=(WIDTH, BESIDE_ROWS + OF_A_ROW * len(methods)), layout="constrained")
    ranks, differences = drawn.subplots(1, 2, sharey=True, width_ratios=(1, 1.6))
    ranks.set_yticks(range(len(methods)), [printable(method) for method in methods], parse_math=False)
    for height, method in enumerate(methods):
        ranks.plot(done.mean_rank(method), height, "o", color=CLEAR, markersize=5)
        if (found := done.overall(method)) is not None and method != BASE:
            colour = CLEAR if found.clear else OPEN
            differences.errorbar(found.mean, height, xerr=found.half, fmt="o", color=colour, markersize=5, capsize=2.5)
    differences.axvline(0, color="black", linewidth=0.8)
    ranks.set(xlabel="mean rank", ylim=(-0.8, len(methods) - 0.2))
    differences.set_xlabel(f"accuracy less {BASE}'s (points), mean over columns, 95 % over seeds")
    for axis in (ranks, differences):
        make_plain(axis)
    return as_png(drawn)


def draw_curve(done: PaperNumbers) -> bytes:
    """The curve as a PNG file."""
    scenarios = done.plan.known
    drawn = Figure(figsize=(PANEL_WIDTH * len(scenarios), PANEL_HEIGHT), layout="constrained")
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
