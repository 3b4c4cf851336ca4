"""A data report as facts and tables, which a terminal, a notebook and the page show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedshift.reporting.data_report.duplicates import ROLES
from fedshift.reporting.data_report.values import WORDS
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, printable

if TYPE_CHECKING:
    from fedshift.reporting.data_report.report import DataReport

MOST_ACROSS = 10  # sites or classes as columns
MOST_DOWN = 30  # rows of a table
KINDS = {
    "validation": "validation samples that are also in training",
    "test": "test samples that are also in training",
    "sites": "samples of several sites",
    "labels": "samples of several classes",
}


def facts(report: DataReport) -> dict[str, str]:
    """What was read, by what it is."""
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
    drift = "Sites that a classifier tells apart: accuracy in % on held-out samples of equal classes (guessing: 50)"
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
        _table("Equal bit by bit", ["", "samples", "sets"], equal),
        _table(drift, ["site", "other", "accuracy", "p"], apart),
    ]
    return [table for table in found if table.rows]


def _classes(report: DataReport) -> Table:
    """Samples of each class at each site, the largest classes first where there are many."""
    sites = report.sites if len(report.sites) <= MOST_ACROSS else ()
    totals = {name: sum(site.classes[name] for site in report.sites) for name in report.trained}
    names = sorted(totals, key=lambda name: -totals[name]) if len(totals) > MOST_DOWN else [*totals]
    rows = [[name, totals[name], report.trained[name], *(site.classes[name] for site in sites)] for name in names]
    return _table("Samples of each class", ["class", "all", "trained on", *(site.name for site in sites)], rows)


def _table(title: str, columns: list[str], rows: Sequence[Sequence[object]]) -> Table:
    cells = [
        ["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in rows
    ]
    if len(rows) > MOST_DOWN:
        cells.append([f"and {len(rows) - MOST_DOWN} more", *[""] * (len(columns) - 1)])
    return Table(title, columns, cells)
