"""Metrics besides accuracy: how they are declared and named, and their values for an environment's predictions.

All are numbers in 0..1. With two classes they refer to the second one; with more they are the mean over the classes
that an environment has, each against all others (macro, one-vs-rest). scikit-learn computes what it has.

- balanced-accuracy: the mean sensitivity of the classes that occur. macro-f1: scikit-learn's, over the classes that
  occur or are predicted.
- auroc, average-precision: the area under the ROC curve; the mean precision over thresholds, weighted by recall gained.
- sensitivity-at-specificity-S: the largest sensitivity of a threshold whose specificity is S or more.
- calibration-error-B: the expected calibration error, sum over B equal bins of confidence, (i/B, (i+1)/B], of the bin's
  share times |accuracy - mean confidence| (Guo et al., On calibration of modern neural networks, ICML 2017).
- class-sensitivity, class-precision, class-auroc: of every class by its name, against all others.

A metric is undefined, None, for example if an environment has too few samples of a class; :attr:`Metric.lacks` gives
the reason. If a class occurs, but too rarely, balanced accuracy and macro F1 are undefined as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import Tensor

from fedshift.errors import FedshiftError, UnknownNameError, needs

ACCURACY, AUROC = "accuracy", "auroc"
CALIBRATION, SENSITIVITY_AT = "calibration-error", "sensitivity-at-specificity"
PER_CLASS = "class-"  # prefix of metrics of every class
OF = " of "  # between such a metric and its class, as in "auroc of cat"
NO_CONTRAST = "too few samples of the class, or of others"
TITLES = {"macro-f1": "macro F1", "auroc": "AUROC"}  # titles that differ from the name
WHOLE = ("balanced-accuracy", "macro-f1", "auroc", "average-precision")  # kept in upper case
OF_EVERY_CLASS = (f"{PER_CLASS}sensitivity", f"{PER_CLASS}precision", f"{PER_CLASS}auroc")
DECLARED = (*WHOLE, f"{SENSITIVITY_AT}-0.9", f"{CALIBRATION}-15", *OF_EVERY_CLASS)  # an example of each
LACKS = {
    "auroc": NO_CONTRAST,
    SENSITIVITY_AT: NO_CONTRAST,
    "average-precision": "too few samples of the class",
    "sensitivity": "too few samples of the class",
    "balanced-accuracy": "too few samples of a class",
    "macro-f1": "too few samples of a class",
    "precision": "the class is never predicted",
}
MOST_BINS = 1000
Array = np.ndarray[Any, Any]
Values = Mapping[str, float | None]
"""Metrics by name; None where one is undefined."""


@dataclass(frozen=True)
class Metric:
    """A number in 0..1 that measures a model on an environment, recorded as ``auroc`` or ``auroc of cat``."""

    name: str

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        if numbered := re.fullmatch(f"({SENSITIVITY_AT}|{CALIBRATION})-(.*)", self.name, re.DOTALL):
            return numbered[1], numbered[2], ""
        kind, _, of_class = self.name.partition(OF)
        return kind, "", of_class

    @property
    def kind(self) -> str:
        """The name without number and class."""
        return self._parts[0]

    @property
    def number(self) -> str:
        """The specificity, or the number of bins; else empty."""
        return self._parts[1]

    @property
    def quantity(self) -> str:
        if self.kind == SENSITIVITY_AT:
            return f"sensitivity at a specificity of {self.number}"
        if self.kind == CALIBRATION:
            return f"calibration error ({self.number} bins)"
        return TITLES.get(self.kind, self.kind.replace("-", " "))

    @property
    def title(self) -> str:
        of_class = self._parts[2]
        return f"{self.quantity}{OF}{of_class}" if of_class else self.quantity

    @property
    def heading(self) -> str:
        return self.title[:1].upper() + self.title[1:]

    @property
    def remark(self) -> str:
        return " (smaller is better)" if self.smaller else ""

    @property
    def smaller(self) -> bool:
        return self.kind in (CALIBRATION, "loss")

    @property
    def lacks(self) -> str:
        """The reason why it may be undefined; empty if it never is."""
        return LACKS.get(self.kind, "")

    def merit(self, value: float) -> float:
        """A number that is larger for better values."""
        return -value if self.smaller else value

    def worst(self, values: Iterable[float]) -> float:
        return min(values, key=self.merit)


def check_metrics(declared: Sequence[str], select: str) -> None:
    """Raise a FedshiftError unless all metrics are known and distinct, and include the selecting metric."""
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
        raise FedshiftError(f"evaluate.select = '{select}' refers to every class: name a class, as in '{example}'.")
    raise FedshiftError(
        f"evaluate.select = '{select}', but evaluate.metrics has no '{declares}': set evaluate.metrics = "
        f"{[*declared, declares]}."
    )


def _check(name: str) -> None:
    """Raise an error unless a metric can be declared by that name."""
    kind, number = Metric(name).kind, Metric(name).number
    right = name in (*WHOLE, *OF_EVERY_CLASS)
    right |= kind == SENSITIVITY_AT and bool(re.fullmatch(r"0?\.\d*[1-9]\d*", number))
    right |= kind == CALIBRATION and number.isdecimal() and 1 <= int(number) <= MOST_BINS
    if number and not right:
        raise FedshiftError(
            f"'{name}' is no metric: a specificity is between 0 and 1, as in {SENSITIVITY_AT}-0.9, and bins are from 1 "
            f"to {MOST_BINS:,}, as in {CALIBRATION}-15."
        )
    if not right:
        raise UnknownNameError("metric", name, DECLARED, hint="Accuracy and loss are always measured.")


def check_classes(select: str, classes: Sequence[str]) -> None:
    """Raise an error if the selecting metric refers to an unknown class."""
    _, of, of_class = select.partition(OF)
    if of and of_class not in classes:
        raise UnknownNameError("class in evaluate.select", of_class, classes)


def names(declared: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in declared:
        per_class = name.startswith(PER_CLASS)
        found += [f"{name.removeprefix(PER_CLASS)}{OF}{one}" for one in classes] if per_class else [name]
    return tuple(found)


def measured(
    declared: Sequence[str], classes: Sequence[str], log_probabilities: Tensor, y: Tensor, min_support: int = 1
) -> dict[str, float | None]:
    """Declared metrics of log-probabilities (n, classes), n > 0, for labels y (n,), by name; None: undefined.

    A metric needs ``min_support`` samples of a class, and of others where it separates the two.
    """
    p = log_probabilities.double().exp().cpu().numpy()
    labels, predicted = y.cpu().numpy(), log_probabilities.argmax(dim=1).cpu().numpy()
    support = np.bincount(labels, minlength=len(classes))
    found: list[float | None] = []
    for name in declared:
        kind, number = Metric(name).kind, Metric(name).number
        if kind == CALIBRATION:
            confidence = p[np.arange(len(labels)), predicted]
            found.append(_calibration_error(confidence, predicted == labels, int(number)))
            continue
        if kind in ("macro-f1", "balanced-accuracy") and ((support > 0) & (support < min_support)).any():
            found.append(None)
            continue
        if kind == "macro-f1":
            found.append(float(scikit_learn().f1_score(labels, predicted, average="macro", zero_division=0.0)))
            continue
        of_class = partial(OF_CLASS[kind], **({"specificity": float(number)} if number else {}))
        second_alone = len(classes) == 2 and kind in ("auroc", "average-precision", SENSITIVITY_AT)
        chosen = [1] if second_alone else range(len(classes))
        others = len(labels) - support if kind.endswith("auroc") or kind == SENSITIVITY_AT else support
        enough = np.minimum(support, others) >= min_support
        enough |= kind == "class-precision"
        values = [of_class(labels == c, p[:, c], predicted == c) if enough[c] else None for c in chosen]
        found += values if name.startswith(PER_CLASS) else [_mean(values)]
    return dict(zip(names(declared, classes), found, strict=True))


def mean_of(values: Sequence[Values]) -> tuple[dict[str, float | None], dict[str, str]]:
    """The mean metrics of several models over those where each is defined, and by name why some are undefined."""
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
    """scikit-learn's metrics, imported late; a FedshiftError if it is not installed."""
    with needs("sklearn", "evaluate.metrics"):
        from sklearn import metrics
    return metrics


# One class against all others: samples of the class, its probabilities, and samples predicted to be of it -------------


def _sensitivity(own: Array, p: Array, chosen: Array) -> float | None:
    return float(chosen[own].mean()) if own.any() else None


def _precision(own: Array, p: Array, chosen: Array) -> float | None:
    return float(own[chosen].mean()) if chosen.any() else None


def _auroc(own: Array, p: Array, chosen: Array) -> float | None:
    return float(scikit_learn().roc_auc_score(own, p)) if own.any() and not own.all() else None


def _average_precision(own: Array, p: Array, chosen: Array) -> float | None:
    return float(scikit_learn().average_precision_score(own, p)) if own.any() else None


def _sensitivity_at(own: Array, p: Array, chosen: Array, specificity: float) -> float | None:
    if not own.any() or own.all():
        return None
    # Keep every threshold, also where the curve is a straight line.
    false_positives, sensitivity, _ = scikit_learn().roc_curve(own, p, drop_intermediate=False)
    return float(sensitivity[false_positives <= 1 - specificity + 1e-12].max())


OF_CLASS: dict[str, Callable[..., float | None]] = {
    "balanced-accuracy": _sensitivity,
    "average-precision": _average_precision,
    SENSITIVITY_AT: _sensitivity_at,
    "auroc": _auroc,
    "class-sensitivity": _sensitivity,
    "class-precision": _precision,
    "class-auroc": _auroc,
}


def _calibration_error(confidence: Array, right: Array, bins: int) -> float:
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence)
    gaps = np.abs(np.bincount(place, right - confidence, minlength=bins))
    return min(1.0, float(gaps.sum() / len(right)))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
