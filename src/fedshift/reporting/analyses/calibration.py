"""How far a model's confidence is from its accuracy, by environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from matplotlib.figure import Figure
from torch import Tensor

from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.charts import INK, Chart, style
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting
from fedshift.written import file_name

SIZE = (4.8, 3.6)  # inches


def bins(confidence: Tensor, right: Tensor, count: int) -> list[dict[str, Any]]:
    """Samples by confidence, in bins of equal width.

    Args:
        confidence: the largest predicted probability of each sample (n,), in 0..1.
        right: whether each prediction is right (n,).
        count: how many bins; each includes its upper end.

    Returns:
        For each bin that has samples: its ``bin`` from 0, ``n``, mean ``confidence`` and ``accuracy``.
    """
    number = (confidence.double() * count).ceil().clamp(1, count).long() - 1
    return [
        {
            "bin": one,
            "n": int((chosen := number == one).sum()),
            "confidence": float(confidence[chosen].double().mean()),
            "accuracy": float(right[chosen].double().mean()),
        }
        for one in sorted(set(number.tolist()))
    ]


def calibration_error(binned: list[dict[str, Any]]) -> float:
    """The expected calibration error, in 0..1: sum over bins of n_b / n |accuracy_b - confidence_b| (Eq. 3)."""
    total = sum(one["n"] for one in binned)
    return float(sum(one["n"] * abs(one["accuracy"] - one["confidence"]) for one in binned) / total)


class Calibration(Analysis):
    """Expected calibration error in percentage points: over bins of confidence, the mean |accuracy - confidence|.

    Confidence is the largest predicted probability. 0 is best; it depends on the number of bins.
    """

    title: ClassVar[str] = "Calibration by environment"
    source: ClassVar[str] = "Guo et al., On calibration of modern neural networks, ICML 2017, Eq. 3"

    bins: Annotated[int, Ge(2)] = setting(15, help="Bins of equal width")

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The bins of every environment; where several models are scored on it, of all of their predictions."""
        found: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {}
        for one in trained.observe():
            confidence = one.log_probabilities.exp().amax(dim=1)
            key = one.environment.role, one.environment.name
            found.setdefault(key, []).append((confidence, one.right))
        return Measured(
            rows=[
                {"role": role, "environment": name, **each}
                for (role, name), parts in found.items()
                for each in bins(torch.cat([c for c, _ in parts]), torch.cat([right for _, right in parts]), self.bins)
            ]
        )

    def tables(self, rows: Rows) -> list[Table]:
        """The error of each row by test environment, mean and standard deviation over seeds."""
        errors = {label: self._errors(its) for label, its in rows.items()}
        names = [*dict.fromkeys(name for by_name in errors.values() for name in by_name)]
        cells = [
            [label, *(found.text() if (found := MeanStd.of(by_name.get(name, []))) else "" for name in names)]
            for label, by_name in errors.items()
        ]
        return [Table(f"Expected calibration error, percentage points, {self.bins} bins", ["method", *names], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """A reliability diagram for each row: accuracy by confidence on every test environment."""
        return [self._chart(label, its) for label, its in rows.items()]

    def _errors(self, runs: Sequence[MeasuredRun]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for one in runs:
            for name, binned in _by_environment(one.measured).items():
                found.setdefault(name, []).append(100 * calibration_error(binned))
        return found

    def _chart(self, label: str, runs: Sequence[MeasuredRun]) -> Chart:
        with style():
            figure = Figure(figsize=SIZE, layout="constrained")
            axis = figure.subplots()
            axis.plot([0, 100], [0, 100], linestyle=":", color=INK, linewidth=0.8)
            for place, (name, binned) in enumerate(_by_environment(runs[0].measured).items()):
                points = [(100 * one["confidence"], 100 * one["accuracy"]) for one in binned]
                axis.plot(*zip(*points, strict=True), "o-", color=f"C{place % 10}", label=name, markersize=3)
            axis.set(xlabel="confidence (%)", ylabel="accuracy (%)", xlim=(0, 100), ylim=(0, 100))
            axis.legend(frameon=False)
        return Chart(
            file_name("calibration", label),
            f"Reliability of {label}",
            f"Seed {runs[0].seed}. On the dotted line confidence is accuracy; below it the model is overconfident.",
            f"Accuracy by confidence of {label}, a line for each test environment.",
            figure,
            [row for row in runs[0].measured.rows if row["role"] == "test"],
            label,
        )


def _by_environment(measured: Measured) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in measured.rows:
        if row["role"] == "test":
            found.setdefault(str(row["environment"]), []).append(row)
    return found
