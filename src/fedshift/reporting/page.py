"""A self-contained HTML report of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import tomli_w
from markupsafe import Markup

from fedshift.files import write
from fedshift.reporting.curves import accuracy_curves, as_svg, environment_curve
from fedshift.reporting.results import Results
from fedshift.reporting.table import tables
from fedshift.reporting.units import bytes_text, clock
from fedshift.runs.run import Run


def write_report(results: Results, path: Path) -> Path:
    """Write the report: tables, curves, cost, what left each site, and every run's settings.

    Raises:
        FedshiftError: the file cannot be written.
    """
    loader = jinja2.PackageLoader("fedshift", "reporting")
    template = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        "report.html.jinja"
    )
    by_environment = environment_curve(results)
    page = template.render(
        title=results.runs[0].table["name"],
        tables=tables(results),
        notes=results.notes,
        curves=Markup(as_svg(accuracy_curves(results))),  # made by matplotlib, which escapes labels
        by_environment=Markup(as_svg(by_environment)) if by_environment else "",
        runs=[_run(run) for run in results.runs],
        messages=[(row.label, row.runs[0].messages) for row in results.rows()],
    )
    write(path, page)
    return path


def _run(run: Run) -> dict[str, Any]:
    last, times = run.records[-1], run.folder.times()
    return {
        "name": run.folder.path.name,
        "rounds": last["position"],
        "down": bytes_text(last["bytes_down"]),
        "up": bytes_text(last["bytes_up"]),
        "training": clock(times.training) if times.engines else "",
        "evaluation": clock(times.evaluation) if times.engines else "",
        "engine": ", then ".join(times.engines),
        "settings": tomli_w.dumps(run.table),
        "environment": run.folder.environment.model_dump(),
    }
