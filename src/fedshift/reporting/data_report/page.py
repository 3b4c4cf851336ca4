"""A data report as tables for a terminal, as JSON, and as a page with samples to look at."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from math import isfinite, isnan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from fedshift.federation.preparation import Column
from fedshift.reporting.data_report.drift import REST, Drift
from fedshift.reporting.data_report.examples import Examples
from fedshift.reporting.data_report.findings import place
from fedshift.reporting.data_report.inspection import Inspection
from fedshift.reporting.data_report.roles import ROLES
from fedshift.reporting.data_report.values import column_word
from fedshift.reporting.page import render, write_page_to
from fedshift.reporting.table import Table, text
from fedshift.reporting.units import bytes_text

MOST_ACROSS = 10  # sites as columns
MOST_DOWN = 30  # rows of a table
MOST_SETS = 20  # equal samples that are named, of each kind
THUMBNAIL = 72  # pixels
CURVE = (150, 60)  # pixels of a signal
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")  # of channels
MOST_POINTS = 200  # of a signal
MOST_NUMBERS = 12  # columns of a row
MOST_LETTERS = 200  # of a text
WORDS = {"text": "texts", "tokens": "rows of tokens"}
KINDS = {
    "validation": "validation samples that are also in training",
    "test": "test samples that are also in training",
    "sites": "samples of several sites",
    "labels": "samples of several classes",
    "class": "training samples that repeat one of their site and class",
}


@dataclass(frozen=True)
class Shown:
    """Samples of one site and class, as a page shows them.

    Attributes:
        site: the site's name.
        label: the class's name.
        html: pictures, or empty.
        lines: a line for each sample, or none.
        rows: the samples' numbers.
    """

    site: str
    label: str
    html: str
    lines: list[str]
    rows: str


def as_text(report: Inspection, width: int = 120) -> str:
    """Everything but the samples, as plain text."""
    about = [f"{name}: {value}" for name, value in facts(report).items()]
    return "\n".join([*about, "", text(tables(report), [], width) + "\n".join(lines(report))]) + "\n"


def lines(report: Inspection) -> list[str]:
    """Findings and notes, a line each."""
    found = [f"{number}. {finding}" for number, finding in enumerate(report.findings, 1)]
    return [
        f"Found: {len(found)}" if found else "Nothing odd was found.",
        *found,
        *(f"Note: {n}" for n in told(report)),
    ]


def told(report: Inspection) -> list[str]:
    """Notes on the data and on what was looked at."""
    notes = list(report.notes)
    if any(each.role == "test" for each in report.scored):
        notes.append(
            "Test samples are judged and shown as well, as asked for: whoever chooses by that chooses on the test."
            if report.tested
            else "Of test samples no more is looked at than how many there are of each class, and whether they are "
            "equal to others, bit by bit."
        )
    if report.features is None:
        return notes
    compared = {name for each in (*report.features.pairs, *report.features.rest) for name in (each.one, each.other)}
    if compared:
        notes.append(
            f"Sites are compared on at most {report.features.per_site:,} samples each, equally many of each class, "
            "and one of each group."
        )
    looked = [site.name for site, count in zip(report.sites, report.values.samples, strict=True) if count]
    left = [name for name in looked if name not in compared]
    if left and len(looked) > 1:
        notes.append(
            f"{len(left)} of {len(looked)} sites have too few samples of common classes (or too few groups) to be "
            "compared by a classifier."
        )
    return notes


def facts(report: Inspection) -> dict[str, str]:
    """What was read, by what it is."""
    samples = sum(site.samples for site in report.sites)
    found = {
        "Experiment": report.experiment,
        "Data": report.dataset,
        "Samples": f"{samples:,} {WORDS.get(report.kind, report.kind)} of shape {list(report.shape)}, {report.dtype}",
        "Originals": f"{report.originals:,} groups, which a split keeps whole" if report.originals < samples else "",
        "In memory": bytes_text(report.bytes),
        "Sites": str(len(report.sites)),
        "Clients": str(len(report.clients)),
        "Classes": str(len(report.classes)),
        "Looked at": "every sample in use" if report.tested else "samples of training and validation",
    }
    return {name: value for name, value in found.items() if value}


def tables(report: Inspection) -> list[Table]:
    """What was found, in tables."""
    found = [_sites(report), *_clients(report), _classes(report), _scored(report), *_values(report)]
    if report.duplicates:
        rows = [[KINDS[each.where], str(each.samples), str(len(each.sets))] for each in report.duplicates]
        found.append(Table("Equal bit by bit", ["", "samples", "sets"], rows))
    if report.features is not None:
        title = (
            "Telling sites apart: held-out accuracy in % of a classifier on equal classes (guessing: 50; *: p < 0.05)"
        )
        found += _differences(title, report.features, 100, ".0f")
    title = "Total variation distance between the classes of sites (0: equal; *: p < 0.05)"
    found += _differences(title, report.labels or Drift(), 1, ".2f")
    return [*found, *_differences(title.replace("sites", "clients"), report.client_labels or Drift(), 1, ".2f")]


def _sites(report: Inspection) -> Table:
    columns = ["site", "samples", *ROLES, "nobody's", "classes", "clients"]
    rows = [
        [
            site.name,
            str(site.samples),
            *(str(count) for count in site.roles.values()),
            f"{sum(count > 0 for count in site.classes)} of {len(report.classes)}",
            str(site.clients),
        ]
        for site in report.sites
    ]
    return Table("Samples of each site, as the protocol splits them", columns, _cut(rows))


def _clients(report: Inspection) -> list[Table]:
    """Who trains on what, where a site is several clients."""
    if report.client_labels is None:
        return []
    by_site: dict[str, list[int]] = {}
    for client in report.clients:
        by_site.setdefault(client.site, []).append(client.samples)
    columns = ["site", "clients", "least", "median", "most"]
    rows = [[site, str(len(own)), str(min(own)), f"{median(own):g}", str(max(own))] for site, own in by_site.items()]
    found = [Table("Training samples of a client", columns, _cut(rows))]
    if len(report.clients) <= MOST_DOWN:
        listed = [[client.name, str(client.samples), *map(str, client.classes)] for client in report.clients]
        if len(report.classes) <= MOST_ACROSS:
            found.append(Table("Training samples of each class", ["client", "all", *report.classes], listed))
    return found


def _classes(report: Inspection) -> Table:
    counts = torch.tensor([site.classes for site in report.sites])
    title = "Samples of each class"
    if len(report.sites) <= MOST_ACROSS:
        columns = ["class", "all", "trained on", *(site.name for site in report.sites)]
        figures = counts.T.tolist()
    else:
        columns = ["class", "all", "trained on", "least of a site", "median", "most of a site"]
        figures = [[int(own.min()), int(own.median()), int(own.max())] for own in counts.T]
    rows = [
        [name, *map(str, [total, trained, *own])]
        for name, total, trained, own in zip(
            report.classes, counts.sum(dim=0).tolist(), report.trained, figures, strict=True
        )
    ]
    if len(rows) > MOST_DOWN:  # those that are shown are the largest
        rows.sort(key=lambda row: -int(row[1]))
    return Table(title, columns, _cut(rows))


def _scored(report: Inspection) -> Table:
    columns = ["environment", "role", "clients", "samples", "of a client"]
    rows = [
        [
            each.name,
            each.role,
            str(each.clients) if each.clients else "of nobody",
            str(each.samples),
            str(each.least) if each.least == each.most else f"{each.least} to {each.most}",
        ]
        for each in report.scored
    ]
    return Table("What models are scored on", columns, _cut(rows))


def _values(report: Inspection) -> list[Table]:
    values, word = report.values, column_word(report.kind)
    if report.kind in ("text", "tokens"):
        return []
    columns = ["site", "looked at", "least", "greatest", "mean", "deviation", "missing in %"]
    total = values.count.masked_fill(values.mean.isnan(), 0.0).sum(dim=1)  # of numbers, not of categories
    mean = (values.mean.nan_to_num(0.0) * values.count).sum(dim=1) / total
    squares = ((values.std.square() + values.mean.square()).nan_to_num(0.0) * values.count).sum(dim=1) / total
    std = (squares - mean.square()).clamp_min(0).sqrt()
    low, high = values.low.nan_to_num(torch.inf).amin(dim=1), values.high.nan_to_num(-torch.inf).amax(dim=1)
    missing = 100 * values.missing.mean(dim=1)
    rows = []
    for number, site in enumerate(report.sites):
        figures = [f"{float(each[number]):.4g}" for each in (low, high, mean, std, missing)]
        looked = int(values.samples[number])
        rows.append([site.name, str(looked), *(figures if looked else ["not looked at", *[""] * 4])])
    found = [Table("Values of the inputs", columns, _cut(rows))]
    if len(report.sites) <= MOST_ACROSS and values.mean.shape[1] > 1:
        heads = [word, *(site.name for site in report.sites if values.samples[report.sites.index(site)])]
        seen = (values.samples > 0).nonzero().flatten().tolist()
        cells = [
            [
                report.columns[column],
                *(f"{float(values.mean[s, column]):.3g} ± {float(values.std[s, column]):.3g}" for s in seen),
            ]
            for column in range(values.mean.shape[1])
            if column not in values.categories
        ]
        if cells:
            found.append(Table(f"Mean and standard deviation of each {word}", heads, _cut(cells)))
        cells = [
            [f"{report.columns[column]}: {name}", *(f"{100 * float(share):.1f}" for share in shares)]
            for column, each in _categories(report).items()
            for name, shares in zip(each, _shares(list(each.values()))[:, seen], strict=True)
        ]
        if cells:
            found.append(Table("Cells of each category, in % of those that are not missing", heads, _cut(cells)))
    return found


def _categories(report: Inspection) -> dict[int, dict[str, Tensor]]:
    """By column, the categories that occur in what is looked at, and how many samples of each site have each, (S,)."""
    return {
        column: {
            name: own
            for name, own in zip(report.data.columns[column].categories or (), counts.T, strict=True)
            if own.any()
        }
        for column, counts in report.values.categories.items()
    }


def _shares(counts: Sequence[Tensor]) -> Tensor:
    together = torch.stack([*counts]) if counts else torch.zeros(0, 1)
    return together / together.sum(dim=0)


def _differences(title: str, drift: Drift, scale: float, form: str) -> list[Table]:
    """A matrix of pairs, and each site against the others."""
    found = {(each.one, each.other): each for each in (*drift.pairs, *drift.rest)}
    found |= {(each.other, each.one): each for each in drift.pairs}
    names = list(dict.fromkeys(name for pair in found for name in pair if name != REST))
    others = [REST] if drift.rest else []
    across = [*names, *others] if len(names) <= MOST_ACROSS and drift.pairs else others
    if not names or not across:
        return []

    def cell(one: str, other: str) -> str:
        each = found.get((one, other))
        return "" if each is None else f"{scale * each.value:{form}}{'*' if each.significant else ''}"

    return [Table(title, ["site", *across], [[name, *(cell(name, other) for other in across)] for name in names])]


def _cut(rows: list[list[str]]) -> list[list[str]]:
    """The first rows, and how many more there are."""
    if len(rows) <= MOST_DOWN:
        return rows
    return [*rows[:MOST_DOWN], [f"and {len(rows) - MOST_DOWN} more", *[""] * (len(rows[0]) - 1)]]


# JSON ---------------------------------------------------------------------------------------------


def as_table(report: Inspection) -> dict[str, Any]:
    """What was found, as JSON can hold it; samples are named, and not among it."""
    values = report.values
    return {
        "experiment": report.experiment,
        "data": report.dataset,
        "kind": report.kind,
        "shape": list(report.shape),
        "dtype": report.dtype,
        "bytes": report.bytes,
        "samples": sum(site.samples for site in report.sites),
        "originals": report.originals,
        "classes": list(report.classes),
        "columns": list(report.columns),
        "tested": report.tested,
        "sites": [
            {
                "name": site.name,
                "samples": site.samples,
                "clients": site.clients,
                **{"roles": site.roles, "classes": dict(zip(report.classes, site.classes, strict=True))},
                "values": {
                    name: _numbers(getattr(values, name)[number])
                    for name in ("mean", "std", "low", "high", "missing", "level", "spread")
                }
                | {"samples": int(values.samples[number]), "constant": list(values.constant[number])}
                | {
                    "categories": {
                        report.columns[column]: {name: int(counts[number]) for name, counts in each.items()}
                        for column, each in _categories(report).items()
                    }
                },
            }
            for number, site in enumerate(report.sites)
        ],
        "clients": [
            {
                "name": client.name,
                "site": client.site,
                "samples": client.samples,
                "classes": dict(zip(report.classes, client.classes, strict=True)),
            }
            for client in report.clients
        ],
        "scored": [asdict(each) for each in report.scored],
        "duplicates": [
            {
                "where": each.where,
                "samples": each.samples,
                "sets": len(each.sets),
                "pairs": [list(pair) for pair in each.pairs],
                "first": [[place(report.data, row) for row in rows] for rows in each.sets[:MOST_SETS]],
            }
            for each in report.duplicates
        ],
        "features": None if report.features is None else asdict(report.features),
        "labels": None if report.labels is None else asdict(report.labels),
        "client_labels": None if report.client_labels is None else asdict(report.client_labels),
        "findings": [asdict(finding) for finding in report.findings],
        "notes": told(report),
    }


def _numbers(values: Tensor) -> Any:
    """Numbers, and None for those that there are not."""
    known: Any = values.tolist()
    if isinstance(known, list):
        return [None if isnan(value) else value for value in known]
    return None if isnan(known) else known


# The page -----------------------------------------------------------------------------------------


def write_data_page(report: Inspection, path: Path) -> Path:
    """Write the page to a file, or as data.html into a folder, and return its path.

    Raises:
        FedshiftError: it cannot be written.
    """
    page = render("data.html.jinja", title=f"The data of {report.experiment}", body=Markup(body(report)))
    return write_page_to(path, "data.html", page)


def body(report: Inspection) -> str:
    """What the page shows, as HTML without head and style."""
    sets = [
        (KINDS[each.where], [" = ".join(place(report.data, row) for row in rows) for rows in each.sets[:MOST_SETS]])
        for each in report.duplicates
    ]
    shown = [_shown(report, each) for each in report.examples]
    by_site = {name: [each for each in shown if each.site == name] for name in dict.fromkeys(e.site for e in shown)}
    return render(
        "data_body.html.jinja",
        facts=facts(report),
        findings=report.findings,
        notes=told(report),
        tables=tables(report),
        sets=sets,
        examples=by_site,
        legend=list(zip(report.columns, COLOURS, strict=False)) if report.kind == "signals" else [],
    )


def _shown(report: Inspection, each: Examples) -> Shown:
    numbers = ", ".join(str(row) for row in each.rows)
    if report.kind == "images":
        return Shown(each.site, each.label, _images(report, each), [], numbers)
    if report.kind == "signals":
        return Shown(each.site, each.label, "".join(_curve(x, report.columns) for x in each.x), [], numbers)
    if report.kind == "text":
        cut = each.x[:, :MOST_LETTERS] if each.x.ndim == 2 else each.x
        return Shown(each.site, each.label, "", [line.replace("\n", "⏎") for line in report.inputs.text(cut)], numbers)
    if report.data.columns:
        return Shown(each.site, each.label, "", [_row(row, report.data.columns) for row in each.x.tolist()], numbers)
    rows = each.x.flatten(1)
    more = ", ..." if rows.shape[1] > MOST_NUMBERS else ""
    form = ".4g" if rows.is_floating_point() else "d"
    words = [", ".join(f"{value:{form}}" for value in row[:MOST_NUMBERS].tolist()) + more for row in rows]
    return Shown(each.site, each.label, "", words, numbers)


def _row(row: Sequence[float], columns: Sequence[Column]) -> str:
    """A table's row, with the names of columns and categories."""
    shown = list(zip(columns, row, strict=True))[:MOST_NUMBERS]
    words = [f"{column.name} {_cell(value, column.categories)}" for column, value in shown]
    return ", ".join([*words, *(["..."] if len(columns) > MOST_NUMBERS else [])])


def _cell(value: float, categories: Sequence[str] | None) -> str:
    if isnan(value):
        return "missing"
    return f"{value:.4g}" if categories is None else categories[int(value)]


def _images(report: Inspection, each: Examples) -> str:
    """Images beside each other as one PNG; floats are scaled alike at all sites."""
    x = each.x
    if x.dtype != torch.uint8:
        low = float(report.values.low.nan_to_num(torch.inf).min())
        high = float(report.values.high.nan_to_num(-torch.inf).max())
        shades = (x.double() - low) / max(high - low, 1e-12) * 255
        x = shades.nan_to_num(0.0).clamp(0, 255).to(torch.uint8)
    # One channel is gray; of two, the third colour is lacking.
    x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else pad(x, (0, 0, 0, 0, 0, max(0, 3 - x.shape[1])))[:, :3]
    pictures = [Image.fromarray(np.ascontiguousarray(image.numpy())) for image in x.permute(0, 2, 3, 1)]
    width, height = pictures[0].size
    scale = THUMBNAIL / max(width, height)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    strip = Image.new("RGB", (len(pictures) * (size[0] + 2), size[1]), "white")
    for number, picture in enumerate(pictures):
        strip.paste(picture.resize(size, how), (number * (size[0] + 2), 0))
    buffer = BytesIO()
    strip.save(buffer, "png")
    alt = Markup("Samples {} of class {} at {}").format(", ".join(map(str, each.rows)), each.label, each.site)
    data = b64encode(buffer.getvalue()).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, alt)


def _curve(x: Tensor, names: Sequence[str]) -> str:
    """A signal (channels, time) as a small drawing, each channel over its own range."""
    width, height = CURVE
    step = -(-x.shape[1] // MOST_POINTS)
    drawn = []
    for number, channel in enumerate(x[: len(COLOURS), ::step].double()):
        known = channel[channel.isfinite()]
        if not len(known):
            continue
        low, span = float(known.min()), float(known.max() - known.min()) or 1.0
        across = width / max(1, len(channel) - 1)
        points = [
            f"{across * at:.1f},{height - 2 - (height - 4) * (value - low) / span:.1f}"
            for at, value in enumerate(channel.tolist())
            if isfinite(value)
        ]
        name = Markup("<title>{}</title>").format(names[number])
        drawn.append(f'<polyline points="{" ".join(points)}" stroke="{COLOURS[number]}">{name}</polyline>')
    lines = "".join(drawn)
    return (
        f'<svg class="curve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{lines}</svg>'
    )
