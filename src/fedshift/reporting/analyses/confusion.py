"""Which classes are taken for which, by environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from matplotlib.figure import Figure
from torch import Tensor

from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.charts import Chart, draw_heat_map, style
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting
from fedshift.written import file_name

MOST_CLASSES = 30  # that a matrix is drawn of
MOST_COLUMNS = 10  # classes whose counts a table shows


def confusion(predicted: Tensor, y: Tensor, classes: int) -> Tensor:
    """How many samples of each true class (row) were given each class (column), (classes, classes)."""
    return (y * classes + predicted).bincount(minlength=classes**2).view(classes, classes)


class Confusion(Analysis):
    """Confusion by test environment, in % of the true class: how many of its samples were given each class.

    Counts are summed over runs, and over the models that are scored on an environment; the chart is of all of them.
    """

    title: ClassVar[str] = "Confusion by environment"
    source: ClassVar[str] = "counts of the last round's predictions"

    pairs: Annotated[int, Ge(1)] = setting(
        5, help="Worst classes and most confused pairs that the tables list, of each environment"
    )

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The counts of every test environment that are not 0."""
        classes = trained.run.data_facts["classes"]
        found: dict[str, Tensor] = {}
        for one in trained.observe("test"):
            counts = confusion(one.log_probabilities.argmax(dim=1), one.y, len(classes))
            found[one.environment.name] = found.get(one.environment.name, torch.zeros_like(counts)) + counts
        return Measured(
            rows=[
                {"environment": name, "class": classes[a], "predicted": classes[b], "n": int(counts[a, b])}
                for name, counts in found.items()
                for a, b in counts.nonzero().tolist()
            ]
        )

    def tables(self, rows: Rows) -> list[Table]:
        """Accuracy of each class with its samples, then the most confused pairs."""
        by_class, confused = list[list[str]](), list[list[str]]()
        for label, its in rows.items():
            for name, counts in _summed(its).items():
                sizes: dict[str, int] = {}
                for (true, _), n in counts.items():
                    sizes[true] = sizes.get(true, 0) + n
                right = {true: counts.get((true, true), 0) for true in sizes}
                by_class += [
                    [f"{label}: {name}", true, f"{100 * right[true] / sizes[true]:.1f}", f"{sizes[true]:,}"]
                    for true in sorted(sizes, key=lambda true: right[true] / sizes[true])[: self.pairs]
                ]
                wrong = sorted(((n, pair) for pair, n in counts.items() if pair[0] != pair[1]), reverse=True)
                confused += [
                    [f"{label}: {name}", true, given, f"{n:,}", f"{100 * n / sizes[true]:.1f}"]
                    for n, (true, given) in wrong[: self.pairs]
                ]
        return [
            *self._matrices(rows),
            Table(
                "Classes with the lowest accuracy in %, with their samples",
                ["row", "class", "accuracy", "predictions"],
                by_class,
            ),
            Table("Most confused classes", ["row", "class", "taken for", "n", "% of the class"], confused),
        ]

    def _matrices(self, rows: Rows) -> list[Table]:
        """Every count of rows with the same few classes."""
        classes = [[str(name) for name in its[0].run.data_facts["classes"]] for its in rows.values()]
        names = classes[0]
        if len(names) > MOST_COLUMNS or any(each != names for each in classes):
            return []
        cells = [
            [f"{label}: {name}", true, *(f"{counts.get((true, given), 0):,}" for given in names)]
            for label, its in rows.items()
            for name, counts in _summed(its).items()
            for true in names
        ]
        return [Table("How many of each class were taken for which", ["row", "class", *names], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """A matrix for each row, of all its test environments together."""
        charts = []
        for label, its in rows.items():
            names = [str(name) for name in its[0].run.data_facts["classes"]]
            if len(names) > MOST_CLASSES:
                continue
            total: dict[tuple[str, str], int] = {}
            for counts in _summed(its).values():
                for pair, n in counts.items():
                    total[pair] = total.get(pair, 0) + n
            sizes = {true: sum(total.get((true, given), 0) for given in names) for true in names}
            matrix = [[100 * total.get((a, b), 0) / max(1, sizes[a]) for b in names] for a in names]
            with style():
                figure = Figure(figsize=(5.4, 4.6), layout="constrained")
                axis = figure.subplots()
                draw_heat_map(axis, matrix, names, names, (0.0, 100.0), "% of the true class", decimals=0)
                axis.set(xlabel="predicted", ylabel="true")
            about = "All test environments and runs together. On the diagonal: right."
            alt = f"Confusion matrix of {label}."
            data: list[Mapping[str, Any]] = [{"class": a, "predicted": b, "n": n} for (a, b), n in total.items()]
            charts.append(
                Chart(file_name("confusion", label), f"Confusion of {label}", about, alt, figure, data, label)
            )
        return charts


def _summed(runs: Sequence[MeasuredRun]) -> dict[str, dict[tuple[str, str], int]]:
    """By environment, the counts by true and predicted class, over all runs."""
    found: dict[str, dict[tuple[str, str], int]] = {}
    for one in runs:
        for row in one.measured.rows:
            counts = found.setdefault(str(row["environment"]), {})
            pair = str(row["class"]), str(row["predicted"])
            counts[pair] = counts.get(pair, 0) + int(row["n"] or 0)
    return found
