"""Accuracy by round, as a figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from io import BytesIO
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.reporting.results import Results, Row


def accuracy_curves(results: Results) -> Figure:
    """One panel for each test environment: test accuracy solid, validation accuracy dashed.

    Bands are one standard deviation over seeds.
    """
    environments = results.environments("test")
    columns = min(3, len(environments))
    lines = -(-len(environments) // columns)
    figure = Figure(figsize=(max(9, 4.2 * columns), 3.6 * lines + 0.3 * len(results.rows())), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat
    rows = results.rows()
    test, validation = results.label("test"), results.label("validation")
    for axis, environment in zip(axes, environments, strict=False):
        for number, row in enumerate(rows):
            colour = f"C{number % 10}"
            _line(axis, _by_round(row, environment, "test"), colour, "-", f"{row.label}, {test}")
            _line(axis, _by_round(row, environment, "validation"), colour, "--", f"{row.label}, {validation}")
        axis.set_title(f"{test} {environment}")
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    for axis in list(axes)[len(environments) :]:
        axis.set_visible(False)
    figure.supylabel("accuracy (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


Curve = dict[int, list[float]]


def _by_round(row: Row, environment: str, role: str) -> Curve:
    """Accuracies by round, one for each seed, of the runs that are tested on the environment."""
    curve: Curve = defaultdict(list)
    for run in row.runs:
        tested = {e["environment"] for e in run.records[-1]["environments"] if e["role"] == "test"}
        if environment not in tested:
            continue
        for record in run.records:
            values = [
                e["accuracy"]
                for e in record["environments"]
                if e["role"] == role and (role == "validation" or e["environment"] == environment)
            ]
            if values:
                curve[record["position"]].append(100 * mean(values))
    return curve


def _line(axis: Axes, curve: Curve, colour: str, style: str, label: str) -> None:
    rounds = sorted(curve)
    middle = [mean(curve[position]) for position in rounds]
    axis.plot(rounds, middle, style, color=colour, label=label, linewidth=1.6)
    if any(len(values) > 1 for values in curve.values()):
        spread = [stdev(values) if len(values) > 1 else 0.0 for values in _in_order(curve, rounds)]
        low = [m - s for m, s in zip(middle, spread, strict=True)]
        high = [m + s for m, s in zip(middle, spread, strict=True)]
        axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _in_order(curve: Curve, rounds: Sequence[int]) -> list[list[float]]:
    return [curve[position] for position in rounds]


def as_svg(figure: Figure) -> str:
    """The figure as an svg element that can stand in a page."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().decode()
    return text[text.index("<svg") :]
