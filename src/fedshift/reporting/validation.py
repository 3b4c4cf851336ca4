"""A validation at a site that never joined: tables, a page and a file of aggregates; single rows stay at the site."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedshift import files
from fedshift.core.disclosure import WITHHELD
from fedshift.core.metrics import Metric
from fedshift.core.reliability import DIGITS, Bin
from fedshift.reporting.charts import COLOURS, INK, Chart, style
from fedshift.reporting.table import Table, Tabled, as_csv, render
from fedshift.runs.drift_of_columns import ColumnDrift
from fedshift.runs.schema import Record
from fedshift.runs.scoring import MetricValue, OperatingPoint, Performance

SIZE = (4.8, 4.2)  # inches
FILE = "validation"
STAYS = "Every row is of a single sample: the file must stay at the site that has the samples."
PREDICTIVE = ("sensitivity", "specificity", "PPV", "NPV")


@dataclass(frozen=True)
class Balance:
    """A class with its shares."""

    name: str  # the class's
    n: int | str  # how many samples are of it, or what stands in the place
    trained: float | None  # its share of the samples that the model was trained on; None: not known


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Tabled):
    """The performance of a model on labelled samples, as aggregates that may be published.

    Attributes:
        model: the model's name.
        against: the name of a second model; may be empty.
        dataset: the kind of data, by its name in the catalogue.
        floor: the least number of samples (or groups, for grouped samples) of a published cell.
        by: the column of the subgroups; may be empty.
        overall: all samples together.
        subgroups: the subgroups.
        classes: each class, here and in training.
        calibration: intercept and slope, for two classes.
        reliability: samples by probability, in ascending order.
        points: thresholds that were chosen on validation data, for two classes.
        drift: a table's columns compared with training.
        differences: between the two models.
        remarks: notes for readers.
        reading: how the files were read, for the site alone.
        rows: every sample, for the site alone.
    """

    model: str
    against: str
    dataset: str
    floor: int
    by: str
    overall: Performance
    subgroups: tuple[Performance, ...]
    classes: tuple[Balance, ...]
    calibration: tuple[MetricValue, ...]
    reliability: tuple[Bin, ...]
    points: tuple[OperatingPoint, ...]
    drift: tuple[ColumnDrift, ...]
    differences: tuple[MetricValue, ...]
    remarks: tuple[str, ...]
    reading: tuple[str, ...] = field(default=(), compare=False)
    rows: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)

    def document(self) -> dict[str, Any]:
        """All aggregates as JSON, with numbers of four digits."""
        own = ("reading", "rows", "reliability")
        published = {name: value for name, value in asdict(self).items() if name not in own}
        found: dict[str, Any] = _rounded(published | {"reliability": [each._asdict() for each in self.reliability]})
        return found

    def notes(self) -> list[str]:
        """Notes for readers."""
        return [*self.remarks]

    def measurements(self) -> list[Record]:
        """Every score of every environment."""
        return [
            {"environment": each.name, **asdict(score)}
            for each in (self.overall, *self.subgroups)
            for score in each.scores
        ]

    def tables(self) -> list[Table]:
        found = [_scores(f"{self.model} on {self.overall.n} samples, in %", self.overall.scores), self._of_classes()]
        found += [self._of_subgroups()] * bool(self.subgroups)
        found += [self._of_points()] * bool(self.points)
        found += [_plain("Calibration", self.calibration)] * bool(self.calibration)
        found += [self._of_bins()] * bool(self.reliability)
        found += [_scores(f"{self.model} minus {self.against}, in points", self.differences)] * bool(self.differences)
        return found + [self._of_columns()] * bool(self.drift)

    def charts(self) -> list[Chart]:
        """The reliability diagram, if there are bins."""
        return [_diagram(self)] if self.reliability else []

    def page(self) -> str:
        """The tables and the diagram as self-contained HTML."""
        return render(
            "validation.html.jinja",
            title=f"{self.model} on {self.overall.n} samples",
            tables=self.tables(),
            notes=self.notes(),
            charts=self.charts(),
        )

    def write(self, folder: str | Path) -> list[Path]:
        """Write the aggregates: validation.json, .md and .html, and the diagram as SVG and PNG.

        Returns:
            The files.

        Raises:
            FedshiftError: they cannot be written.
        """
        to = Path(folder)
        contents: dict[str, str | bytes] = {
            f"{FILE}.json": json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n",
            f"{FILE}.md": self.table(),
            f"{FILE}.html": self.page(),
        }
        for chart in self.charts():
            contents |= {f"{chart.name}.svg": chart.svg(), f"{chart.name}.png": chart.png()}
        files.make_folder(to)
        for name, content in contents.items():
            files.write(to / name, content)
        return [to / name for name in contents]

    def write_rows(self, path: str | Path) -> Path:
        """Write every sample with its label and probabilities as CSV, readable by its owner only.

        Raises:
            FedshiftError: it cannot be written.
        """
        to = Path(path)
        files.make_folder(to.parent)
        files.write(to, as_csv(self.rows), private=True)
        return to

    def _of_classes(self) -> Table:
        cells = [
            [each.name, _count(each.n), _percent(_share(each.n, self.overall.n)), _percent(each.trained)]
            for each in self.classes
        ]
        return Table("Classes", ["class", "n", "share (%)", "share in training (%)"], cells)

    def _of_subgroups(self) -> Table:
        names = [each.name for each in self.overall.scores if " of " not in each.name]
        rows = []
        for each in self.subgroups:
            by_name = {score.name: score for score in each.scores}
            known = [by_name.get(name) for name in names]
            supports = [_count(each.support[one.name]) for one in self.classes]
            rows.append([each.name, str(each.n), *supports, *(_text(one) if one else "" for one in known)])
        heads = [f"n {each.name}" for each in self.classes]
        return Table(f"By {self.by}, in %", [self.by, "n", *heads, *(Metric(name).title for name in names)], rows)

    def _of_points(self) -> Table:
        rows = []
        for each in self.points:
            published = [_text(score) for score in each.scores] or [""] * len(PREDICTIVE)
            rows.append([each.rule, WITHHELD if each.threshold is None else f"{each.threshold:.4g}", *published])
        heads = ["chosen by validation for", "threshold", *PREDICTIVE]
        return Table(f"At thresholds of the probability of '{self.classes[1].name}', in %", heads, rows)

    def _of_bins(self) -> Table:
        rows = [
            [str(each.n), _percent(each.predicted), f"{100 * each.observed:.1f} {_ends(each.low, each.high)}"]
            for each in self.reliability
        ]
        return Table(f"Reliability: {self._observed()}, in %", ["n", "predicted", "observed"], rows)

    def _observed(self) -> str:
        if len(self.classes) == 2:
            return f"how often a sample is '{self.classes[1].name}', by its predicted probability"
        return "how often a prediction is right, by its probability"

    def _of_columns(self) -> Table:
        rows = [
            [
                each.column,
                "" if each.difference is None else f"{each.difference:.2f}",
                "" if each.spread is None else f"{each.spread:.2f}",
                each.missing if isinstance(each.missing, str) else _percent(each.missing),
                _percent(each.trained_missing),
                each.remark,
            ]
            for each in self.drift
        ]
        heads = ["column", "difference", "spread", "missing (%)", "in training (%)", ""]
        return Table("Columns compared with training", heads, rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


# As text --------------------------------------------------------------------------------------------------


def _scores(title: str, scores: Sequence[MetricValue]) -> Table:
    rows = [[Metric(each.name).title, _value(each), _interval(each), _count(each.n)] for each in scores]
    return Table(title, ["metric", "value", "95 % interval", "n"], rows)


def _plain(title: str, scores: Sequence[MetricValue]) -> Table:
    ideal = {"intercept": "0", "slope": "1"}
    rows = [
        [each.name, f"{each.value:.2f}", f"[{each.low:.2f}, {each.high:.2f}]", ideal[each.name]]
        for each in scores
        if each.value is not None
    ]
    return Table(title, ["", "value", "95 % interval", "ideal"], rows)


def _value(score: MetricValue) -> str:
    if score.value is None:
        return score.why
    return f"{score.value:.3g}" if score.name.startswith("p of") else f"{100 * score.value:.1f}"


def _interval(score: MetricValue) -> str:
    return "" if score.low is None or score.high is None else _ends(score.low, score.high)


def _ends(low: float, high: float) -> str:
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _text(score: MetricValue) -> str:
    return f"{_value(score)} {_interval(score)}".strip()


def _count(n: int | str | None) -> str:
    return "" if n is None else str(n)


def _share(n: int | str, of: int) -> float | None:
    return None if isinstance(n, str) else n / of


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _diagram(found: Validation) -> Chart:
    """Observed shares by predicted probability, with their intervals."""
    points = found.reliability
    x, y = [100 * each.predicted for each in points], [100 * each.observed for each in points]
    ends = [
        [100 * (each.observed - each.low) for each in points],
        [100 * (each.high - each.observed) for each in points],
    ]
    with style():
        figure = Figure(figsize=SIZE, layout="constrained")
        axis = figure.subplots()
        axis.plot([0, 100], [0, 100], linestyle=":", color=INK, linewidth=0.8)
        axis.errorbar(
            x,
            y,
            yerr=[[max(0.0, end) for end in side] for side in ends],
            fmt="o-",
            color=COLOURS[0],
            capsize=2,
            markersize=4,
            linewidth=1,
        )
        axis.set(xlabel="predicted (%)", ylabel="observed (%)", xlim=(0, 100), ylim=(0, 100), aspect="equal")
    return Chart(
        "reliability",
        f"Reliability of {found.model}",
        "Each mark is of about equally many samples; bars are 95 % intervals. On the dotted line probabilities are "
        "right, below it they are too large.",
        f"Reliability in {len(points)} bins: {found._observed()}.",
        figure,
        [each._asdict() for each in points],
    )
