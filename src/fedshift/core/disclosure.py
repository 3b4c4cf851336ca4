"""Statistical disclosure control: which numbers of an evaluation may be published, so that no small count follows.

A *cell* is a subgroup, a class, a class within a subgroup, or the samples with a predicted class. It is small if it has
fewer groups (patients, for example; without groups, samples) than a floor. Counts and rates together are equations:
supports and sensitivities give each class's errors, and for two classes also the number of samples predicted to be of
each. So the decision covers all of them together:

- The support of a small class is withheld; a single one with the smallest other class's support, which would be
  the remainder. Metrics that mix classes are withheld with any support.
- Where a class is predicted for few samples, precisions are withheld; for two classes, and where errors are so few that
  the count would follow, so is everything at this threshold.
- Small subgroups are published together as "others", with enough larger ones to make "others" large. Of a subgroup with
  a small cell only the size is published, and only the size of another, so that neither is the remainder.

A class that is never predicted is not a small cell: that describes the model, and its precision is undefined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.core.metrics import ACCURACY, CALIBRATION, OF, Array, Metric

WITHHELD = "withheld"


def fewer(floor: int) -> str:
    return f"< {floor}"


@dataclass(frozen=True)
class CellCounts:
    """Counts of samples by class and predicted class."""

    table: Array  # number of samples of each class (rows) with each predicted class (columns), (classes, classes)
    small: Array  # which classes have few groups, (classes,)
    rare: Array  # which classes are predicted for few groups, but at least one, (classes,)

    @classmethod
    def of(cls, y: Array, predicted: Array, group: Array, classes: int, floor: int) -> CellCounts:
        """Count labels y (n,) and predictions (n,) of samples with groups (n,)."""
        table = np.zeros((classes, classes), int)
        np.add.at(table, (y, predicted), 1)
        of_class, of_predicted = (
            np.array([len(np.unique(group[numbers == number])) for number in range(classes)])
            for numbers in (y, predicted)
        )
        absent = (of_class == 0) & (floor == 1)  # where any number may be published
        return cls(table, (of_class < floor) & ~absent, (of_predicted > 0) & (of_predicted < floor))

    @property
    def whole(self) -> bool:
        return not (self.small.any() or self.rare.any())


@dataclass(frozen=True)
class Permitted:
    """What may be published about the samples of an environment."""

    support: tuple[int | str, ...]  # each class's number of samples, or a placeholder
    threshold: bool  # whether metrics of predicted classes may be
    precision: bool  # whether metrics that divide by the number of predictions of a class may be

    @property
    def supported(self) -> bool:
        return all(isinstance(count, int) for count in self.support)

    def metric(self, name: str, classes: Sequence[str]) -> bool:
        if name == ACCURACY or Metric(name).kind == CALIBRATION:
            return self.threshold
        kind, of, of_class = name.partition(OF)
        known = isinstance(self.support[classes.index(of_class)], int) if of else self.supported
        needs = {"sensitivity": self.threshold, "balanced-accuracy": self.threshold}
        needs |= dict.fromkeys(("precision", "macro-f1"), self.threshold and self.precision)
        return known and needs.get(kind, True)


def permitted(cells: CellCounts, floor: int) -> Permitted:
    """What may be published about an environment whose samples are not few in all."""
    support = tuple(_support(cells.table.sum(axis=1), cells.small, floor))
    precision = not cells.rare.any()
    hidden = cells.small.any() and len(support) == 2  # then nothing shows how many samples of a class are errors
    return Permitted(support, precision or bool(hidden) or _open(cells, floor), precision)


def _support(counts: Array, small: Array, floor: int) -> list[int | str]:
    """Each class's number of samples, or a placeholder."""
    if not small.any():
        return [int(count) for count in counts]
    hidden, word = set(np.flatnonzero(small).tolist()), fewer(floor)
    rest = int(counts[sorted(hidden)].sum())
    if (counts[sorted(hidden)] >= floor).any():  # of few groups
        word = WITHHELD
    if len(hidden) == 1 or rest in (0, len(hidden) * (floor - 1)):  # each would follow from their sum
        larger = [int(place) for place in np.argsort(counts, kind="stable") if place not in hidden]
        hidden |= set(larger[:1])
        word = WITHHELD
    return [word if place in hidden else int(count) for place, count in enumerate(counts)]


def _open(cells: CellCounts, floor: int) -> bool:
    """Whether supports and sensitivities leave open how often each rare class is predicted."""
    right = np.diag(cells.table)
    errors = cells.table.sum(axis=1) - right
    if len(right) == 2:
        return False
    least, most = np.maximum(right, 1), right + errors.sum() - errors
    return bool((np.minimum(most, floor - 1) - least)[cells.rare].min() >= 1)


# Subgroups --------------------------------------------------------------------------------------------


def pooled(sizes: Mapping[str, int], groups: Mapping[str, int], floor: int) -> set[str]:
    """The subgroups to publish together (none, some or all), from their numbers of samples and of groups."""
    inside = {name for name in sizes if groups[name] < floor}
    others = sorted(set(sizes) - inside, key=lambda name: (sizes[name], name))
    while inside and others and (len(inside) < 2 or sum(groups[name] for name in inside) < floor):
        inside.add(others.pop(0))
    return inside


def size_alone(parts: Mapping[str, CellCounts]) -> Collection[str]:
    """The subgroups of which only the size is published, where all cells of the samples together may be."""
    hidden = {name for name, cells in parts.items() if not cells.whole}
    others = sorted(set(parts) - hidden, key=lambda name: (int(parts[name].table.sum()), name))
    while hidden and others and not _hides({name: parts[name] for name in hidden}):
        hidden.add(others.pop(0))
    return hidden


def _hides(parts: Mapping[str, CellCounts]) -> bool:
    return len(parts) > 1 and bool(sum(cells.table.sum(axis=1) for cells in parts.values()).min() > 0)
