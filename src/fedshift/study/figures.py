"""Figures as PNG files: of a benchmark's differences, of a paper's curve, and Optuna's of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib import pyplot, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.errors import needs
from fedshift.reporting.curves import Panel
from fedshift.reporting.intervals import Interval
from fedshift.study.search import Study, quiet
from fedshift.written import printable

BESIDE_COLUMNS, OF_A_COLUMN, BESIDE_ROWS, OF_A_ROW = 2.4, 0.8, 1.1, 0.2  # inches of the benchmark's figure
SATURATED = 5.0  # points of difference with the darkest colour
MISSING = "#e4e4e4"
PANEL_WIDTH, PANEL_HEIGHT = 5.2, 3.8  # inches of a curve's panel
ACROSS = 4  # panels in a row
LEAST_HEIGHT = 1.0  # percentage points that a panel covers, so that rounding is not drawn as a trend
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")  # so that lines that coincide can be distinguished


def draw_differences(rows: Sequence[tuple[str, Sequence[Interval | str]]], columns: Sequence[str], base: str) -> bytes:
    """A heat map of differences to ``base``, as a PNG file; the first row above, clear differences in bold.

    A row is a method with its difference on every column, or a word if there is no difference.
    """
    size = BESIDE_COLUMNS + OF_A_COLUMN * len(columns), BESIDE_ROWS + OF_A_ROW * len(rows)
    drawn = Figure(figsize=size, layout="constrained")
    axis = drawn.subplots()
    axis.set_facecolor(MISSING)
    values = [[cell.mean if isinstance(cell, Interval) else np.nan for cell in cells] for _, cells in rows]
    image = axis.imshow(values, cmap="RdBu", vmin=-SATURATED, vmax=SATURATED, aspect="auto")
    for y, (_, cells) in enumerate(rows):
        for x, cell in enumerate(cells):
            found = cell if isinstance(cell, Interval) else None
            style: dict[str, Any] = {
                "weight": "bold" if found and found.clear else "normal",
                "color": "white" if found and abs(found.mean) > 0.6 * SATURATED else "black",
            }
            axis.text(x, y, f"{found.mean:+.1f}" if found else str(cell), ha="center", va="center", fontsize=7, **style)
    axis.set_xticks(range(len(columns)), [*map(printable, columns)], rotation=30, ha="left", fontsize=8)
    axis.set_yticks(range(len(rows)), [printable(name) for name, _ in rows], parse_math=False, fontsize=8)
    axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axis.spines[:].set_visible(False)
    label = f"accuracy minus {base}'s (points; bold: 95 % interval excludes 0)"
    drawn.colorbar(image, ax=axis, label=label, extend="both", aspect=40)
    return as_png(drawn)


def draw_curve(panels: Sequence[Panel]) -> bytes:
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    drawn = Figure(figsize=(PANEL_WIDTH * across, PANEL_HEIGHT * down), layout="constrained")
    for number, panel in enumerate(panels, 1):
        draw_panel(panel, drawn.add_subplot(down, across, number))
    return as_png(drawn)


def draw_panel(panel: Panel, axis: Axes) -> None:
    """Draw a panel's lines, each with its standard deviations where they are known."""
    for its, marker, dashes in zip(panel.lines, cycle(MARKERS), cycle(DASHES), strict=False):
        style: dict[str, Any] = {
            "marker": marker,
            "linestyle": dashes,
            "markersize": 4,
            "linewidth": 1.2,
            "markerfacecolor": "none",
        }
        (line,) = axis.plot([*its.points], its.edge(0), label=printable(its.label), **style)
        if its.points and all(each.std is not None for each in its.points.values()):
            axis.fill_between([*its.points], its.edge(-1), its.edge(1), color=line.get_color(), alpha=0.15, linewidth=0)
    if panel.ticks:
        axis.set_xticks([*panel.ticks], [*map(printable, panel.ticks.values())])
    axis.set(title=panel.title, xlabel=panel.across, ylabel=printable(panel.up))
    axis.legend(frameon=False, fontsize=8)
    low, high = axis.get_ylim()
    if high - low < LEAST_HEIGHT:
        axis.set_ylim((low + high - LEAST_HEIGHT) / 2, (low + high + LEAST_HEIGHT) / 2)
    make_plain(axis)


def draw_search(study: Study) -> dict[str, bytes]:
    """Optuna's figures of a study's trials, as PNG files by name, if it has enough trials for them.

    Importance is that for being among the better trials (PED-ANOVA).
    """
    with needs("tune", "Figures of a search"):
        import optuna
        from optuna.visualization import matplotlib as plots

    first = study.optuna_study.get_trials(deepcopy=False)[: study.budget.trials]
    values = {trial.value for trial in study.trials if trial.value is not None}
    searched, about = [*study.space.searched], f"validation {study.metric.title}"
    drawn: dict[str, Any] = {}
    with quiet(), _plot_style():
        known = optuna.create_study(direction=study.optuna_study.direction)
        known.add_trials([trial for trial in first if trial.state.is_finished()])
        if values:
            drawn["history"] = plots.plot_optimization_history(known, target_name=about)
        if values and searched:
            drawn["slices"] = plots.plot_slice(known, params=searched, target_name=about)
        if len(values) > 1 and len(searched) > 1:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            drawn["importance"] = plots.plot_param_importances(known, evaluator=evaluator, params=searched)
        return {f"{name}.png": as_png(np.ravel(axes)[0].figure) for name, axes in drawn.items()}


@contextmanager
def _plot_style() -> Iterator[None]:
    before = {*pyplot.get_fignums()}
    with rc_context(), pyplot.ioff():
        yield
    for number in {*pyplot.get_fignums()} - before:
        pyplot.close(number)


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG file; equal figures give equal files."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def make_plain(axis: Axes) -> None:
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
