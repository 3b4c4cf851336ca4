"""Draw the README's picture: accuracy by round of finished runs, one colour for each method.

    fedshift compare --seed 0,1,2 --set run.engine=sequential
    python tools/curves.py runs/rotated-mnist docs/_static/main-job.svg

Solid lines show test environments, dashed lines the mean of validation environments; bands are one standard deviation
over seeds. Text and axes follow the reader's light or dark theme.
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


def draw_curve(axes: Axes, curve: Curve, colour: str, label: str, dashed: bool) -> None:
    rounds = sorted(curve)
    means = [fmean(curve[number]) for number in rounds]
    spreads = [stdev(curve[number]) if len(curve[number]) > 1 else 0.0 for number in rounds]
    axes.plot(rounds, means, "--" if dashed else "-", color=colour, linewidth=1.2 if dashed else 2.0)
    low, high = zip(*((mean - spread, mean + spread) for mean, spread in zip(means, spreads, strict=True)), strict=True)
    axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.annotate(
        f"{label}  {means[-1]:.1f}",
        (rounds[-1], means[-1]),
        (6, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontweight="normal" if dashed else "bold",
        annotation_clip=False,
    )


def picture(comparison: fedshift.Comparison) -> str:
    """The curves as SVG."""
    methods = list(dict.fromkeys(run.table["method"]["name"] for run in comparison.runs))
    inked = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(inked | {"svg.fonttype": "none", "svg.hashsalt": "curves", "font.size": 10}):
        figure = Figure(figsize=(8, 3.6))
        axes = figure.subplots()
        figure.subplots_adjust(0.08, 0.15, 0.76, 0.9)
        for role, dashed in (("validation", True), ("test", False)):
            for method, colour in zip(methods, COLOURS, strict=False):
                label = f"{method}, {'source validation' if dashed else 'held out'}"
                draw_curve(axes, accuracies(comparison, method, role), colour, label, dashed)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xlabel="round", title=f"Accuracy in %, {len(comparison.seeds)} seeds")
        axes.title.set(fontsize=11, ha="left", x=0.0)
        buffer = BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue().decode().replace(INK, "currentColor")
    return text.replace("<defs>", f"<style>{THEME}</style>\n <defs>", 1)


def main(runs: str, svg: str) -> int:
    Path(svg).write_text(picture(fedshift.load(runs)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
