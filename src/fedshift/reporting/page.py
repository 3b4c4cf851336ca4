"""A self-contained HTML report of a comparison."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedshift.reporting.curves import Panel, as_svg, by_place, by_round, colours, figures, unscored_before
from fedshift.reporting.facts import Merged, facts, merged, title
from fedshift.reporting.render import render, write_page_to
from fedshift.reporting.results import Row
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, clock
from fedshift.runs.records import Record
from fedshift.runs.run import Run

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

SHADED = "one standard deviation over seeds to either side, within 0 and 100 %."


def write_report(comparison: Comparison, path: Path) -> Path:
    """Write the report: tables, curves, cost, what left each site, and the runs' settings.

    Args:
        comparison: the runs.
        path: the file, or a folder for a report.html; folders that are missing are made.

    Returns:
        The file.

    Raises:
        FedshiftError: it cannot be written.
    """
    return write_page_to(path, "report.html", page(comparison, datetime.now().astimezone()))


def page(comparison: Comparison, now: datetime) -> str:
    """The report as HTML."""
    rows, place = comparison.rows(), by_place(comparison)
    rounds = by_round(comparison)
    settings = merged([[run.table for run in row.runs] for row in rows])
    machine = merged([[_known(run.environment) for run in row.runs] for row in rows])
    return render(
        "report.html.jinja",
        title=title(comparison),
        facts=facts(comparison, now),
        tables=comparison.tables(),
        notes=comparison.notes(),
        keys=list(zip([row.label for row in rows], colours(len(rows)), strict=True)),
        metric=comparison.metric,
        test=comparison.label("test"),
        validation=comparison.label("validation") if comparison.environments("validation") else "",
        shaded=SHADED if any(line.edge(-1) != line.edge(1) for panel in rounds for line in panel.lines) else "",
        by_place=_drawn([place] if place else []),
        by_round=_drawn(rounds),
        stages=_on_stages(rows),
        messages=[(row.label, row.runs[0].messages) for row in rows],
        runs=_runs(comparison.runs),
        several=len(comparison.runs) > 1,
        common=tomli_w.dumps(settings.common),
        differing=_differing("For each row of the tables above; several values are those of its runs.", rows, settings),
        machine=tomli_w.dumps(machine.common),
        machines=_differing("What differs between the rows of the tables above, or between their runs", rows, machine),
    )


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
    last, times = run.records[-1], run.folder.times()
    spent = [clock(times.training), clock(times.evaluation)] if times.engines else ["", ""]
    sent = [bytes_text(last["bytes_down"]), bytes_text(last["bytes_up"])]
    return [run.folder.path.name, in_words(run.records), *sent, *spent, ", then ".join(times.engines)]


def _differing(about: str, rows: Sequence[Row], found: Merged) -> Table:
    columns = ["setting", *(row.label for row in rows)]
    return Table(about, columns, [[name, *texts] for name, texts in found.differing.items()])


def _known(table: Any) -> Any:
    """A JSON table without what is null, of which TOML has none."""
    if not isinstance(table, dict):
        return table
    return {name: _known(value) for name, value in table.items() if value is not None}


def in_words(records: Sequence[Record]) -> str:
    """The rounds done: "8", or by stage where there are several: "2 not scored + 8 train + 1 finetune"."""
    scored = {record["stage"]: record["round"] for record in records}
    others = records[-1]["position"] - sum(scored.values())
    if len(scored) == 1 and not others:
        return str(records[-1]["position"])
    words = [f"{others} not scored"] if others else []
    return " + ".join(words + [f"{rounds} {stage}" for stage, rounds in scored.items()])


def spans(records: Sequence[Record]) -> str:
    """Which training rounds are of which stage: "1 to 8 are 'train', 9 is 'finetune'"; empty of a single stage."""
    before = unscored_before(records)
    ends = {record["stage"]: (record["round"], record["position"] - before) for record in records}
    words = [
        f"{end - rounds + 1} to {end} are '{stage}'" if rounds > 1 else f"{end} is '{stage}'"
        for stage, (rounds, end) in ends.items()
    ]
    return ", ".join(words) if len(words) > 1 else ""
