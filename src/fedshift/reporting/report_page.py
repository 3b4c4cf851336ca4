"""A self-contained HTML report of a comparison, and its tables and figures as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedshift import files
from fedshift.errors import FedshiftError
from fedshift.reporting.analyses import ANALYSES
from fedshift.reporting.analyses.analysed import Analysed, existing, measure
from fedshift.reporting.charts import Chart, row_id
from fedshift.reporting.comparison_notes import explanations
from fedshift.reporting.comparison_tables import (
    class_counts,
    differences,
    environments,
    headline,
    metrics,
    scored_models,
    terms,
    trained_classes,
)
from fedshift.reporting.curves import by_place, by_round, by_term, charts, colours
from fedshift.reporting.facts import differing, facts, on_stages, question, taken, title
from fedshift.reporting.results import Row, merged
from fedshift.reporting.sent_parts import sent
from fedshift.reporting.table import Table, render, write_page_to
from fedshift.runs.run import Run
from fedshift.written import file_name

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

SAMPLES = "samples"  # the analysis that shows images of each domain, which stand with the data
MOST_FOLDED_OPEN = 12  # rows of a table that is shown at once
ALL_ENVIRONMENTS = "over all test environments"
RULES = (
    "The headline is the last round, or the mean of the last evaluations where the runs request several. "
    '"At best" reports the round that validation data select; "best (oracle)" inspects the test data and is shown only '
    "for comparison."
)
INTERVALS = (
    "Each seed is a pair: both rows have the same data, split and environments there. The interval is Student's t over "
    'seeds; "not clear" where it includes 0, or where there is a single seed. Nothing is corrected for the number of '
    "rows."
)
SENT = (
    "Of the first run of each row. A part is the first word of its tensors' names. Results train the models; telemetry "
    "is for people. Bytes of a part are those of its values; below stands every tensor, with totals over clients and "
    "rounds, names and types included."
)
SUPPORT = (
    "n counts the samples that a run is scored on, over all clients; beside it the least and the most of a class. "
    "Several numbers are those of different runs."
)


@dataclass(frozen=True)
class Section:
    """A part of the page, under a heading."""

    name: str  # of its place on the page and of its files
    heading: str  # what it shows
    about: Sequence[str] = ()  # paragraphs
    facts: Mapping[str, str] = field(default_factory=dict)  # facts by name
    tables: Sequence[Table] = ()  # its tables, and those of them that contain words
    charts: Sequence[Chart] = ()  # its figures
    folded: Sequence[tuple[str, Table | str]] = ()  # tables or texts that are opened by their summary
    messages: Sequence[tuple[str, Mapping[str, Any]]] = ()  # what crossed the wire, by row
    notes: Sequence[str] = ()  # what a reader must know
    words: bool = False


def write_report(comparison: Comparison, path: Path, images: bool = False) -> Path:
    """Write the report, a page that needs nothing else.

    Args:
        comparison: the runs.
        path: the file, or a folder for a report.html; folders that are missing are made.
        images: read the data of the first finished run, unless it was done before, for images of each domain.

    Returns:
        The file.
    """
    why = measure_samples(comparison.runs) if images else ""
    return write_page_to(path, "report.html", page(comparison, datetime.now().astimezone(), why))


def measure_samples(runs: Sequence[Run]) -> str:
    """Keep images of each domain in the folder of the first finished run; if there can be none, the reason."""
    finished = next((run for run in runs if run.finished), None)
    if finished is None:
        return "no run is finished"
    try:
        measure(finished, ANALYSES.build({"name": SAMPLES}))
    except FedshiftError as error:
        return str(error)
    return ""


def write_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every table of the report as LaTeX, Markdown and CSV, and every figure as SVG and PNG with its numbers.

    Returns:
        The files.
    """
    contents, unique = dict[str, bytes | str](), _Unique()
    for section in _sections(comparison, datetime.now().astimezone()):
        tables = [*section.tables, *(folded for _, folded in section.folded if isinstance(folded, Table))]
        for number, table in enumerate(tables, 1):
            name = file_name(section.name, *[str(number)] * (len(tables) > 1))
            contents |= {f"{name}.tex": table.latex(), f"{name}.csv": table.csv()}
            contents[f"{name}.md"] = table.markdown() + "\n"
        for chart in section.charts:
            name = unique(chart.name)
            contents |= {f"{name}.{kind}": getattr(chart, kind)() for kind in ("svg", "png", "csv")}
    files.make_folder(folder)
    for name, content in contents.items():
        files.write(folder / name, content)
    return [folder / name for name in contents]


def page(comparison: Comparison, now: datetime, no_images: str = "") -> str:
    """The report as HTML; ``no_images`` gives the reason there are no images of the data."""
    rows = comparison.rows()
    return render(
        "report.html.jinja",
        title=title(comparison),
        question=question(comparison),
        cautions=comparison.cautions(),
        sections=_sections(comparison, now, no_images),
        keys=list(zip([row.label for row in rows], colours(len(rows)), strict=True)),
        row_of=_row_of(rows),
        uri=_uri,
        unique=_Unique(),
        is_table=lambda folded: isinstance(folded, Table),
        most_open=MOST_FOLDED_OPEN,
    )


class _Unique:
    """Makes names different from all that it gave before: two analyses may call a chart the same."""

    def __init__(self) -> None:
        self._given = set[str]()

    def __call__(self, name: str) -> str:
        named = next(each for n in count(1) if (each := f"{name}-{n}" if n > 1 else name) not in self._given)
        self._given.add(named)
        return named


def _row_of(rows: Sequence[Row]) -> Mapping[str, str]:
    return {name: row_id(number) for number, row in enumerate(rows) for name in (row.label, row.title)}


def _uri(kind: str, text: str) -> str:
    return f"data:text/{kind};charset=utf-8,{quote(text, safe=',.;:()=+/!*')}"


# What is shown, in order -----------------------------------------------------------------------------


def _sections(comparison: Comparison, now: datetime, no_images: str = "") -> list[Section]:
    analysed = [*existing(comparison)]
    return [
        _results(comparison),
        *_differences(comparison),
        _environments(comparison),
        Section("models", "Which model is scored on whose data", tables=[scored_models(comparison)], words=True),
        *_curves(comparison),
        *_losses(comparison),
        _data(comparison, now, [one for one in analysed if one.name == SAMPLES], no_images),
        _sent(comparison),
        *(_analysis(one, number) for number, one in enumerate(analysed, 1) if one.name != SAMPLES),
        Section("runs", "Runs", tables=[taken(comparison.runs)]),
        _settings(comparison),
    ]


def _results(comparison: Comparison) -> Section:
    heading = f"{comparison.metric.heading}{comparison.metric.remark}"
    tables = [headline(comparison), *metrics(comparison)]
    return Section("results", heading, tables=tables, about=[RULES], notes=[*explanations(comparison)])


def _differences(comparison: Comparison) -> Iterator[Section]:
    if tables := differences(comparison):
        yield Section("differences", "Paired differences", [INTERVALS], tables=tables)


def _environments(comparison: Comparison) -> Section:
    counted = [(table.title, table) for role in ("test", "validation") if (table := class_counts(comparison, role))]
    federated = any(run.identity.host == "federation" for run in comparison.runs)
    about = [SUPPORT, *["Class counts stay at the sites."] * federated]
    return Section("environments", "Scores by environment", about, tables=environments(comparison), folded=counted)


def _curves(comparison: Comparison) -> Iterator[Section]:
    test, validation = comparison.label("test"), comparison.label("validation")
    place, rounds = by_place(comparison), by_round(comparison)
    heading = comparison.metric.heading
    band = any(line.edge(-1) != line.edge(1) for panel in rounds for line in panel.lines)
    shaded = " Shaded: one standard deviation over seeds to either side, within 0 and 100 %." if band else ""
    if place:
        about = f"{test.capitalize()} {comparison.metric.title}, {comparison.moment}.{shaded}"
        yield Section("places", f"{heading} by test environment", [about], charts=charts([place], "by-place", about))
    dashed = f" Dashed lines, hollow marks: {validation}, the mean over its environments in the same runs."
    about = f"Solid lines, full marks: {test}.{dashed}{shaded}"
    drawn = charts(rounds, "by-round", about)
    yield Section("rounds", f"{heading} by round", [about, *on_stages(comparison.rows())], charts=drawn)


def _losses(comparison: Comparison) -> Iterator[Section]:
    if panels := by_term(comparison):
        about = (
            "Each term as it is minimised, its weight included: the mean over a client's steps in the round, then over "
            "clients. Each figure has a separate scale."
        )
        drawn = charts(panels, "term", about, percent=False)
        yield Section("losses", "Terms of the loss by round", [about], tables=terms(comparison), charts=drawn)


def _data(comparison: Comparison, now: datetime, samples: Sequence[Analysed], no_images: str) -> Section:
    return Section(
        "data",
        "The data",
        facts=facts(comparison, now),
        folded=[(table.title, table) for one in samples for table in one.tables()] + _trained_classes(comparison),
        charts=[chart for one in samples for chart in one.charts()],
        notes=[f"Sample images are not shown: {no_images}"] * bool(no_images),
    )


def _trained_classes(comparison: Comparison) -> list[tuple[str, Table | str]]:
    table = trained_classes(comparison)
    return [(table.title, table)] if table else []


def _sent(comparison: Comparison) -> Section:
    rows = comparison.rows()
    messages = [(row.label, row.runs[0].messages) for row in rows]
    return Section("sent", "What left each client", [SENT], tables=sent(rows), messages=messages)


def _analysis(analysed: Analysed, number: int) -> Section:
    name = f"{analysed.name}-{number}"
    return Section(name, analysed.analysis.title, analysed.notes(), tables=analysed.tables(), charts=analysed.charts())


def _settings(comparison: Comparison) -> Section:
    rows = comparison.rows()
    settings = merged([[run.table for run in row.runs] for row in rows])
    machine = merged([[run.environment for run in row.runs] for row in rows])
    about = "For each row of the tables above; several values are those of its runs."
    others = "What differs between the rows of the tables above, or between their runs"
    all_have = "Settings that all runs have" if len(comparison.runs) > 1 else "All settings"
    folded: list[tuple[str, Table | str]] = []
    if settings.differing:
        folded.append(("Settings in which runs differ", differing(about, rows, settings)))
    folded.append((all_have, _lines(settings.common)))
    if machine.differing:
        folded.append(("Versions and machines that differ", differing(others, rows, machine)))
    folded.append(("Versions and machine", _lines(machine.common)))
    return Section("settings", "Settings", folded=folded, words=True)


def _lines(values: Mapping[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in values.items())
