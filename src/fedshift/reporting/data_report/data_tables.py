"""The values of inputs at each site; a data report as facts and tables, for a terminal, a notebook and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedshift.clients.columns import ColumnAlone
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.clients.oddities import PIECE, Tell, silent
from fedshift.clients.preparation import Column, Preparation
from fedshift.reporting.data_report.duplicates import ROLES
from fedshift.reporting.table import Table
from fedshift.written import bytes_text, printable

if TYPE_CHECKING:
    from fedshift.reporting.data_report.report import DataReport

Kind = Literal["images", "signals", "rows", "text", "tokens", "arrays"]
WORDS = {"images": "channel", "signals": "channel", "rows": "column"}  # for numbers that are measured together
COLOURS = 4  # channels of an image, at most
MOST_ACROSS = 10  # sites or classes as columns
MOST_DOWN = 30  # rows of a table
KINDS = {
    "validation": "validation samples that are also in training",
    "test": "test samples that are also in training",
    "sites": "samples of several sites",
    "labels": "samples of several classes",
}


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
    """A column of rows, or a channel of images and signals, at a site; of other data all numbers are one column."""

    column: str  # its name in the data, or its number from 0
    site: str  # the site's
    samples: int  # how many samples of the site are inspected
    # of the numbers that are not missing; None where there is none, and of categories, whose codes are no numbers. So
    # is the deviation.
    mean: float | None
    std: float | None  # their standard deviation
    low: float | None  # the least number or code
    high: float | None  # the greatest number or code
    missing: float  # the share that is missing (NaN), in 0..1


def measure(data: DomainData, looked: Tensor, kind: Kind, tell: Tell = silent) -> tuple[ColumnValues, ...]:
    """Measure each column at each site of which samples are inspected, a few samples at a time.

    Args:
        data: the samples.
        looked: which are inspected, (N,), bool.
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


def facts(report: DataReport) -> dict[str, str]:
    words = {"text": "texts", "tokens": "rows of tokens"}.get(report.kind, report.kind)
    found = {
        "Experiment": report.experiment,
        "Data": report.data,
        "Samples": f"{report.samples:,} {words} of shape {list(report.shape)}, {report.dtype}",
        "In memory": bytes_text(report.bytes),
        "Sites": str(len(report.sites)),
        "Clients": str(len(report.clients)),
        "Classes": str(len(report.trained)),
        "Looked at": "every sample in use" if report.tested else "samples of training and validation",
    }
    if report.originals < report.samples:
        found["Originals"] = f"{report.originals:,} groups, which a split keeps whole"
    return {name: printable(value) for name, value in found.items()}


def tables(report: DataReport) -> list[Table]:
    """What was found; of a long table the first rows, and how many more there are."""
    names = [*report.trained]
    across = names if len(names) <= MOST_ACROSS else []
    sites = [[each.name, each.samples, *each.roles.values(), each.clients] for each in report.sites]
    clients = [
        [each.name, each.site, each.samples, *(each.classes[name] for name in across)] for each in report.clients
    ]
    scored = [[each.name, each.role, each.clients or "of nobody", each.samples] for each in report.scored]
    figures = [(each, (each.mean, each.std, each.low, each.high, each.missing)) for each in report.values]
    values = [[each.column, each.site, *("" if f is None else f for f in own)] for each, own in figures]
    equal = [[KINDS[each.where], each.samples, each.count] for each in report.duplicates]
    apart = [
        [each.one, each.other, f"{100 * each.accuracy:.0f}", f"{each.p:.2g}"]
        for each in sorted(report.features or (), key=lambda each: -each.accuracy)
    ]
    measures = ["site", "mean", "deviation", "least", "greatest", "missing"]
    drift = (
        "Sites that a classifier shows separately: accuracy in % on held-out samples of equal classes (guessing: 50)"
    )
    found = [
        _table(
            "Samples of each site, as the protocol splits them",
            ["site", "samples", *ROLES, "nobody's", "clients"],
            sites,
        ),
        _table("Training samples of each client", ["client", "site", "all", *across], clients),
        _classes(report),
        _table("What models are scored on", ["environment", "role", "clients", "samples"], scored),
        _table("Values of the inputs", [WORDS.get(report.kind, "input"), *measures], values),
        _alone(report.alone),
        _table("Equal bit by bit", ["", "samples", "sets"], equal),
        _table(drift, ["site", "other", "accuracy", "p"], apart),
    ]
    return [table for table in found if table.rows]


def _classes(report: DataReport) -> Table:
    sites = report.sites if len(report.sites) <= MOST_ACROSS else ()
    totals = {name: sum(site.classes[name] for site in report.sites) for name in report.trained}
    names = sorted(totals, key=lambda name: -totals[name]) if len(totals) > MOST_DOWN else [*totals]
    rows = [[name, totals[name], report.trained[name], *(site.classes[name] for site in sites)] for name in names]
    return _table("Samples of each class", ["class", "all", "trained on", *(site.name for site in sites)], rows)


def _alone(alone: Sequence[ColumnAlone]) -> Table:
    """What each column states by itself, the most showing first."""
    title = "Each column alone on training rows: AUROC in %, the mean over classes (guessing: 50)"
    scored = sorted(alone, key=lambda each: -(each.auroc or 0))
    rows = [
        [each.column, "" if each.auroc is None else f"{100 * each.auroc:.1f}", "in every row" if each.unique else ""]
        for each in scored
    ]
    return _table(title, ["column", "AUROC", "another value"], rows)


def _table(title: str, columns: list[str], rows: Sequence[Sequence[object]]) -> Table:
    cells = [
        ["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in rows
    ]
    if len(rows) > MOST_DOWN:
        cells.append([f"and {len(rows) - MOST_DOWN} more", *[""] * (len(columns) - 1)])
    return Table(title, columns, cells)
