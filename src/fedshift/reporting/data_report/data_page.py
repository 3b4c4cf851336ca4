"""A data report as tables for a terminal, as JSON, and as a page."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from torch import Tensor

from fedshift.reporting.data_report.findings import place
from fedshift.reporting.data_report.roles import ROLES
from fedshift.reporting.data_report.values import column_word
from fedshift.reporting.render import render, write_page_to
from fedshift.reporting.table import Table, text
from fedshift.reporting.units import bytes_text

if TYPE_CHECKING:
    from fedshift.reporting.data_report.report import DataReport

MOST_ACROSS = 10  # sites as columns
MOST_DOWN = 30  # rows of a table
MOST_SETS = 20  # equal samples that are named, of each kind
MEASURES = ("mean", "std", "low", "high", "missing")
KINDS = {
    "validation": "validation samples that are also in training",
    "test": "test samples that are also in training",
    "sites": "samples of several sites",
    "labels": "samples of several classes",
}


def as_text(report: DataReport, width: int = 120) -> str:
    """Everything as plain text."""
    about = [f"{name}: {value}" for name, value in facts(report).items()]
    return "\n".join([*about, "", text(tables(report), [], width) + "\n".join(lines(report))]) + "\n"


def lines(report: DataReport) -> list[str]:
    """Findings and notes, a line each."""
    found = [f"{number}. {finding}" for number, finding in enumerate(report.findings, 1)]
    heading = f"Found: {len(found)}" if found else "Nothing odd was found."
    return [heading, *found, *(f"Note: {note}" for note in all_notes(report))]


def all_notes(report: DataReport) -> list[str]:
    """Notes on the data and on what was looked at."""
    notes = list(report.notes)
    if any(each.role == "test" for each in report.scored):
        notes.append(
            "Test samples are judged as well, as asked for: whoever chooses by that chooses on the test."
            if report.tested
            else "Of test samples no more is looked at than how many there are of each class, and whether they are "
            "equal to others, bit by bit."
        )
    if report.features is None:
        return notes
    compared = {name for each in report.features for name in (each.one, each.other)}
    looked = [site.name for site, count in zip(report.sites, report.values.samples, strict=True) if count]
    left = [name for name in looked if name not in compared]
    if left and len(looked) > 1:
        notes.append(
            f"{len(left)} of {len(looked)} sites have too few samples of common classes (or too few groups) to be "
            "compared by a classifier."
        )
    return notes


def facts(report: DataReport) -> dict[str, str]:
    """What was read, by what it is."""
    x, samples = report.data.x, len(report.data.y)
    words = {"text": "texts", "tokens": "rows of tokens"}.get(report.kind, report.kind)
    dtype = str(x.dtype).removeprefix("torch.")
    found = {
        "Experiment": report.experiment,
        "Data": report.dataset,
        "Samples": f"{samples:,} {words} of shape {list(x.shape[1:])}, {dtype}",
        "Originals": f"{report.originals:,} groups, which a split keeps whole" if report.originals < samples else "",
        "In memory": bytes_text(x.nbytes),
        "Sites": str(len(report.sites)),
        "Clients": str(len(report.clients)),
        "Classes": str(len(report.data.classes)),
        "Looked at": "every sample in use" if report.tested else "samples of training and validation",
    }
    return {name: value for name, value in found.items() if value}


# Tables -------------------------------------------------------------------------------------------


def tables(report: DataReport) -> list[Table]:
    """What was found, in tables."""
    found = [_sites(report), _clients(report), _classes(report), _scored(report), *_values(report)]
    if report.duplicates:
        rows = [[KINDS[each.where], str(each.samples), str(len(each.sets))] for each in report.duplicates]
        found.append(Table("Equal bit by bit", ["", "samples", "sets"], rows))
    if report.features:
        title = "Sites that a classifier tells apart: accuracy in % on held-out samples of equal classes (guessing: 50)"
        ordered = sorted(report.features, key=lambda each: -each.accuracy)
        rows = [[each.one, each.other, f"{100 * each.accuracy:.0f}", f"{each.p:.2g}"] for each in ordered]
        found.append(Table(title, ["site", "other", "accuracy", "p"], rows))
    return [Table(table.title, table.columns, _cut(table.rows)) for table in found]


def _sites(report: DataReport) -> Table:
    rows = []
    for site in report.sites:
        classes = f"{sum(count > 0 for count in site.classes.values())} of {len(site.classes)}"
        rows.append([site.name, *map(str, [site.samples, *site.roles.values(), classes, site.clients])])
    columns = ["site", "samples", *ROLES, "nobody's", "classes", "clients"]
    return Table("Samples of each site, as the protocol splits them", columns, rows)


def _clients(report: DataReport) -> Table:
    classes = report.data.classes if len(report.data.classes) <= MOST_ACROSS else ()
    rows = []
    for client in report.clients:
        counts = [client.samples, *(client.classes[name] for name in classes)]
        rows.append([client.name, client.site, *map(str, counts)])
    return Table("Training samples of each client", ["client", "site", "all", *classes], rows)


def _classes(report: DataReport) -> Table:
    """The largest classes first where there are many."""
    sites = report.sites if len(report.sites) <= MOST_ACROSS else ()
    totals = {name: sum(site.classes[name] for site in report.sites) for name in report.trained}
    names = sorted(totals, key=lambda name: -totals[name]) if len(totals) > MOST_DOWN else [*totals]
    rows = [
        [name, *map(str, [totals[name], report.trained[name], *(site.classes[name] for site in sites)])]
        for name in names
    ]
    return Table("Samples of each class", ["class", "all", "trained on", *(site.name for site in sites)], rows)


def _scored(report: DataReport) -> Table:
    rows = [
        [each.name, each.role, str(each.clients) if each.clients else "of nobody", str(each.samples)]
        for each in report.scored
    ]
    return Table("What models are scored on", ["environment", "role", "clients", "samples"], rows)


def _values(report: DataReport) -> list[Table]:
    if report.kind in ("text", "tokens"):
        return []
    rows = []
    for column, title in enumerate(report.columns):
        for number, site in enumerate(report.sites):
            if report.values.samples[number]:
                figures = [float(getattr(report.values, name)[number, column]) for name in MEASURES]
                rows.append([title, site.name, *("" if isnan(figure) else f"{figure:.4g}" for figure in figures)])
    columns = [column_word(report.kind), "site", "mean", "deviation", "least", "greatest", "missing"]
    return [Table("Values of the inputs", columns, rows)]


def _cut(rows: list[list[str]]) -> list[list[str]]:
    """The first rows, and how many more there are."""
    if len(rows) <= MOST_DOWN:
        return rows
    return [*rows[:MOST_DOWN], [f"and {len(rows) - MOST_DOWN} more", *[""] * (len(rows[0]) - 1)]]


# JSON and HTML ------------------------------------------------------------------------------------


def as_table(report: DataReport) -> dict[str, Any]:
    """What was found, as JSON can hold it; samples are named, and not among it."""
    data = report.data
    sites = []
    for number, site in enumerate(report.sites):
        values = {name: _numbers(getattr(report.values, name)[number]) for name in MEASURES}
        sites.append({**asdict(site), "values": {"samples": int(report.values.samples[number]), **values}})
    sets = [[[place(data, row) for row in rows] for rows in each.sets[:MOST_SETS]] for each in report.duplicates]
    plain = ("experiment", "kind", "originals", "columns", "tested")
    return {
        **{name: getattr(report, name) for name in plain},
        "data": report.dataset,
        "shape": list(data.x.shape[1:]),
        "dtype": str(data.x.dtype).removeprefix("torch."),
        "samples": len(data.y),
        "classes": data.classes,
        "sites": sites,
        "clients": [asdict(each) for each in report.clients],
        "scored": [asdict(each) for each in report.scored],
        "duplicates": [{**asdict(each), "sets": own} for each, own in zip(report.duplicates, sets, strict=True)],
        "features": None if report.features is None else [asdict(each) for each in report.features],
        "findings": [asdict(finding) for finding in report.findings],
        "notes": all_notes(report),
    }


def _numbers(values: Tensor) -> list[float | None]:
    return [None if isnan(value) else value for value in values.tolist()]


def write_data_page(report: DataReport, path: Path) -> Path:
    """Write the page to a file, or as data.html into a folder, and return its path.

    Raises:
        FedshiftError: it cannot be written.
    """
    page = render("data.html.jinja", title=f"The data of {report.experiment}", body=Markup(body(report)))
    return write_page_to(path, "data.html", page)


def body(report: DataReport) -> str:
    """What the page shows, as HTML without head and style."""
    sets = [
        (KINDS[each.where], [" = ".join(place(report.data, row) for row in rows) for rows in each.sets[:MOST_SETS]])
        for each in report.duplicates
    ]
    return render(
        "data_body.html.jinja",
        facts=facts(report),
        findings=report.findings,
        notes=all_notes(report),
        tables=tables(report),
        sets=sets,
    )
