"""Draw the README's picture: accuracy by round of finished runs, one colour for each method.

    fedshift compare --seed 0,1,2,3,4 --set run.engine=sequential
    python tools/curves.py runs/rotated-mnist docs/_static/main-job.svg

Solid lines show test environments with a band of one standard deviation over seeds, dashed lines the mean of validation
environments. Text and axes follow the reader's light or dark theme.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from statistics import fmean, stdev

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedshift

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
INK = "#010203"
SPACING = 0.075  # of the height of the axes, between labels
THEME = "svg { color: #24292f } @media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }"
Curve = dict[int, list[float]]  # accuracies in % over seeds, by round


def accuracies(comparison: fedshift.Comparison, method: str, role: str) -> Curve:
    """A method's mean accuracy over the environments with a role, in %."""
    curve: Curve = defaultdict(list)
    for run in comparison.runs:
        for record in run.records if run.table["method"]["name"] == method else ():
            scores = [100 * scored["accuracy"] for scored in record["environments"] if scored["role"] == role]
            curve[record["position"]].append(fmean(scores))
    return curve


def draw_curve(axes: Axes, curve: Curve, colour: str, dashed: bool) -> float:
    """Draw a line, if solid with its band; returns its last value."""
    rounds = sorted(curve)
    means = [fmean(curve[number]) for number in rounds]
    axes.plot(rounds, means, "--" if dashed else "-", color=colour, linewidth=1.1 if dashed else 2.2)
    if not dashed:
        spreads = [stdev(curve[number]) if len(curve[number]) > 1 else 0.0 for number in rounds]
        pairs = list(zip(means, spreads, strict=True))
        low, high = [mean - spread for mean, spread in pairs], [mean + spread for mean, spread in pairs]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
    return means[-1]


def label_ends(axes: Axes, ends: list[tuple[float, str, str, bool]]) -> None:
    """Write each line's name and last value to the right of the axes, from low to high and without overlap."""
    least, most = axes.get_ylim()
    place = -1.0
    for value, label, colour, dashed in sorted(ends):
        place = max((value - least) / (most - least), place + SPACING)
        weight = "normal" if dashed else "bold"
        axes.text(
            1.01, place, f"{value:.1f}  {label}", transform=axes.transAxes, va="center", color=colour, weight=weight
        )


def picture(comparison: fedshift.Comparison) -> str:
    """The curves as SVG."""
    methods = list(dict.fromkeys(run.table["method"]["name"] for run in comparison.runs))
    inked = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(inked | {"svg.fonttype": "none", "svg.hashsalt": "curves", "font.size": 10}):
        figure = Figure(figsize=(8, 3.6))
        axes = figure.subplots()
        figure.subplots_adjust(0.08, 0.15, 0.7, 0.9)
        ends = []
        for role, name in (("validation", "validation"), ("test", "held out")):
            for method, colour in zip(methods, COLOURS, strict=False):
                dashed = role == "validation"
                last = draw_curve(axes, accuracies(comparison, method, role), colour, dashed)
                ends.append((last, f"{method}, {name}", colour, dashed))
        label_ends(axes, ends)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xlabel="round", title=f"Accuracy in %, {len(comparison.seeds)} seeds")
        axes.title.set(fontsize=11, ha="left", x=0.0)
        buffer = BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue().decode().replace(INK, "currentColor")
    return text.replace("<defs>", f"<style>{THEME}</style>\n <defs>", 1)


def main(runs: str, svg: str) -> int:
    """Write the picture of a folder of runs."""
    Path(svg).write_text(picture(fedshift.load(runs)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
