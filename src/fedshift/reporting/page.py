"""A self-contained HTML report of a comparison."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import tomli_w
from markupsafe import Markup

from fedshift.errors import FedshiftError
from fedshift.files import make_folder, write
from fedshift.reporting.curves import Panel, as_svg, by_place, by_round, colours, figures
from fedshift.reporting.facts import facts, title
from fedshift.reporting.results import Results, Row
from fedshift.reporting.settings import Merged, merged
from fedshift.reporting.stages import in_words, spans, unscored_before
from fedshift.reporting.table import Table, tables
from fedshift.reporting.units import bytes_text, clock, printable
from fedshift.runs.run import Run

SHADED = "one standard deviation over seeds to either side, within 0 and 100 %."


def write_report(results: Results, path: Path) -> Path:
    """Write the report: tables, curves, cost, what left each site, and the runs' settings.

    Args:
        results: the runs.
        path: the file, or a folder for a report.html; folders that are missing are made.

    Returns:
        The file.

    Raises:
        FedshiftError: it cannot be written.
    """
    return write_page_to(path, "report.html", page(results, datetime.now().astimezone()))


def write_page_to(path: Path, name: str, text: str) -> Path:
    """Write a page to a file, or to one of this name in a folder, and return its path.

    Raises:
        FedshiftError: it cannot be written.
    """
    try:
        path = path / name if path.is_dir() else path
        make_folder(path.parent)
        write(path, text)
    except (FedshiftError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        in_a_file = isinstance(cause, FileExistsError | NotADirectoryError)
        reason = "its folder would be a file" if in_a_file else getattr(cause, "strerror", None) or error
        raise FedshiftError(
            f"The report cannot be written to '{path}': {reason}. Write it elsewhere: `fedshift report RUNS --to FILE`."
        ) from error
    return path


def page(results: Results, now: datetime) -> str:
    """The report as HTML."""
    rows, place = results.rows(), by_place(results)
    rounds = by_round(results)
    settings = merged([[run.table for run in row.runs] for row in rows])
    machine = merged([[_known(run.environment) for run in row.runs] for row in rows])
    return render(
        "report.html.jinja",
        title=title(results),
        facts=facts(results, now),
        tables=tables(results),
        notes=results.notes,
        keys=list(zip([row.label for row in rows], colours(len(rows)), strict=True)),
        metric=results.metric,
        test=results.label("test"),
        validation=results.label("validation") if results.environments("validation") else "",
        shaded=SHADED if any(line.banded for panel in rounds for line in panel.lines) else "",
        by_place=_drawn([place] if place else []),
        by_round=_drawn(rounds),
        stages=_on_stages(rows),
        messages=[(row.label, row.runs[0].messages) for row in rows],
        runs=_runs(results.runs),
        several=len(results.runs) > 1,
        common=tomli_w.dumps(settings.common),
        differing=_differing("For each row of the tables above; several values are those of its runs.", rows, settings),
        machine=tomli_w.dumps(machine.common),
        machines=_differing("What differs between the rows of the tables above, or between their runs", rows, machine),
    )


def render(template: str, **values: Any) -> str:
    """A page of the templates here."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedshift", "reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_safe,
    )
    environment.filters["bytes"] = bytes_text
    return environment.get_template(template).render(values)


def _safe(value: Any) -> Any:
    """A text without what no page may hold, such as control characters; line feeds stay."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(printable(line) for line in value.split("\n"))


def _drawn(panels: Sequence[Panel]) -> list[tuple[Panel, str]]:
    """Each panel with its figure as an SVG file in base64."""
    images = [b64encode(as_svg(figure)).decode() for figure in figures(panels)]
    return list(zip(panels, images, strict=True))


def _on_stages(rows: Sequence[Row]) -> list[str]:
    """What the axis of rounds means for methods with more stages than one."""
    texts = []
    for row in rows:
        longest = max((run.records for run in row.runs), key=lambda records: records[-1]["position"])
        if before := unscored_before(longest):
            texts.append(f"{row.label}: {before} rounds before training are not scored, and not counted on the axis.")
        if found := spans(longest):
            texts.append(f"{row.label}: of the rounds on the axis, {found}.")
    return texts


def _runs(runs: Sequence[Run]) -> Table:
    columns = ["run", "rounds", "sent to clients", "sent by clients", "training", "evaluation", "engine"]
    about = (
        "Bytes are totals over all clients and rounds. The time of runs that went on together is divided equally among "
        "them."
    )
    return Table(about, columns, [_run(run) for run in runs])


def _run(run: Run) -> list[str]:
    last, times = run.records[-1], run.times
    spent = [clock(times.training), clock(times.evaluation)] if times.engines else ["", ""]
    sent = [bytes_text(last["bytes_down"]), bytes_text(last["bytes_up"])]
    return [run.path.name, in_words(run.records), *sent, *spent, ", then ".join(times.engines)]


def _differing(about: str, rows: Sequence[Row], found: Merged) -> Table:
    columns = ["setting", *(row.label for row in rows)]
    return Table(about, columns, [[name, *texts] for name, texts in found.differing.items()])


def _known(table: Any) -> Any:
    """A JSON table without what is null, of which TOML has none."""
    if not isinstance(table, dict):
        return table
    return {name: _known(value) for name, value in table.items() if value is not None}
