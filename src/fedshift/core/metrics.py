"""Metrics beside accuracy: how they are declared and named, and what each is of an environment's predictions.

All are numbers in 0..1. Those of two classes are of the second one; of more classes they are the mean over the classes
that an environment has, each against all others (macro, one-vs-rest). What scikit-learn has is scikit-learn's.

- balanced-accuracy: the mean sensitivity of the classes that occur. macro-f1: scikit-learn's, over the classes that
  occur or are predicted.
- auroc, average-precision: the area under the ROC curve; the mean precision over thresholds, weighed by the recall won.
- sensitivity-at-specificity-S: the largest sensitivity of a threshold whose specificity is S or more.
- calibration-error-B: the expected calibration error, sum over B equal bins of confidence, (i/B, (i+1)/B], of the bin's
  share times |accuracy - mean confidence| (Guo et al., On calibration of modern neural networks, ICML 2017).
- class-sensitivity, class-precision, class-auroc: of every class by its name, against all others.

A metric may be undefined, as the sensitivity of a class that an environment lacks: its value is None, and
:attr:`Metric.lacks` says what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from fedshift.errors import FedshiftError, UnknownNameError, needs

ACCURACY = "accuracy"
CALIBRATION, SENSITIVITY_AT = "calibration-error", "sensitivity-at-specificity"
PER_CLASS = "class-"  # of what is declared of every class
OF = " of "  # between such a metric and its class, as in "auroc of cat"
NO_CONTRAST = "no sample of the class, or none of another"
TITLES = {"macro-f1": "macro F1", "auroc": "AUROC"}  # that are not the name itself
WHOLE = ("balanced-accuracy", "macro-f1", "auroc", "average-precision")  # that stand as they are
OF_CLASSES = ("sensitivity", "precision", "auroc")
DECLARED = (
    *WHOLE,
    f"{SENSITIVITY_AT}-0.9",
    f"{CALIBRATION}-15",
    *(f"{PER_CLASS}{kind}" for kind in OF_CLASSES),
)  # an example of each
LACKS = {
    "auroc": NO_CONTRAST,
    SENSITIVITY_AT: NO_CONTRAST,
    "average-precision": "no sample of the class",
    "sensitivity": "no sample of the class",
    "precision": "the class is never predicted",
}
MOST_BINS = 1000
Values = Mapping[str, float | None]
"""Metrics by name; None where one is undefined."""


@dataclass(frozen=True)
class Metric:
    """A number in 0..1 that says how good a model is on an environment; of one class, or of all.

    Attributes:
        name: as records have it, such as ``auroc`` or ``auroc of cat``.
    """

    name: str

    @cached_property
    def kind(self) -> str:
        """What it measures, without its number or class."""
        kind, of, _ = self.name.partition(OF)
        if of:
            return kind
        return next((one for one in (SENSITIVITY_AT, CALIBRATION) if self.name.startswith(f"{one}-")), self.name)

    @property
    def number(self) -> str:
        """The specificity, or the number of bins; empty where it has none."""
        return self.name.removeprefix(f"{self.kind}-") if self.kind in (SENSITIVITY_AT, CALIBRATION) else ""

    @property
    def quantity(self) -> str:
        """What a reader sees of it beside a class: words of ours alone, without the name of a class."""
        if self.kind == SENSITIVITY_AT:
            return f"sensitivity at a specificity of {self.number}"
        if self.kind == CALIBRATION:
            return f"calibration error ({self.number} bins)"
        return TITLES.get(self.kind, self.kind.replace("-", " "))

    @property
    def title(self) -> str:
        """What a reader sees."""
        _, of, of_class = self.name.partition(OF)
        return f"{self.quantity}{of}{of_class}"

    @property
    def heading(self) -> str:
        """The title at the beginning of a line."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def remark(self) -> str:
        """What is said beside values where smaller is better."""
        return " (smaller is better)" if self.smaller else ""

    @property
    def smaller(self) -> bool:
        """Whether smaller is better."""
        return self.kind in (CALIBRATION, "loss")

    @property
    def lacks(self) -> str:
        """Why it may be undefined; empty of one that never is."""
        return LACKS.get(self.kind, "")

    def merit(self, value: float) -> float:
        """What is larger of a better value."""
        return -value if self.smaller else value

    def worst(self, values: Iterable[float]) -> float:
        """The worst of some values."""
        return min(values, key=self.merit)


def check_metrics(declared: Sequence[str], select: str) -> None:
    """Raise an error unless all metrics are known, each once, and the one that selects is among them.

    Raises:
        FedshiftError: the message says which is wrong, and what is right.
    """
    for number, name in enumerate(declared):
        _check(name)
        if name in declared[:number]:
            raise FedshiftError(f"evaluate.metrics names '{name}' twice: name it once.")
    kind, of, _ = select.partition(OF)
    declares = f"{PER_CLASS}{kind}" if of else select
    if select == ACCURACY or (declares in declared and not select.startswith(PER_CLASS)):
        return
    _check(declares)
    if select.startswith(PER_CLASS):
        example = f"{select.removeprefix(PER_CLASS)}{OF}CLASS"
        raise FedshiftError(f"evaluate.select = '{select}' is of every class: name one, as in '{example}'.")
    raise FedshiftError(
        f"evaluate.select = '{select}', but evaluate.metrics has no '{declares}': set evaluate.metrics = "
        f"{[*declared, declares]}."
    )


def _check(name: str) -> None:
    """Raise an error unless a metric can be declared by that name."""
    kind, number = Metric(name).kind, Metric(name).number
    right = name in WHOLE or name in [f"{PER_CLASS}{each}" for each in OF_CLASSES]
    right |= kind == SENSITIVITY_AT and bool(re.fullmatch(r"0?\.\d*[1-9]\d*", number))
    right |= kind == CALIBRATION and number.isdecimal() and 1 <= int(number) <= MOST_BINS
    if right:
        return
    if number:
        raise FedshiftError(
            f"'{name}' is no metric: a specificity is between 0 and 1, as in {SENSITIVITY_AT}-0.9, and bins are from 1 "
            f"to {MOST_BINS:,}, as in {CALIBRATION}-15."
        )
    raise UnknownNameError("metric", name, DECLARED, hint="Accuracy and loss are always measured.")


def check_classes(select: str, classes: Sequence[str]) -> None:
    """Raise an error if the metric that selects is of a class that is not there."""
    _, of, of_class = select.partition(OF)
    if of and of_class not in classes:
        raise UnknownNameError("class in evaluate.select", of_class, classes)


def names(declared: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the values that declared metrics have, in order."""
    return tuple(
        value
        for name in declared
        for value in (
            (f"{name.removeprefix(PER_CLASS)}{OF}{one}" for one in classes) if name.startswith(PER_CLASS) else (name,)
        )
    )


def measured(
    declared: Sequence[str], classes: Sequence[str], log_probabilities: Tensor, y: Tensor
) -> dict[str, float | None]:
    """Declared metrics of predictions, by name; None where one is undefined.

    Args:
        declared: as ``evaluate.metrics`` names them.
        classes: the classes' names.
        log_probabilities: (n, classes), of at least one sample.
        y: labels (n,).
    """
    predictions = _Predictions(log_probabilities, y)
    found: list[float | None] = []
    for name in declared:
        if name.startswith(PER_CLASS):
            of_class = getattr(predictions, name.removeprefix(PER_CLASS))
            found += [of_class(c) for c in range(len(classes))]
        else:
            found.append(predictions.value(Metric(name)))
    return dict(zip(names(declared, classes), found, strict=True))


def mean_of(values: Sequence[Values]) -> tuple[dict[str, float | None], dict[str, str]]:
    """The mean metrics of several models on an environment, and by name why some are undefined.

    A mean is over the models of which the metric is defined.
    """
    means: dict[str, float | None] = {}
    undefined: dict[str, str] = {}
    for name in values[0]:
        there = [value for one in values if (value := one[name]) is not None]
        means[name] = sum(there) / len(there) if there else None
        if lacking := len(values) - len(there):
            undefined[name] = Metric(name).lacks
            undefined[name] += f", of {lacking} of {len(values)} models" if there else ""
    return means, undefined


def scikit_learn() -> Any:
    """scikit-learn's metrics, which are imported late.

    Raises:
        FedshiftError: it is not installed.
    """
    with needs("sklearn", "evaluate.metrics"):
        from sklearn import metrics
    return metrics


class _Predictions:
    """What a model predicts for an environment, and the labels; numbers in float64."""

    def __init__(self, log_probabilities: Tensor, y: Tensor) -> None:
        self.p: Any = log_probabilities.double().exp().cpu().numpy()
        self.y: Any = y.cpu().numpy()
        self.predicted: Any = log_probabilities.argmax(dim=1).cpu().numpy()
        self.classes = self.p.shape[1]

    def value(self, metric: Metric) -> float | None:
        """A metric of all classes."""
        match metric.kind:
            case "balanced-accuracy":
                return _mean([self.sensitivity(c) for c in range(self.classes)])
            case "macro-f1":
                return float(scikit_learn().f1_score(self.y, self.predicted, average="macro", zero_division=0.0))
            case "auroc":
                return self._over_classes(self.auroc)
            case "average-precision":
                return self._over_classes(self.average_precision)
            case "sensitivity-at-specificity":
                least = float(metric.number)
                return self._over_classes(lambda c: self.sensitivity_at(c, least))
        return self.calibration_error(int(metric.number))

    def _over_classes(self, of_class: Callable[[int], float | None]) -> float | None:
        """Of two classes that of the second; of more, the mean over those that have one."""
        return of_class(1) if self.classes == 2 else _mean([of_class(c) for c in range(self.classes)])

    # Of one class against all others ------------------------------------------------------------

    def sensitivity(self, c: int) -> float | None:
        """The share of the class's samples that are predicted to be of it (recall)."""
        own = self.y == c
        return float((self.predicted[own] == c).mean()) if own.any() else None

    def precision(self, c: int) -> float | None:
        """The share of the samples predicted to be of the class that are."""
        chosen = self.predicted == c
        return float((self.y[chosen] == c).mean()) if chosen.any() else None

    def auroc(self, c: int) -> float | None:
        """The area under the class's ROC curve."""
        own = self.y == c
        return float(scikit_learn().roc_auc_score(own, self.p[:, c])) if own.any() and not own.all() else None

    def average_precision(self, c: int) -> float | None:
        """The mean precision over the class's thresholds, weighed by the recall that each wins."""
        own = self.y == c
        return float(scikit_learn().average_precision_score(own, self.p[:, c])) if own.any() else None

    def sensitivity_at(self, c: int, specificity: float) -> float | None:
        """The largest sensitivity of a threshold with so much specificity, or more."""
        own = self.y == c
        if not own.any() or own.all():
            return None
        # Every threshold is one that can be chosen, also where the curve is a straight line.
        false_positives, sensitivity, _ = scikit_learn().roc_curve(own, self.p[:, c], drop_intermediate=False)
        return float(sensitivity[false_positives <= 1 - specificity + 1e-12].max())

    # Of the confidence --------------------------------------------------------------------------

    def calibration_error(self, bins: int) -> float:
        """The expected calibration error of the predicted class's probability."""
        confidence = self.p[np.arange(len(self.y)), self.predicted]
        right = self.predicted == self.y
        place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence)
        gaps = np.abs(np.bincount(place, right - confidence, minlength=bins))
        return min(1.0, float(gaps.sum() / len(self.y)))


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are defined; None of none."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
