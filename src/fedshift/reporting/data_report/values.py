"""What the inputs of each site look like: ranges, moments, what is missing, what never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedshift.federation.domains import DomainData
from fedshift.federation.inputs import Inputs
from fedshift.reporting.data_report.duplicates import PIECE, Tell, silent

Kind = Literal["images", "signals", "rows", "text", "tokens", "arrays"]
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


def column_word(kind: Kind) -> str:
    """What numbers of a sample that are measured together are called."""
    return {"images": "channel", "signals": "channel", "rows": "column"}.get(kind, "input")


def column_names(data: DomainData, kind: Kind) -> tuple[str, ...]:
    """What the columns of :class:`Values` are called: as columns or channels of the data are, or by number from 0."""
    if data.columns:
        return tuple(column.name for column in data.columns)
    if data.channels:
        return data.channels
    return tuple(map(str, range(data.x.shape[1] if column_word(kind) != "input" else 1)))


@dataclass(frozen=True, eq=False)
class Values:
    """The inputs of each site that are looked at, in sums over samples; S sites, C columns.

    A column is one of a row of numbers, or a channel of images and signals; of all else everything is one column. What
    is missing (NaN) is left out of every figure but :attr:`missing`. Of a column of categories, whose codes are no
    numbers, :attr:`mean`, :attr:`std`, :attr:`low` and :attr:`high` are NaN.

    Attributes:
        samples: how many samples of each site are looked at, (S,), int64.
        count: how many numbers, (S, C), float64.
        mean: their mean, (S, C), float64; NaN where there is none, as of the next three.
        std: their standard deviation, (S, C), float64.
        low: the least, (S, C), float64.
        high: the greatest, (S, C), float64.
        missing: what part of all is missing, (S, C), float64 in 0..1; NaN of a site without a sample.
        level: the mean over a site's samples of a sample's own mean, (S,), float64.
        spread: its standard deviation over the site's samples, (S,), float64.
        constant: the samples of which every number is the same or missing, by number, for each site; only of several.
        categories: by the place of each column of categories, how many samples of each site have each, (S, K), int64.
    """

    samples: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    missing: Tensor
    level: Tensor
    spread: Tensor
    constant: Sequence[tuple[int, ...]]
    categories: Mapping[int, Tensor]

    def unchanging(self, sites: Tensor) -> Tensor:
        """Which columns are the same, or missing, in all samples of some sites, (C,), bool."""
        low = self.low[sites].nan_to_num(torch.inf).amin(dim=0)
        high = self.high[sites].nan_to_num(-torch.inf).amax(dim=0)
        found = low >= high
        for column, counts in self.categories.items():
            found[column] = (counts[sites].sum(dim=0) > 0).sum() < 2
        return found


def measure(data: DomainData, looked: Tensor, kind: Kind, tell: Tell = silent) -> Values:
    """Look at the inputs of some samples, a few at a time.

    Args:
        data: the samples.
        looked: which are looked at, (N,), bool.
        kind: what a sample is.
        tell: hears how far the work is.
    """
    sites, columns = len(data.domains), len(column_names(data, kind))
    zeros = torch.zeros(sites, columns, dtype=torch.float64)
    count, total, squares, absent = (zeros.clone() for _ in range(4))
    low, high = torch.full_like(zeros, torch.inf), torch.full_like(zeros, -torch.inf)
    rows = looked.nonzero().flatten()
    levels, same = torch.empty(len(rows), dtype=torch.float64), torch.empty(len(rows), dtype=torch.bool)
    # Sums are of differences from a number that occurs at the site, as numbers may lie far from 0.
    pivot = zeros.clone()
    for site in torch.unique(data.domain[rows]).tolist():
        one = data.x[rows[data.domain[rows] == site][0]]
        pivot[site] = one.double().reshape(columns, -1)[:, 0].nan_to_num(0.0)
    step = max(1, PIECE // data.x[0].numel())
    for start in range(0, len(rows), step):
        tell("Measuring inputs", start, len(rows))
        some = rows[start : start + step]
        kind_of_sum = torch.float32 if data.x.dtype == torch.uint8 else torch.float64  # 256 shades need no more
        x = data.x[some].to(kind_of_sum).reshape(len(some), columns, -1)
        there, site = ~x.isnan(), data.domain[some]
        filled = (x - pivot[site].to(kind_of_sum).unsqueeze(2)).nan_to_num(0.0)
        counted, summed = there.sum(dim=2).double(), filled.sum(dim=2).double()
        for into, what in ((count, counted), (total, summed), (squares, filled.square().sum(dim=2).double())):
            into.index_add_(0, site, what)
        absent.index_add_(0, site, x.shape[2] - counted)
        least, most = x.nan_to_num(torch.inf).amin(dim=2).double(), x.nan_to_num(-torch.inf).amax(dim=2).double()
        place = site.unsqueeze(1).expand(-1, columns)
        low.scatter_reduce_(0, place, least, "amin")
        high.scatter_reduce_(0, place, most, "amax")
        levels[start : start + step] = (summed + counted * pivot[site]).sum(dim=1) / counted.sum(dim=1)
        same[start : start + step] = least.amin(dim=1) >= most.amax(dim=1)
    tell("Measuring inputs", len(rows), len(rows))
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    mean += pivot
    std[low == high] = 0.0  # whatever rounding left
    empty = count == 0
    categories = {
        column: _counts(data.x[rows, column], data.domain[rows], sites, len(each.categories))
        for column, each in enumerate(data.columns)
        if each.categories is not None
    }
    for column in categories:
        empty[:, column] = True
    of = [data.domain[rows] == number for number in range(sites)]
    single = data.x[0].numel() == 1
    return Values(
        samples=torch.bincount(data.domain[rows], minlength=sites),
        count=count,
        mean=mean.masked_fill(empty, torch.nan),
        std=std.masked_fill(empty, torch.nan),
        low=low.masked_fill(empty, torch.nan),
        high=high.masked_fill(empty, torch.nan),
        missing=absent / (absent + count),
        level=torch.stack([levels[each].nanmean() for each in of]),
        spread=torch.stack([_std(levels[each]) for each in of]),
        constant=[() if single else tuple(rows[each & same].tolist()) for each in of],
        categories=categories,
    )


def _counts(codes: Tensor, site: Tensor, sites: int, categories: int) -> Tensor:
    """How many samples of each site have each category, (sites, categories), int64."""
    there = ~codes.isnan()
    place = site[there] * categories + codes[there].long()
    return torch.bincount(place, minlength=sites * categories).view(sites, categories)


def _std(values: Tensor) -> Tensor:
    known = values[~values.isnan()]
    return known.std(correction=0) if len(known) else known.new_tensor(torch.nan)
