"""Figures of one study: its history, how much each setting matters, and the value by each setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from fedshift.errors import needs
from fedshift.reporting.curves import upright
from fedshift.settings.spec import Range, Search, as_toml
from fedshift.tuning.space import in_words
from fedshift.tuning.study import Study, Trial

WIDTH, HEIGHT = 6.4, 3.2  # inches of a figure
ACROSS = 3  # panels of the values by setting in a row
COMPLETE, PRUNED, FAILED, BEST = "#1f77b4", "#8c8c8c", "#d62728", "#ff7f0e"
LEAST_HEIGHT = 5.0  # percentage points that an axis of scores covers
FEW = 10  # complete trials, below which importance says little
TEN = 10.0


def history(study: Study, trials: Sequence[Trial]) -> Figure:
    """The value of each trial, and the best so far; pruned ones at their best until then."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axis, best = figure.subplots(), study.metric.best
    complete = [(number, 100 * trial.value) for number, trial in enumerate(trials, 1) if trial.value is not None]
    pruned = [(number, 100 * best(trial.values)) for number, trial in enumerate(trials, 1) if trial.state == "pruned"]
    failed = [number for number, trial in enumerate(trials, 1) if trial.state == "failed"]
    so_far = [(number, best(value for at, value in complete if at <= number)) for number, _ in complete]
    axis.step(*_columns(so_far), where="post", color=BEST, linewidth=1.6, label="best so far")
    axis.plot(*_columns(complete), "o", color=COMPLETE, markersize=5, label="complete")
    if pruned:
        axis.plot(*_columns(pruned), "x", color=PRUNED, markersize=6, label="pruned, at its best until then")
    low, high = _limits([value for _, value in (*complete, *pruned)])
    if failed:
        axis.plot(failed, [low] * len(failed), "v", color=FAILED, clip_on=False, label="failed")
    axis.set(xlabel="trial", ylabel=_scores(study), xlim=(0.4, len(trials) + 0.6), ylim=(low, high))
    axis.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    plain(axis)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def importance(shares: Mapping[str, float]) -> Figure:
    """How much each setting matters, as :func:`shares_of` says."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.35 * len(shares)), layout="constrained")
    axis = figure.subplots()
    names = list(shares)[::-1]
    bars = axis.barh(names, [100 * shares[name] for name in names], color=COMPLETE, height=0.6)
    axis.bar_label(bars, fmt="%.0f %%", padding=3, fontsize=8)
    axis.set(xlabel="importance (% of all)", xlim=(0, 112))
    plain(axis)
    axis.grid(visible=False, axis="y")
    return figure


def slices(study: Study, trials: Sequence[Trial]) -> Figure:
    """The value of complete trials by each setting; the darker, the later."""
    searched = study.space.searched
    rows = -(-len(searched) // ACROSS)
    columns = -(-len(searched) // rows)
    figure = Figure(figsize=(max(WIDTH, 3.2 * columns), 2.8 * rows), layout="constrained")
    complete = [
        (number, trial)
        for number, trial in enumerate(trials)
        if trial.value is not None and study.space.holds(trial.settings)
    ]
    low, high = _limits([100 * (trial.value or 0) for _, trial in complete])
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    merit = study.metric.merit
    best = max(complete, key=lambda item: (merit(item[1].value or 0), -item[0]), default=(0, None))[1]
    for axis, (key, search) in zip(axes, searched.items(), strict=False):
        place = _places(axis, search)
        across = [place(trial.settings[key]) for _, trial in complete]
        up = [100 * (trial.value or 0) for _, trial in complete]
        shades = [0.25 + 0.75 * number / max(1, len(trials) - 1) for number, _ in complete]
        axis.scatter(across, up, c=shades, cmap="Blues", vmin=0, vmax=1, s=26, edgecolors=COMPLETE, linewidths=0.6)
        if best is not None:
            axis.plot(place(best.settings[key]), 100 * (best.value or 0), "*", color=BEST, markersize=11)
        axis.set(title=key, ylim=(low, high))
        axis.title.set_fontsize(9)
        plain(axis)
    for axis in axes[len(searched) :]:
        axis.set_visible(False)
    for axis in axes[::columns]:
        axis.set_ylabel(_scores(study), fontsize=8)
    return figure


def _scores(study: Study) -> str:
    """What stands beside an axis of values."""
    return upright(f"validation {study.metric.quantity}")


def shares_of(study: Study, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each setting matters for being among the better trials (PED-ANOVA), largest first; together 1.

    Empty where it cannot be told: fewer than two settings, or no two complete trials that differ in their value.
    """
    values = {trial.value for trial in trials if trial.value is not None and study.space.holds(trial.settings)}
    if len(study.space.searched) < 2 or len(values) < 2:
        return {}
    with needs("tune", "The importance of settings"):
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    found = get_param_importances(study.completed(trials), evaluator=PedAnovaImportanceEvaluator())
    return {key: float(share) for key, share in sorted(found.items(), key=lambda item: (-item[1], item[0]))}


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG file; equal figures give equal files."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def _places(axis: Axes, search: Search) -> Callable[[Any], float]:
    """Where the values of a setting lie on an axis, which is prepared for them."""
    if isinstance(search, Range):
        if search.log:
            axis.set_xscale("log")
            margin = (search.high / search.low) ** 0.05
            axis.set_xlim(search.low / margin, search.high * margin)
            if search.high / search.low >= TEN**3:
                axis.xaxis.set_minor_locator(NullLocator())
        else:
            margin = 0.05 * (search.high - search.low)
            axis.set_xlim(search.low - margin, search.high + margin)
        return float
    choices = [as_toml(choice) for choice in search]
    axis.set_xticks(range(len(choices)), [in_words((choice,)) for choice in choices])
    axis.set_xlim(-0.5, len(choices) - 0.5)
    return lambda value: float(choices.index(value))


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [number for number, _ in points], [value for _, value in points]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis of scores in %, a little beyond them."""
    low, high = min(values, default=0.0), max(values, default=100.0)
    margin = max(0.06 * (high - low), (LEAST_HEIGHT - (high - low)) / 2)
    return low - margin, high + margin


def plain(axis: Axes) -> None:
    """Give an axis a light grid, small ticks and no frame."""
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
