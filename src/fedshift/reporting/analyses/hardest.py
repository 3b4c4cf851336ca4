"""The samples that models are most wrong about."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from matplotlib.figure import Figure

from fedshift.errors import FedshiftError
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.analyses.pictures import as_png, check_images, draw_grid, pixels_of
from fedshift.reporting.charts import Chart, style
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting
from fedshift.written import file_name

INCH = 1.15  # of a picture
MOST_ENVIRONMENTS = 6


class Hardest(Analysis):
    """Worst-predicted test samples: those with the largest loss, in nats, of each test environment.

    A sample's number is its place in the environment. Mislabelled and damaged samples are often among them.
    """

    title: ClassVar[str] = "Worst-predicted samples"
    source: ClassVar[str] = "the negative log-likelihood of the last round's predictions"

    samples: Annotated[int, Interval(ge=1, le=20)] = setting(8, help="Samples of an environment")

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The samples of the first environments, under the model that scored them (of several the first)."""
        classes, pictured = trained.run.data_facts["classes"], False
        with suppress(FedshiftError):
            check_images(trained.run)
            pictured = True
        rows, images = list[dict[str, Any]](), dict[str, str]()
        seen: list[str] = []
        for one in trained.observe("test"):
            name = one.environment.name
            if name in seen or len(seen) == MOST_ENVIRONMENTS:
                continue
            seen.append(name)
            losses = -one.log_probabilities.gather(1, one.y.unsqueeze(1)).squeeze(1)
            for index in losses.topk(min(self.samples, len(losses))).indices.tolist():
                given = int(one.log_probabilities[index].argmax())
                row = {
                    "environment": name,
                    "sample": index,
                    "class": classes[int(one.y[index])],
                    "predicted": classes[given],
                    "probability": float(one.log_probabilities[index, given].exp()),
                    "loss": float(losses[index]),
                }
                if pictured:
                    x, _ = one.environment.samples.batch(torch.tensor([index], device=one.environment.samples.y.device))
                    images[f"{name}/{index}"] = as_png(x[0])
                rows.append(row)
        return Measured(rows=rows, images=images)

    def tables(self, rows: Rows) -> list[Table]:
        """The samples of each row's first seed."""
        columns = ["row", "sample", "class", "predicted", "with probability", "loss"]
        cells = [
            [
                f"{label}: {row['environment']}",
                str(row["sample"]),
                str(row["class"]),
                str(row["predicted"]),
                f"{row['probability']:.3f}",
                f"{row['loss']:.2f}",
            ]
            for label, its in rows.items()
            for row in its[0].measured.rows
        ]
        return [Table("Test samples with the largest loss, first seed", columns, cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """The images of each row's first seed; none where samples are no images."""
        return [self._chart(label, its[0]) for label, its in rows.items() if its[0].measured.images]

    def _chart(self, label: str, one: MeasuredRun) -> Chart:
        names = [*dict.fromkeys(str(row["environment"]) for row in one.measured.rows)]
        grid: list[list[Any]] = [[None] * self.samples for _ in names]
        titles: list[list[str]] = [[""] * self.samples for _ in names]
        for row in one.measured.rows:
            line = names.index(str(row["environment"]))
            place = titles[line].index("")
            grid[line][place] = pixels_of(one.measured.images[f"{row['environment']}/{row['sample']}"])
            titles[line][place] = f"{row['class']} as {row['predicted']}\n{100 * float(row['probability'] or 0):.0f} %"
        with style():
            figure = Figure(figsize=(0.8 + INCH * self.samples, (INCH + 0.3) * len(names)), layout="constrained")
            axes = figure.subplots(len(names), self.samples, squeeze=False)
            draw_grid(axes, grid)
            for line, name in enumerate(names):
                axes[line, 0].set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
                for axis, title in zip(axes[line], titles[line], strict=True):
                    axis.set_title(title, fontsize=7, parse_math=False)
        return Chart(
            file_name("hardest", label),
            f"Worst-predicted samples of {label}",
            f"Seed {one.seed}. Above each: its class, what it was taken for, and with which probability.",
            f"Images that {label} is most wrong about, a row for each test environment.",
            figure,
            one.measured.rows,
            label,
        )
