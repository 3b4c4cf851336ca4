"""Optuna's figures of a search as PNG files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib import pyplot, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.errors import needs
from fedshift.study.search import Study, quiet


def draw_search(study: Study, trials: int) -> dict[str, bytes]:
    """Optuna's figures of the first trials of a study, as PNG files by name; those that it has enough trials for.

    Importance is that of being among the better trials (PED-ANOVA).
    """
    with needs("tune", "Figures of a search"):
        import optuna
        from optuna.visualization import matplotlib as plots

    first = study.optuna_study.get_trials(deepcopy=False)[:trials]
    values = {trial.value for trial in study.trials[:trials] if trial.value is not None}
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
