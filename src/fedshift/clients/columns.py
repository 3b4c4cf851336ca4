"""How well each column of a table separates the classes alone, and which columns have a different value in every row.

The better of two scores of a column counts: the number itself, in either direction; and the share of the class among
rows with the same category (or with a number between the same quantiles, up to :data:`BINS`; a few distinct numbers
count separately). Shares are computed on the other half of the rows, so a category that occurs once reveals nothing;
rows of a group stay in one half. A missing cell is a category, and the smallest number. A column's area is the mean,
over classes, of the area under that score's ROC curve for the class against all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.clients.preparation import Column

REVEALS = 0.99  # the area from which on a column reveals the label
LEAST = 10  # minimum rows of a class, and of all others, for its area
LEAST_UNIQUE = 20  # rows with different values from which on a column is unique
BINS = 50
PER_BIN = 20  # rows between two quantiles, at least
ROWS = 5000  # maximum rows, drawn at random

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ColumnScore:
    """What a column reveals alone."""

    column: str  # its name, or its number from 0
    # mean over classes of the area under the ROC curve, in 0..1, 0.5 is guessing; None if no class has enough rows
    auroc: float | None
    unique: bool  # whether it has whole numbers or categories that differ in every row, as ids do

    @property
    def reveals(self) -> bool:
        return self.auroc is not None and self.auroc >= REVEALS


def score_columns(
    x: Tensor, y: Tensor, group: Tensor, columns: Sequence[Column], generator: torch.Generator, rows: int = ROWS
) -> tuple[ColumnScore, ...]:
    """What every column of rows x (n, columns) reveals alone about labels (n,).

    NaN is a missing cell and a category is its code; ``group`` (n,) marks rows from one original; the generator draws
    ``rows`` rows at most, and the halves.
    """
    drawn = torch.randperm(len(x), generator=generator)[:rows]
    labels = y[drawn].numpy()
    counts = np.bincount(labels)
    classes = np.flatnonzero((counts >= LEAST) & (len(labels) - counts >= LEAST))
    label = np.full(len(counts), len(classes))  # for all other classes together
    label[classes] = np.arange(len(classes))
    label, half = label[labels], _halves(group[drawn].numpy(), labels)
    found = []
    for place, column in enumerate(columns):
        cells, coded = x[:, place].double().numpy(), column.categories is not None
        auroc = _auroc(cells[drawn.numpy()], coded, label, len(classes), half) if len(classes) else None
        found.append(ColumnScore(column.name, auroc, _is_unique(cells, coded)))
    return tuple(found)


def _is_unique(cells: Array, coded: bool) -> bool:
    known = cells[~np.isnan(cells)]
    if len(known) < max(LEAST_UNIQUE, len(cells) / 2):
        return False
    return (coded or bool((known == np.round(known)).all())) and len(np.unique(known)) == len(known)


def _halves(group: Array, labels: Array) -> Array:
    _, first, which = np.unique(group, return_index=True, return_inverse=True)
    half = np.zeros(len(first), bool)
    by_class = np.lexsort((first, labels[first]))
    half[by_class] = np.arange(len(first)) % 2 == 1
    return half[which]


def _auroc(cells: Array, coded: bool, label: Array, classes: int, half: Array) -> float:
    """The mean area of a column (n,); ``label`` is (n,), ``classes`` where no area is taken; ``half`` is bool (n,)."""
    values, codes, count = np.unique(cells, return_inverse=True, return_counts=True)
    missing = bool(np.isnan(values[-1]))  # of which the last is listed once
    bins = min(BINS, max(2, len(cells) // PER_BIN))
    bin_of = np.arange(len(values))
    if not coded and len(values) > bins:
        bin_of = (2 * count.cumsum() - count - 1) * bins // (2 * len(cells))  # of the middle of a value's rows
        bin_of[len(values) - missing :] = bins
    shared = _by_shares(bin_of[codes], label, classes, half)
    if coded:
        return shared
    by_value = np.roll(_counted(codes, label, classes), missing, axis=0)
    rising = np.array([_area(by_value[:, c], by_value.sum(axis=1) - by_value[:, c]) for c in range(classes)])
    return max(float(np.maximum(rising, 1 - rising).mean()), shared)


def _by_shares(codes: Array, label: Array, classes: int, half: Array) -> float:
    """The mean area of the classes' shares among rows of the other half with the same code."""
    found = []
    for own in (half, ~half):
        there = _counted(codes[~own], label[~own], classes, codes.max() + 1)
        here = _counted(codes[own], label[own], classes, codes.max() + 1)
        if not here.any() or not there.any():
            continue
        of_all = there.sum(axis=0) / there.sum()
        shares = (there + of_all) / (there.sum(axis=1, keepdims=True) + 1)  # the overall share if no row has the code
        for c in range(classes):
            _, rank = np.unique(shares[:, c], return_inverse=True)
            mine, others = (np.bincount(rank, each) for each in (here[:, c], here.sum(axis=1) - here[:, c]))
            if mine.any() and others.any():
                found.append(_area(mine, others))
    return float(np.mean(found)) if found else 0.5


def _counted(codes: Array, label: Array, classes: int, most: int = 0) -> Array:
    most = most or int(codes.max()) + 1
    return np.bincount(codes * (classes + 1) + label, minlength=most * (classes + 1)).reshape(most, classes + 1)


def _area(own: Array, others: Array) -> float:
    below = others.cumsum() - others
    return float((own * (below + others / 2)).sum() / (own.sum() * others.sum()))
