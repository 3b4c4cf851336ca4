"""What ``fedshift data`` prints."""

from __future__ import annotations

import json
from pathlib import Path

from fedshift.cli.console import open_console
from fedshift.reporting.data_report.data_page import facts, lines, tables
from fedshift.reporting.data_report.report import DataReport
from fedshift.reporting.units import printable


def print_data(report: DataReport, html: Path | None, as_json: bool) -> None:
    """Write the page, if one is asked for, and print what was found.

    Args:
        report: what was found.
        html: where the page is written.
        as_json: print JSON.

    Raises:
        FedshiftError: the page cannot be written.
    """
    console = open_console()
    written = None if html is None else report.report(html)
    if as_json:
        text = json.dumps(report.table(), indent=2, ensure_ascii=False)
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    for name, value in facts(report).items():
        console.print(f"{name}: {printable(value)}", highlight=False, markup=False, soft_wrap=True)
    for table in tables(report):
        console.print(table.rich())
    for line in lines(report):
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
    if written is not None:
        console.print(f"Written: {printable(str(written))}", highlight=False, markup=False, soft_wrap=True)
