"""Accuracy by round and by test environment, as figures."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.reporting.results import Results, Row
from fedshift.runs.selection import by_environment

MOST_PANELS = 12


def accuracy_curves(results: Results) -> Figure:
    """One panel for each test environment: test accuracy solid, validation accuracy dashed.

    Bands are one standard deviation over seeds. Where the environments are many, one panel shows their mean.
    """
    environments: list[str | None] = [*results.environments("test")]
    if len(environments) > MOST_PANELS:
        environments = [None]
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
        axis.set_title(f"{test} mean" if environment is None else results.heading("test", environment))
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    for axis in list(axes)[len(environments) :]:
        axis.set_visible(False)
    figure.supylabel("accuracy (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _by_round(row: Row, environment: str | None, role: str) -> Curve:
    """Accuracies by round, one for each seed, of the runs that are tested on the environment (None: on any)."""
    curve: Curve = defaultdict(list)
    for run in row.runs:
        if environment is not None and environment not in by_environment(run.records[-1], "test"):
            continue
        for record in run.records:
            values = [
                accuracy
                for name, accuracy in by_environment(record, role).items()
                if role == "validation" or environment in (None, name)
            ]
            if values:
                curve[record["position"]].append(100 * mean(values))
    return curve


def environment_curve(results: Results) -> Figure | None:
    """Test accuracy at the last round by test environment, a line for each row; bands as for the rounds.

    None unless every test environment is named as a number of one quantity, such as p=0.3, and there are two of them.
    """
    names = results.environments("test")
    found = [re.fullmatch(r"(\w+)=(-?\d+(?:\.\d+)?)", name) for name in names]
    places = {match[0]: float(match[2]) for match in found if match}
    quantities = {match[1] for match in found if match}
    if len(places) < max(2, len(names)) or len(quantities) > 1:
        return None
    figure = Figure(figsize=(9, 4.2 + 0.3 * len(results.rows())), layout="constrained")
    axis = figure.subplots()
    for number, row in enumerate(results.rows()):
        _line(axis, _by_place(row, places), f"C{number % 10}", "o-", row.label)
    axis.set_xlabel(quantities.pop())
    axis.set_ylabel(f"{results.label('test')} accuracy (%)")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


Curve = dict[float, list[float]]  # accuracies in %, one for each seed, by round or place


def _by_place(row: Row, places: Mapping[str, float]) -> Curve:
    """Accuracies at the last round by place, one for each seed."""
    curve: Curve = defaultdict(list)
    for run in row.runs:
        for name, accuracy in by_environment(run.records[-1], "test").items():
            curve[places[name]].append(100 * accuracy)
    return curve


def _line(axis: Axes, curve: Curve, colour: str, style: str, label: str) -> None:
    places = sorted(curve)
    middle = [mean(curve[place]) for place in places]
    axis.plot(places, middle, style, color=colour, label=label, linewidth=1.6, markersize=4)
    if any(len(values) > 1 for values in curve.values()):
        spread = [stdev(values) if len(values) > 1 else 0.0 for values in _in_order(curve, places)]
        low = [m - s for m, s in zip(middle, spread, strict=True)]
        high = [m + s for m, s in zip(middle, spread, strict=True)]
        axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _in_order(curve: Curve, places: Sequence[float]) -> list[list[float]]:
    return [curve[place] for place in places]


def as_svg(figure: Figure) -> str:
    """The figure as an svg element that can stand in a page."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().decode()
    return text[text.index("<svg") :]
