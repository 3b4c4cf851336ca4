"""Ranges and moments of the inputs of each site, and how much is missing."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Literal

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column, Preparation
from fedshift.reporting.data_report.duplicates import PIECE, Tell, silent

Kind = Literal["images", "signals", "rows", "text", "tokens", "arrays"]
WORDS = {"images": "channel", "signals": "channel", "rows": "column"}  # for numbers that are measured together
COLOURS = 4  # channels of an image, at most


def kind_of(data: DomainData, inputs: Inputs) -> Kind:
    """What a sample is: an image (channels, height, width), a signal (channels, time), a row of numbers, or tokens."""
    if data.x.dtype == torch.int64:
        return "text" if inputs.vocabulary else "tokens"
    shape = data.x.shape[1:]
    if len(shape) == 3 and shape[0] <= COLOURS:
        return "images"
    kinds: dict[int, Kind] = {1: "rows", 2: "signals"}
    return kinds.get(len(shape), "arrays")


@dataclass(frozen=True)
class ColumnValues:
    """A column of rows, or a channel of images and signals, at a site; of other data all numbers are one column.

    Attributes:
        column: its name in the data, or its number from 0.
        site: the site's.
        samples: how many samples of the site are looked at.
        mean: of the numbers that are not missing; None where there is none, and of categories, whose codes are no
            numbers. So is the deviation.
        std: their standard deviation.
        low: the least number or code.
        high: the greatest number or code.
        missing: the share that is missing (NaN), in 0..1.
    """

    column: str
    site: str
    samples: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    missing: float


def measure(data: DomainData, looked: Tensor, kind: Kind, tell: Tell = silent) -> tuple[ColumnValues, ...]:
    """Measure each column at each site of which samples are looked at, a few samples at a time.

    Args:
        data: the samples.
        looked: which are looked at, (N,), bool.
        kind: what a sample is; tokens are not measured.
        tell: takes the progress: what is done, sites done, sites in all.
    """
    if kind in ("text", "tokens"):
        return ()
    count = data.x.shape[1] if kind in WORDS else 1
    names = [column.name for column in data.columns] or data.channels or map(str, range(count))
    columns = data.columns or tuple(map(Column, names))
    preparation = Preparation("site", columns=tuple(Column(column.name) for column in columns))
    found: list[list[ColumnValues]] = [[] for _ in columns]
    for number, site in enumerate(data.domains):
        tell("Measuring inputs", number, len(data.domains))
        rows = (looked & (data.domain == number)).nonzero().flatten()
        if not len(rows):
            continue
        parts, lows, highs = [], [], []
        for some in torch.split(rows, max(1, PIECE // data.x[0].numel())):
            piece = data.x[some].double().reshape(len(some), count, -1).transpose(1, 2).flatten(0, 1)
            parts.append(preparation.measured(piece))
            lows.append(piece.nan_to_num(torch.inf).amin(dim=0))
            highs.append(piece.nan_to_num(-torch.inf).amax(dim=0))
        low, high = torch.stack(lows).amin(dim=0), torch.stack(highs).amax(dim=0)
        merged = Preparation.merged(parts)
        present = merged["present"]
        std = (merged["squares"] / present).clamp_min(0).sqrt().masked_fill(low == high, 0.0)  # whatever rounding left
        figures = torch.stack([merged["mean"], std, low, high]).masked_fill(present == 0, torch.nan)
        coded = [place for place, column in enumerate(columns) if column.categories is not None]
        figures[:2, coded] = torch.nan
        missing = 1 - present.double() / merged["rows"]
        for place, column in enumerate(columns):
            mean, deviation, least, most = (None if isnan(each) else each for each in figures[:, place].tolist())
            own = ColumnValues(column.name, site, len(rows), mean, deviation, least, most, float(missing[place]))
            found[place].append(own)
    tell("Measuring inputs", len(data.domains), len(data.domains))
    return tuple(each for column in found for each in column)
