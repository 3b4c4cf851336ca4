"""How a table's rows differ from the rows that a model was trained on, column by column, as far as may be published.

The model contains the mean and standard deviation of every numeric column, where it prepares rows by them; missing
cells and categories need the run's samples. No count of few samples can be derived: a column with few (non-)empty cells
is described in words, and a column with few values, one of which few samples have, has no mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.preparation import Column
from fedshift.core.disclosure import WITHHELD, fewer, pooled
from fedshift.core.metrics import Array
from fedshift.core.reliability import count
from fedshift.runs.released import Released

FAR = 0.5  # standard deviations between means, or a difference of shares, that is worth a look
OTHER_UNIT = 2.0  # standard deviations
OTHER_SPREAD = 4.0  # times as large or small
FEW_VALUES = 5  # of which counts would follow from a mean and a standard deviation
DIGITS = 3


@dataclass(frozen=True)
class ColumnDrift:
    """How a column differs from the rows that the model was trained on."""

    column: str
    # for numbers, of the means, in the training rows' standard deviations; for categories, half the sum of the
    # differences of shares, in 0..1. None: unknown, or few samples could be derived from it.
    difference: float | None = None
    # the standard deviation as a fraction of the training rows'; None for categories, or as before
    spread: float | None = None
    missing: float | str = 0.0  # the share of empty cells, or a text in its place
    trained_missing: float | None = None  # the same share in training; None: unknown
    remark: str = ""  # what to check; empty where nothing stands out


def column_drift(model: Released, data: DomainData, trained: FederatedData | None, floor: int) -> list[ColumnDrift]:
    """How each column differs; empty if samples are not rows of a table.

    ``trained`` has the run's samples (None: they are not here); at least ``floor`` groups are in a cell that is
    published.
    """
    group, rows = data.group.numpy(), _trained_rows(model, trained)
    known = rows if rows is not None else torch.zeros(0, len(model.columns))
    return [
        _compared(column, data.x[:, place].double(), known[:, place].double(), _declared(model, place), group, floor)
        for place, column in enumerate(model.columns)
    ]


def _trained_rows(model: Released, trained: FederatedData | None) -> Tensor | None:
    clients = [] if trained is None else list(trained.clients)
    own = [each.train.x for each in clients if model.client is None or each.id == model.client]
    return torch.cat(own) if own else None


def _declared(model: Released, place: int) -> tuple[float, float]:
    numbers = [at for at, column in enumerate(model.columns) if column.categories is None]
    if not model.statistics or place not in numbers:
        return nan, nan
    at = numbers.index(place)
    return float(model.statistics["center"][at]), float(model.statistics["scale"][at])


def _compared(
    column: Column, cells: Tensor, trained: Tensor, declared: tuple[float, float], group: Array, floor: int
) -> ColumnDrift:
    """Compare a column's cells here and in training; the latter are None if unknown."""
    empty, filled = cells.isnan(), cells[~cells.isnan()].numpy()
    there = trained[~trained.isnan()].numpy()
    before = float(trained.isnan().double().mean()) if len(trained) else None
    own = group[~empty.numpy()]
    if count(own) < floor:
        return ColumnDrift(column.name, None, None, f"all but {fewer(floor)}", _rounded(before), "hardly there")
    few = count(group[empty.numpy()]) < floor
    lacking = float(empty.double().mean())
    missing = fewer(floor) if few else round(lacking, DIGITS)
    difference = spread = None
    mean, sd = (float(there.mean()), float(there.std())) if len(there) else declared
    if column.categories is not None:
        difference = _of_shares(filled, there, own, floor)
        hidden = len(there) > 0 and difference is None
    elif not (hidden := not _open(filled, own, floor)) and sd > 0:
        difference, spread = (float(filled.mean()) - mean) / sd, float(filled.std()) / sd
    remark = WITHHELD if hidden else _remark(difference, spread, None if few else lacking, before)
    if column.categories is None and sd == 0 and not hidden:
        remark = "constant in training"
    return ColumnDrift(column.name, _rounded(difference), _rounded(spread), missing, _rounded(before), remark)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _open(cells: Array, group: Array, floor: int) -> bool:
    values = np.unique(cells)
    return len(values) > FEW_VALUES or all(count(group[cells == value]) >= floor for value in values)


def _of_shares(cells: Array, trained: Array, group: Array, floor: int) -> float | None:
    """Half the sum of the differences of categories' shares, rare ones pooled; None if all are rare."""
    if not len(trained):
        return None
    own = {f"{value:g}": cells == value for value in np.unique(cells)}
    inside = pooled(
        {name: int(rows.sum()) for name, rows in own.items()},
        {name: count(group[rows]) for name, rows in own.items()},
        floor,
    )
    kept = [float(name) for name in own if name not in inside]
    if not kept:
        return None
    shares = [[float((each == value).mean()) for value in kept] for each in (cells, trained)]
    apart = sum(abs(one - other) for one, other in zip(*shares, strict=True))
    return float(apart + abs(sum(shares[0]) - sum(shares[1]))) / 2


def _remark(difference: float | None, spread: float | None, missing: float | None, before: float | None) -> str:
    if difference is not None and spread is not None:
        apart = abs(difference)
        if apart >= OTHER_UNIT or not 1 / OTHER_SPREAD < max(spread, 1e-9) < OTHER_SPREAD:
            return "another unit?"
    if difference is not None and abs(difference) >= FAR:
        return "differs"
    if missing is not None and before is not None and abs(missing - before) >= FAR:
        return "more missing" if missing > before else "fewer missing"
    return ""
