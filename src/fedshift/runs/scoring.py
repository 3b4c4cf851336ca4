"""A trained model's scores on labelled samples that it never saw, as numbers that may be published.

An environment is all samples together or a subgroup of them. :mod:`fedshift.core.disclosure` decides what may be
published, and a withheld number has a reason in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.core.disclosure import WITHHELD, CellCounts, Permitted, fewer, permitted, pooled, size_alone
from fedshift.core.metrics import ACCURACY, Array, Metric, measured, names
from fedshift.core.reliability import Bin, Fitted, Point, calibration, count, mcnemar, operating_points, reliability
from fedshift.core.uncertainty import Bounds, auroc, intervals, resampled, share, share_bounds
from fedshift.runs.released import Released, Subgroups

DEFAULT = ("balanced-accuracy", "auroc", "class-sensitivity", "class-precision", "calibration-error-10")
OTHERS = "others"
EVERYTHING = "all samples"
BINS = 10
SEED = 0  # of resamples


@dataclass(frozen=True)
class MetricValue:
    """A number with its interval."""

    name: str
    value: float | None = None  # None where it is withheld or undefined
    low: float | None = None  # the lower end of the 95 % interval; None without an interval
    high: float | None = None  # the upper end
    n: int | None = None  # the denominator of a metric that is a share; None of others
    why: str = ""  # why there is no value

    @classmethod
    def of(cls, name: str, value: float, bounds: Bounds | Fitted | None, n: int | None = None) -> MetricValue:
        if bounds is None:
            return cls(name, float(value), n=n)
        return cls(name, float(value), float(bounds.low), float(bounds.high), n)


@dataclass(frozen=True)
class Performance:
    """An environment with its scores."""

    name: str
    n: int  # how many samples it has
    support: Mapping[str, int | str] = field(default_factory=dict)  # samples per class, or why it is withheld
    scores: tuple[MetricValue, ...] = ()  # by metric; empty where only the size is published


@dataclass(frozen=True)
class OperatingPoint:
    """The scores at a threshold that validation samples chose."""

    rule: str  # by which it was chosen
    threshold: float | None = None  # of the second class's probability; None where it is withheld
    scores: tuple[MetricValue, ...] = ()  # sensitivity, specificity, and positive and negative predictive value
    why: str = ""  # why there are no scores


@dataclass(frozen=True, eq=False)
class Predicted:
    """A model's predictions for labelled samples."""

    log_probabilities: Tensor  # (n, classes), float64
    y: Tensor  # labels (n,)
    group: Array  # the group of each sample, (n,)
    classes: tuple[str, ...]
    floor: int  # the least number of groups in a cell that is published

    @cached_property
    def predicted(self) -> Array:
        found: Array = self.log_probabilities.argmax(dim=1).numpy()
        return found

    @cached_property
    def labels(self) -> Array:
        found: Array = self.y.numpy()
        return found

    @property
    def right(self) -> Array:
        found: Array = self.predicted == self.labels
        return found

    @property
    def p(self) -> Array:
        """The probabilities of the second class (n,)."""
        found: Array = self.log_probabilities[:, 1].exp().numpy()
        return found

    @cached_property
    def cells(self) -> CellCounts:
        return CellCounts.of(self.labels, self.predicted, self.group, len(self.classes), self.floor)

    @cached_property
    def permitted(self) -> Permitted:
        return permitted(self.cells, self.floor)

    def among(self, rows: Array) -> Predicted:
        """The samples that booleans (n,) select."""
        chosen = torch.from_numpy(rows)
        parts = self.log_probabilities[chosen], self.y[chosen], self.group[rows]
        return Predicted(*parts, self.classes, self.floor)

    def few(self, what: str) -> str:
        return f"{what} {fewer(self.floor)} samples"


def of_model(model: Released, data: DomainData, floor: int) -> Predicted:
    return Predicted(model.log_probabilities(data.x), data.y, data.group.numpy(), model.classes, floor)


def environment(scored: Predicted, name: str, declared: Sequence[str]) -> Performance:
    """Everything that may be published of an environment that is not small."""
    permits, known = scored.permitted, (scored.classes, scored.log_probabilities, scored.y)
    values = {ACCURACY: float(scored.right.mean()), **measured(declared, *known)}
    wanted = [one for one in (ACCURACY, *names(declared, scored.classes)) if permits.metric(one, scored.classes)]
    several = [one for one in declared if one in wanted]
    bounds = intervals(declared, *known, scored.group) | resampled(several, *known, scored.group, SEED)
    scores = []
    for one, value in values.items():
        if one not in wanted:
            scores.append(MetricValue(one, why=scored.few("a class has, or is predicted for,")))
        elif value is None:
            scores.append(MetricValue(one, why=Metric(one).lacks))
        else:
            scores.append(MetricValue.of(one, value, bounds.get(one), _denominator(scored, one)))
    support = dict(zip(scored.classes, permits.support, strict=True))
    return Performance(name, len(scored.y), support, tuple(scores))


def _denominator(scored: Predicted, name: str) -> int | None:
    kind, _, of_class = name.partition(" of ")
    if kind not in (ACCURACY, "sensitivity", "precision"):
        return None
    if kind == ACCURACY:
        return len(scored.y)
    numbers = scored.labels if kind == "sensitivity" else scored.predicted
    return int((numbers == scored.classes.index(of_class)).sum())


def subgroups(scored: Predicted, groups: Subgroups, declared: Sequence[str]) -> list[Performance]:
    """Every subgroup, small ones pooled as "others"; empty if there is only one, or all are small."""
    which = groups.which.numpy()
    rows = {name: which == place for place, name in enumerate(groups.names) if (which == place).any()}
    inside = pooled(
        {name: int(own.sum()) for name, own in rows.items()},
        {name: count(scored.group[own]) for name, own in rows.items()},
        scored.floor,
    )
    kept = {name: own for name, own in rows.items() if name not in inside}
    if inside:
        kept[_unused(OTHERS, kept)] = np.logical_or.reduce([rows[name] for name in inside])
    if len(kept) < 2:
        return []
    parts = {name: scored.among(own) for name, own in kept.items()}
    hidden = size_alone({name: part.cells for name, part in parts.items()}) if scored.cells.whole else set(parts)
    return [
        Performance(name, len(part.y), dict.fromkeys(scored.classes, WITHHELD))
        if name in hidden
        else environment(part, name, declared)
        for name, part in parts.items()
    ]


def _unused(name: str, others: Mapping[str, Array]) -> str:
    while name in others:
        name = f"({name})"
    return name


# Probabilities and thresholds --------------------------------------------------------------------------


def bins(scored: Predicted) -> list[Bin]:
    """Reliability bins: of the second class's probability for two classes, of the predicted class's for more."""
    if len(scored.classes) > 2:
        confidence: Array = scored.log_probabilities.amax(dim=1).exp().numpy()
        p, true, permits = confidence, scored.right, scored.permitted.threshold
    else:
        p, true, permits = scored.p, scored.labels == 1, scored.cells.whole
    return reliability(p, true, scored.group, BINS, scored.floor) if permits else []


def coefficients(scored: Predicted) -> list[MetricValue]:
    """Intercept and slope of calibration, for two classes of which neither is small."""
    if len(scored.classes) != 2 or not scored.permitted.supported:
        return []
    logit = (scored.log_probabilities[:, 1] - scored.log_probabilities[:, 0]).numpy()
    found = calibration(logit, scored.labels == 1, scored.group)
    return [MetricValue.of(name, fitted.value, fitted) for name, fitted in found.items()]


def chosen_on_validation(model: Released, federated: FederatedData) -> list[Point]:
    """The thresholds that a run's validation samples choose; empty without such samples, or if all are of one class.

    For a client's model these are the client's samples; for the global model all.
    """
    own = [each for each in federated.environments if each.role == "validation"]
    if model.client is not None:
        own = [each for each in own if each.client == model.client]
    if not own:
        return []
    y = torch.cat([each.samples.y for each in own]).numpy()
    p = torch.cat([model.log_probabilities(each.samples.x) for each in own])[:, 1].exp().numpy()
    return operating_points(p, y == 1) if len(np.unique(y)) == 2 else []


def at_threshold(scored: Predicted, point: Point) -> OperatingPoint:
    chosen, positive = scored.p > point.threshold, scored.labels == 1
    cells = CellCounts.of(scored.labels, chosen.astype(int), scored.group, 2, scored.floor)
    if not cells.whole:
        return OperatingPoint(point.rule, why=scored.few("a class, or a side of the threshold, has"))
    parts = {
        "sensitivity": (chosen, positive),
        "specificity": (~chosen, ~positive),
        "positive predictive value": (positive, chosen),
        "negative predictive value": (~positive, ~chosen),
    }
    scores = [
        MetricValue.of(name, hits[of].mean(), share_bounds(hits[of], scored.group[of]), int(of.sum()))
        if of.any()
        else MetricValue(name, why="no sample is on this side of the threshold")
        for name, (hits, of) in parts.items()
    ]
    return OperatingPoint(point.rule, point.threshold, tuple(scores))


# Two models ---------------------------------------------------------------------------------------------


def paired(scored: Predicted, other: Predicted) -> list[MetricValue]:
    """The differences of two models on the same samples, and p of McNemar's exact test."""
    found = []
    if scored.permitted.threshold and other.permitted.threshold:
        one, two = share(scored.right), share(other.right)
        found.append(MetricValue.of(ACCURACY, (one - two).value, (one - two).bounds(scored.group, least=-1.0)))
        found.append(MetricValue("p of McNemar's test", mcnemar(scored.right, other.right)))
    else:
        found.append(MetricValue(ACCURACY, why=scored.few("a class is predicted for")))
    if len(scored.classes) == 2 and scored.permitted.supported:
        areas = [auroc(scored.labels == 1, each.p) for each in (scored, other)]
        if areas[0] is not None and areas[1] is not None:
            difference = areas[0] - areas[1]
            found.append(MetricValue.of("auroc", difference.value, difference.bounds(scored.group, least=-1.0)))
    return found
