"""Detects a run that ended near chance because a term of its loss outweighed the classification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import fmean

from fedshift.core.contract import Phase, term_names
from fedshift.core.method import Method
from fedshift.core.metrics import ACCURACY
from fedshift.core.setup import Setup
from fedshift.errors import FedshiftError
from fedshift.runs.schema import Blueprint, Record
from fedshift.runs.selection import by_environment, shares

RISK = "cross_entropy"  # how pages call the classification loss of what they predict with
LEARNED = 0.1  # of the way from chance to 1, below which a run has learned nothing to speak of
NORMAL = 1.645  # standard errors above a mean that one in twenty exceeds
UNTOLD = 0.02  # in their place if sites withhold their numbers of samples
LEAST = 0.25  # of the loss, from which a term other than the classification is taken for the reason


@dataclass(frozen=True)
class Chance:
    """A validation accuracy next to the accuracy of always predicting the same class."""

    accuracy: float  # the mean over environments, in 0..1
    guessed: float  # that mean for the best single class; for personalised models, for the best class of each site
    # by how much a run that learned nothing may exceed it: a tenth of what there is to learn, and for luck 1.645
    # standard errors, which one run in twenty exceeds
    margin: float
    n: int  # validation samples; 0: unknown

    @property
    def reached(self) -> bool:
        return self.accuracy <= self.guessed + self.margin


def notes_on_collapse(setup: Setup, blueprint: Blueprint, records: Sequence[Record]) -> list[str]:
    """A note that names the setting, if a run ended near chance and terms outweighed the classification.

    A term counts if a setting weighs it and it was a quarter of the loss in some record; half would miss an L2R that
    has won, since the norm of a z that is nearly a point is nearly 0. ``blueprint`` has the classes of scored samples,
    unless only sites know them.
    """
    if not records or not (chance := chance_of(blueprint, records[-1])).reached:
        return []
    weighed, of_rounds = weighing(setup), [(shares(record), record["round"]) for record in records]
    sums = [sum(its.get(term, 0.0) for term in weighed) for its, _ in of_rounds]
    if max(sums) < LEAST:
        return []
    its, round = of_rounds[sums.index(max(sums))]
    term = max(weighed, key=lambda name: its.get(name, 0.0))
    setting, value = weighed[term]
    samples = f" on {chance.n:,} samples" if chance.n else ""
    return [
        f"{setup.method.label} ended near chance: its validation accuracy is {100 * chance.accuracy:.1f} %{samples}, "
        f"and predicting one class throughout has {100 * chance.guessed:.1f} %. In round {round} its term '{term}' was "
        f"{100 * its[term]:.0f} % of the loss, and the cross-entropy and unweighted terms, "
        f"{100 * (1 - max(sums)):.0f} %: lower {setting}, which was {value:g} (--set {setting}={value / 10:g}, for "
        "example)."
    ]


def chance_of(blueprint: Blueprint, record: Record) -> Chance:
    rows = [row for row in record["environments"] if row["role"] == "validation"]
    found = by_environment(record, "validation", ACCURACY)
    counts = blueprint.scored_classes.get("validation", {})
    alike = [1 / len(blueprint.classes)] * len(blueprint.classes)
    of_classes = [[n / sum(its) for n in its] if (its := counts.get(name)) else alike for name in found]
    own = all(row["model"] == "own" for row in rows)
    best = [max(its) for its in of_classes] if own else _best_class(of_classes)
    sizes = dict.fromkeys(found, 0)
    for row in rows:
        sizes[row["environment"]] += row.get("n") or 0
    known = all(sizes.values())
    variance = sum(p * (1 - p) / n for p, n in zip(best, sizes.values(), strict=True)) if known else 0.0
    luck, guessed = NORMAL * sqrt(variance) / len(best) if known else UNTOLD, fmean(best)
    margin = LEARNED * (1 - guessed) + luck
    return Chance(fmean(found.values()), guessed, margin, sum(sizes.values()) if known else 0)


def _best_class(of_classes: Sequence[Sequence[float]]) -> list[float]:
    return list(max(zip(*of_classes, strict=True), key=sum))


def weighing(setup: Setup) -> dict[str, tuple[str, float]]:
    """By recorded loss term (other than the classification), the setting that weighs it, and its value.

    A setting weighs a term if halving the setting changes the term's weight.
    """
    found: dict[str, tuple[str, float]] = {}
    whole = _weights(setup, setup.method)
    for setting, value, halved in _halved(setup.method):
        with suppress(FedshiftError):  # half of it is too little, so it weighs nothing that could be lowered
            weights = _weights(setup, halved())
            weighed = (term for term, weight in whole.items() if weights.get(term, 0.0) != weight and term != RISK)
            found |= {term: (f"method.{setting}", value) for term in weighed if term not in found}
    return found


def _halved(method: Method) -> Iterator[tuple[str, float, Callable[[], Method]]]:
    """A method's numeric settings, its wrapped method's included, each with the method where it is halved."""
    wraps = method.core is not method
    for spec, table in ((method, ""), *([(method.core, "base.")] if wraps else [])):
        for name in spec.settings():
            value = getattr(spec, name)
            if isinstance(value, float) and value:
                change = partial(spec.replace, **{name: value / 2})
                yield f"{table}{name}", value, partial(_rebased, method, change) if table else change


def _rebased(method: Method, change: Callable[[], Method]) -> Method:
    return method.replace(base=change())


def _weights(setup: Setup, method: Method) -> Mapping[str, float]:
    return {
        called[phase.name, objective.name, name]: term.weight
        for stage in setup.plan(method)
        for exchange in stage.exchanges
        for called in [term_names(exchange.phases)]
        for phase in exchange.phases
        if isinstance(phase, Phase)
        for objective in phase.objectives
        for name, term in objective.terms.items()
        if term.weight
    }
