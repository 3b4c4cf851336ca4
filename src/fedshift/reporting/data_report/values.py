"""Ranges and moments of the inputs of each site, and how much is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
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
    """The name of the numbers of a sample that are measured together."""
    return {"images": "channel", "signals": "channel", "rows": "column"}.get(kind, "input")


def column_names(data: DomainData, kind: Kind) -> tuple[str, ...]:
    """The names of the columns of :class:`Values`: those of the data's columns or channels, or numbers from 0."""
    if data.columns:
        return tuple(column.name for column in data.columns)
    if data.channels:
        return data.channels
    return tuple(map(str, range(data.x.shape[1] if column_word(kind) != "input" else 1)))


@dataclass(frozen=True, eq=False)
class Values:
    """The inputs of each site that are looked at; S sites, C columns.

    A column is one of a row of numbers, or a channel of images and signals; of all else everything is one column. What
    is missing (NaN) is left out of every figure but :attr:`missing`. All figures are NaN where there is no number.

    Attributes:
        samples: how many samples of each site are looked at, (S,), int64.
        mean: (S, C), float64; NaN of categories, whose codes are no numbers, as is the deviation.
        std: the standard deviation, (S, C), float64.
        low: the least number or code, (S, C), float64.
        high: the greatest number or code, (S, C), float64.
        missing: the share that is missing, (S, C), float64 in 0..1.
    """

    samples: Tensor
    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    missing: Tensor


def measure(data: DomainData, looked: Tensor, kind: Kind, tell: Tell = silent) -> Values:
    """Measure the inputs of some samples, a few at a time.

    Args:
        data: the samples.
        looked: which are looked at, (N,), bool.
        kind: what a sample is.
        tell: takes the progress: what is done, samples done, samples in all.
    """
    columns, measured, sizes = len(column_names(data, kind)), [], []
    for site in range(len(data.domains)):
        tell("Measuring inputs", site, len(data.domains))
        rows = (looked & (data.domain == site)).nonzero().flatten()
        sizes.append(len(rows))
        measured.append(_figures(_pieces(data.x, rows, columns), columns))
    tell("Measuring inputs", len(data.domains), len(data.domains))
    mean, std, low, high, missing = torch.stack(measured, dim=1)
    codes = [place for place, column in enumerate(data.columns) if column.categories is not None]
    mean[:, codes], std[:, codes] = torch.nan, torch.nan
    return Values(torch.tensor(sizes), mean, std, low, high, missing)


def _pieces(x: Tensor, rows: Tensor, columns: int) -> Iterator[Tensor]:
    """Samples as (columns, numbers), a few at a time."""
    for some in torch.split(rows, max(1, PIECE // x[0].numel())):
        if len(some):
            yield x[some].double().reshape(len(some), columns, -1).transpose(0, 1).flatten(1)


def _figures(pieces: Iterable[Tensor], columns: int) -> Tensor:
    """Mean, deviation, least, greatest and what is missing of each column, (5, columns)."""
    count, numbers, total, squares = (torch.zeros(columns, dtype=torch.float64) for _ in range(4))
    low, high = torch.full_like(count, torch.inf), torch.full_like(count, -torch.inf)
    pivot = None  # sums are of differences from it, as numbers may lie far from 0
    for piece in pieces:
        if pivot is None:
            pivot = piece.nanmean(dim=1, keepdim=True).nan_to_num(0.0)
        moved = (piece - pivot).nan_to_num(0.0)
        count += (~piece.isnan()).sum(dim=1)
        numbers += piece.shape[1]
        total += moved.sum(dim=1)
        squares += moved.square().sum(dim=1)
        low = torch.minimum(low, piece.nan_to_num(torch.inf).amin(dim=1))
        high = torch.maximum(high, piece.nan_to_num(-torch.inf).amax(dim=1))
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt().masked_fill(low == high, 0.0)  # whatever rounding left
    if pivot is not None:
        mean += pivot.squeeze(1)
    figures = torch.stack([mean, std, low, high]).masked_fill(count == 0, torch.nan)
    return torch.cat([figures, (1 - count / numbers).unsqueeze(0)])
