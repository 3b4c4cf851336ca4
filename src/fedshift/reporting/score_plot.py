"""Scores of a comparison as one figure: a mean with its interval for every method and environment."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

from fedshift.core.metrics import Metric
from fedshift.reporting.charts import MARKERS, style
from fedshift.reporting.comparison_tables import ends_within
from fedshift.reporting.curves import MOST_PANELS, colours, upright
from fedshift.reporting.intervals import Interval
from fedshift.reporting.results import Row
from fedshift.runs.run import Run
from fedshift.runs.selection import by_environment, last
from fedshift.written import printable

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MEAN = "mean"
HEIGHT = 3.2  # inches
WIDTH, EACH = 2.4, 0.22  # inches of what is beside the marks, and of a mark
BETWEEN = 2  # marks that would fit between two environments


def score_plot(comparison: Comparison, role: str, metric: Metric) -> Figure:
    """A mark for the mean over seeds of each row on each environment, and the mean of all, with t intervals of 95 %.

    A pale line behind a mark is the interval for the samples of the environment, the mean of its ends over seeds.

    Args:
        comparison: the runs.
        role: "test" or "validation".
        metric: what is drawn, in %.
    """
    rows, names = comparison.rows(), comparison.environments(role)
    shown = [*names, MEAN] if 1 < len(names) <= MOST_PANELS else names if len(names) == 1 else [MEAN]
    step = len(rows) + BETWEEN
    with style(), matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(WIDTH + EACH * step * len(shown), HEIGHT), layout="constrained")
        axis = figure.subplots()
        for number, (row, colour) in enumerate(zip(rows, colours(len(rows)), strict=True)):
            found = [interval_of(row, role, metric.name, None if name == MEAN else name) for name in shown]
            at = [(step * place + number, its) for place, its in enumerate(found) if its is not None]
            for place, name in enumerate(shown):
                if ends := ends_within(row, role, metric.name, name):
                    low, high = (100 * end for end in ends)
                    axis.vlines(step * place + number, low, high, color=colour, alpha=0.3, linewidth=3)
            axis.errorbar(
                [place for place, _ in at],
                [its.mean for _, its in at],
                yerr=[its.half or 0.0 for _, its in at],
                fmt=MARKERS[number % len(MARKERS)],
                color=colour,
                capsize=2,
                markersize=4,
                label=printable(row.label),
            )
        middle = (len(rows) - 1) / 2
        axis.set_xticks(
            [step * place + middle for place in range(len(shown))], list(map(printable, shown)), rotation=20
        )
        axis.set(ylabel=upright(metric.quantity), title=f"{comparison.label(role)}, {comparison.moment}")
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def interval_of(row: Row, role: str, metric: str, environment: str | None) -> Interval | None:
    """The mean over seeds in %, with its interval; of a seed the mean over environments, each counting once.

    Args:
        row: whose.
        role: "test" or "validation".
        metric: its name.
        environment: its name; None: all on which the metric is defined.
    """

    def scores(run: Run) -> Sequence[float]:
        found = by_environment(last(run.records), role, metric)
        return [100 * score for name, score in found.items() if environment in (None, name)]

    return Interval.of([*row.by_seed(scores, fmean).values()])
