"""A picture of representations in the plane, by domain and by class."""

from __future__ import annotations

from itertools import cycle
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fedshift.errors import FedshiftError, needs
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.analyses.represented import by_domain
from fedshift.reporting.charts import COLOURS, MARKERS, Chart, style
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting
from fedshift.written import file_name

SIZE = (9.6, 4.4)  # inches
MOST_NAMED = len(COLOURS)  # domains or classes that a legend names; of more, colours repeat


def embed_in_plane(z: Tensor, perplexity: float) -> Tensor:
    """Points (n, 2) whose neighbours are those of z (n, d), from principal components on; equal z give equal points."""
    with needs("analyse", "t-SNE"):
        from sklearn import manifold

    few = min(perplexity, (len(z) - 1) / 3)
    estimator = manifold.TSNE(perplexity=few, init="pca", random_state=0, n_jobs=1)
    return torch.from_numpy(estimator.fit_transform(z.numpy()))


class TSNE(Analysis):
    """t-SNE of the representations z, by domain and by class; no unit.

    Nearby points are similar; distances between groups and the groups' sizes mean little. Samples are those that models
    are scored on, evenly spaced: of a domain's tests, or of validation where it has none.
    """

    title: ClassVar[str] = "Representations by domain and class"
    source: ClassVar[str] = "FedSR, Fig. 1; van der Maaten and Hinton, Visualizing data using t-SNE, JMLR 2008"

    samples: Annotated[int, Ge(2)] = setting(150, help="Samples of a domain, at most")
    domains: tuple[str, ...] = setting((), help="Only these domains; by default all")
    perplexity: Annotated[float, Gt(0)] = setting(30.0, help="About how many neighbours a point has")

    def measure(self, trained: TrainedSimulation) -> Measured:
        domains = [each for each in by_domain(trained, self.samples) if not self.domains or each.name in self.domains]
        if missing := {*self.domains} - {each.name for each in domains}:
            raise FedshiftError(f"analysis.domains: '{trained.run.path}' scores no domain '{min(missing)}'.")
        z = torch.cat([domain.z for domain in domains])
        if len(z) < 4:
            raise FedshiftError(f"'{trained.run.path}' scores {len(z)} samples; t-SNE needs 4 or more.")
        classes = trained.run.data_facts["classes"]
        about = [
            {"domain": domain.name, "kind": "target" if domain.target else "source", "class": classes[label]}
            for domain in domains
            for label in domain.y.tolist()
        ]
        points = embed_in_plane(z, self.perplexity).tolist()
        return Measured(rows=[each | {"x": x, "y": y} for each, (x, y) in zip(about, points, strict=True)])

    def tables(self, rows: Rows) -> list[Table]:
        cells = [[label, str(its[0].seed), f"{len(its[0].measured.rows):,}"] for label, its in rows.items()]
        return [Table("Samples that are drawn, of each row's first seed", ["method", "seed", "samples"], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """For each row, its first seed: coloured by domain, and by class."""
        return [self._chart(label, its[0]) for label, its in rows.items()]

    def _chart(self, label: str, one: MeasuredRun) -> Chart:
        rows = one.measured.rows
        with style():
            figure = Figure(figsize=SIZE, layout="constrained")
            by_domain, by_class = figure.subplots(1, 2)
            _scatter(by_domain, rows, "domain")
            _scatter(by_class, rows, "class")
        targets = sorted({str(row["domain"]) for row in rows if row["kind"] == "target"})
        marked = f" Crosses: {', '.join(targets)}, on which no client trained." if targets else ""
        return Chart(
            file_name("tsne", label),
            f"t-SNE of z: {label}",
            f"Seed {one.seed}, {len(rows):,} samples. Left by domain, right by class.{marked}",
            f"Points of {label} in the plane, coloured by domain on the left and by class on the right.",
            figure,
            rows,
            label,
        )


def by_number(name: str) -> tuple[bool, int, str]:
    """A key by which "9" comes before "10", and numbers before words."""
    return (False, int(name), "") if name.isdecimal() else (True, 0, name)


def _scatter(axis: Axes, rows: list[dict[str, Any]], colour_by: str) -> None:
    """Points coloured by domain or class; crosses are of the target."""
    values = [*dict.fromkeys(row[colour_by] for row in rows)]
    values = values if colour_by == "domain" else sorted(values, key=by_number)
    for value, colour, marker in zip(values, cycle(COLOURS), cycle(MARKERS), strict=False):
        for kind, shape in (("source", marker if colour_by == "domain" else "o"), ("target", "x")):
            chosen = [row for row in rows if row[colour_by] == value and row["kind"] == kind]
            if chosen:
                label = f"{value}" if colour_by == "class" or kind == "source" else f"{value} (target)"
                unnamed = len(values) > MOST_NAMED or label in axis.get_legend_handles_labels()[1]
                axis.scatter(
                    [row["x"] for row in chosen],
                    [row["y"] for row in chosen],
                    s=16 if shape == "x" else 9,
                    c=colour,
                    marker=shape,
                    linewidths=0.9 if shape == "x" else 0,
                    alpha=0.8,
                    label=None if unnamed else label,
                )
    axis.set(title=f"by {colour_by}", xticks=[], yticks=[])
    if len(values) <= MOST_NAMED:
        axis.legend(frameon=False, fontsize=8, markerscale=1.6, loc="center left", bbox_to_anchor=(1.0, 0.5))
