"""Figures as PNG files: of a benchmark's ranks, of a paper's curve, and Optuna's of a search."""

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

WIDTH, BESIDE_ROWS, OF_A_ROW = 9.6, 1.1, 0.24  # inches of the benchmark's figure
CLEAR, OPEN = "#1f77b4", "#8c8c8c"
PANEL_WIDTH, PANEL_HEIGHT = 5.2, 3.8  # inches of a curve's panel
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")  # so that lines that coincide can be told apart


def draw_ranks(rows: Sequence[tuple[str, float, Interval | None]], base: str) -> bytes:
    """Mean ranks, and the overall differences to a base with their intervals, as a PNG file; the first row above."""
    drawn = Figure(figsize=(WIDTH, BESIDE_ROWS + OF_A_ROW * len(rows)), layout="constrained")
    ranks, differences = drawn.subplots(1, 2, sharey=True, width_ratios=(1, 1.6))
    ranks.set_yticks(range(len(rows)), [printable(method) for method, *_ in rows[::-1]], parse_math=False)
    for height, (_, rank, found) in enumerate(rows[::-1]):
        ranks.plot(rank, height, "o", color=CLEAR, markersize=5)
        if found is not None:
            colour = CLEAR if found.clear else OPEN
            differences.errorbar(found.mean, height, xerr=found.half, fmt="o", color=colour, markersize=5, capsize=2.5)
    differences.axvline(0, color="black", linewidth=0.8)
    ranks.set(xlabel="mean rank", ylim=(-0.8, len(rows) - 0.2))
    differences.set_xlabel(f"accuracy less {base}'s (points), mean over columns, 95 % over seeds")
    for axis in (ranks, differences):
        make_plain(axis)
    return as_png(drawn)


def draw_curve(panels: Sequence[Panel]) -> bytes:
    """The panels of a curve side by side, as a PNG file."""
    drawn = Figure(figsize=(PANEL_WIDTH * len(panels), PANEL_HEIGHT), layout="constrained")
    for axis, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_panel(panel, axis)
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
    make_plain(axis)


def draw_search(study: Study) -> dict[str, bytes]:
    """Optuna's figures of the trials of a study, as PNG files by name; those that it has enough trials for.

    Importance is that of being among the better trials (PED-ANOVA).
    """
    with needs("tune", "Figures of a search"):
        import optuna
        from optuna.visualization import matplotlib as plots

    first = study.optuna_study.get_trials(deepcopy=False)[: study.budget.trials]
    values = {trial.value for trial in study.trials if trial.value is not None}
    searched, about = [*study.space.searched], f"validation {study.metric.title}"
    drawn: dict[str, Any] = {}
    with quiet(), _own_style():
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
def _own_style() -> Iterator[None]:
    """Optuna draws by pyplot, whose figures and style belong to the process: leave both as they were."""
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
    """Give an axis a light grid, small ticks and no frame."""
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
