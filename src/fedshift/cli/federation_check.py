"""What ``fedshift federation check`` prints."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from fedshift.cli.console import open_console
from fedshift.cli.federation_serve import say
from fedshift.deployment.inspection import Inspection, SiteSamples, inspect
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, printable


def check(folder: Path, as_json: bool) -> None:
    """Inspect a site and print what was found.

    Args:
        folder: the site's.
        as_json: print JSON.

    Raises:
        FedshiftError: something keeps the site from taking part; the message says all of it.
    """
    inspection, console = inspect(folder), open_console()
    if as_json:
        say(json.dumps(inspection.table(), indent=2, ensure_ascii=False))
    else:
        _print(inspection, console)
    inspection.check()
    if not as_json:
        say(f"'{inspection.site}' can take part. Nothing was written, and nothing left this machine.")


def _print(inspection: Inspection, console: Console) -> None:
    if inspection.federation and inspection.site:
        say(f"Federation '{inspection.federation}', site '{inspection.site}'")
    if inspection.samples is not None:
        _print_data(inspection.samples, console)
    for note in (*(inspection.samples.notes if inspection.samples else ()), *inspection.notes):
        say(f"Note: {printable(note)}")
    if inspection.page:
        say(f"\n{inspection.page}")


def _print_data(samples: SiteSamples, console: Console) -> None:
    files = "1 file" if samples.files == 1 else f"{samples.files} files"
    if samples.path:
        say(f"Read: '{samples.path}', {files}, {bytes_text(samples.bytes)}")
    say(f"Samples: {samples.samples}, of shape {list(samples.shape)}, {samples.dtype}")
    parts = list(samples.counts)
    rows = [[name, *(str(samples.counts[part][name]) for part in parts)] for name in samples.counts[parts[0]]]
    rows.append(["all", *(str(sum(samples.counts[part].values())) for part in parts)])
    console.print(Table("Samples of each class", ["class", *parts], rows).rich())
    if samples.lacking:
        say(f"No sample of: {printable(', '.join(samples.lacking))}. Sites may lack classes.")
