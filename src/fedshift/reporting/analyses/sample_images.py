"""What the samples of each domain look like."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from matplotlib.figure import Figure

from fedshift.reporting.analyses.analysis import Analysis, Measured, Rows
from fedshift.reporting.analyses.pictures import as_png, check_images, draw_grid, pixels_of
from fedshift.reporting.charts import Chart, style
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting

INCH = 0.62  # of a picture


class SampleImages(Analysis):
    """Sample images of each domain, as the data set stores them; no unit.

    They are evenly spaced among the samples that models are scored on, in their order: tests, or validation where a
    domain has no test.
    """

    title: ClassVar[str] = "Sample images of each domain"
    source: ClassVar[str] = "the data set"

    images: Annotated[int, Interval(ge=1, le=20)] = setting(10, help="Images of a domain")
    domains: Annotated[int, Interval(ge=1, le=30)] = setting(12, help="Domains that are shown, at most: the first")

    def measure(self, trained: TrainedSimulation) -> Measured:
        check_images(trained.run)
        classes = trained.run.data_facts["classes"]
        domains = {}
        for one in trained.simulation.federated.environments:
            if one.role == "test" or one.name not in domains:
                domains[one.name] = one.samples
        rows, images = list[dict[str, Any]](), dict[str, str]()
        for name, samples in [*domains.items()][: self.domains]:
            chosen = torch.linspace(0, len(samples) - 1, min(self.images, len(samples))).round().long()
            x, y = samples.batch(chosen.to(samples.y.device))
            for place, (image, label) in enumerate(zip(x, y.tolist(), strict=True)):
                key = f"{name}/{place}"
                images[key] = as_png(image)
                rows.append({"domain": name, "place": place, "class": classes[label], "image": key})
        return Measured(rows=rows, images=images)

    def tables(self, rows: Rows) -> list[Table]:
        by_domain: dict[str, list[str]] = {}
        for row in next(iter(rows.values()))[0].measured.rows:
            by_domain.setdefault(str(row["domain"]), []).append(str(row["class"]))
        cells = [[name, ", ".join(its)] for name, its in by_domain.items()]
        return [Table("The classes of the images that are shown", ["domain", "classes"], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """A row of images for each domain, of the first run."""
        measured = next(iter(rows.values()))[0].measured
        names = [*dict.fromkeys(str(row["domain"]) for row in measured.rows)]
        grid: list[list[Any]] = [[None] * self.images for _ in names]
        for row in measured.rows:
            grid[names.index(str(row["domain"]))][int(row["place"] or 0)] = pixels_of(
                measured.images[str(row["image"])]
            )
        with style():
            figure = Figure(figsize=(1.2 + INCH * self.images, 0.1 + INCH * len(names)), layout="constrained")
            axes = figure.subplots(len(names), self.images, squeeze=False)
            draw_grid(axes, grid)
            for axis, name in zip(axes[:, 0], names, strict=True):
                axis.set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
        return [
            Chart(
                "sample-images",
                "Sample images",
                "A row for each domain.",
                f"Images of the domains {', '.join(names)}.",
                figure,
                [{key: row[key] for key in ("domain", "place", "class")} for row in measured.rows],
            )
        ]
