"""What ``fedshift federation check`` and ``sent`` print at a site."""

from __future__ import annotations

from pathlib import Path

import typer

from fedshift.cli.console import open_console
from fedshift.deployment.agreement import read_site
from fedshift.deployment.inspection import SiteSamples, inspect
from fedshift.deployment.sent import SENT, SentMessage, read_sent, totals
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, printable


def check(folder: Path) -> None:
    """Inspect a site and print what was found.

    Raises:
        FedshiftError: something keeps the site from taking part; the message says all of it.
    """
    found = inspect(folder)
    if found.federation and found.site:
        typer.echo(f"Federation '{found.federation}', site '{found.site}'")
    if found.samples is not None:
        _print_samples(found.samples)
    for note in found.notes:
        typer.echo(f"Note: {printable(note)}")
    if found.page:
        typer.echo(f"\n{found.page}")
    found.problems.check()
    typer.echo(f"'{found.site}' can take part. Nothing was written, and nothing left this machine.")


def _print_samples(samples: SiteSamples) -> None:
    typer.echo(f"Samples: {samples.samples}, of shape {list(samples.shape)}, {samples.dtype}")
    parts = list(samples.counts)
    rows = [[name, *(str(samples.counts[part][name]) for part in parts)] for name in samples.counts[parts[0]]]
    lacking = [name for name, *counts in rows if set(counts) == {"0"}]
    rows.append(["all", *(str(sum(samples.counts[part].values())) for part in parts)])
    open_console().print(Table("Samples of each class", ["class", *parts], rows).rich())
    if lacking:
        typer.echo(f"No sample of: {printable(', '.join(lacking))}. Sites may lack classes.")


def sent(folder: Path, full: bool) -> None:
    """Print what has left a site.

    Args:
        folder: the site's.
        full: every message and tensor.

    Raises:
        FedshiftError: it is no site's folder.
        DamagedError: a line of the file is not what was written.
    """
    site, path = read_site(folder)[0].name, folder / SENT
    messages = read_sent(path)
    if not messages:
        typer.echo(f"Nothing has left '{site}' yet.")
        return
    for message in messages if full else ():
        _print_message(message)
    rows = [
        [
            total.exchange or "(joining, last scores)",
            total.category,
            *(str(total.messages), str(total.tensors), bytes_text(total.bytes)),
            *(_moment(total.first), _moment(total.last)),
        ]
        for total in totals(messages)
    ]
    columns = ["exchange", "category", "messages", "tensors", "bytes", "first", "last"]
    open_console().print(Table(f"What has left {site}", columns, rows).rich())
    bare = sum(not message.tensors for message in messages)
    size = bytes_text(sum(message.bytes for message in messages))
    beside = f", {bare} of them without a tensor (that it takes part, or that it fails)" if bare else ""
    typer.echo(f"Messages: {len(messages)} of {size} in all, names and shapes included{beside}.")
    typer.echo(f"Every line of '{path}' is as it was written.")


def _print_message(message: SentMessage) -> None:
    trip = f" {message.stage}/{message.round} ({message.exchange})" if message.exchange else ""
    lines = [f"{_moment(message.time)}  {message.what}{trip}  {message.bytes} B  sha256 {message.sha256}"]
    lines += [
        f"    {tensor.category:<12}  {tensor.name}  {tensor.type} {tensor.shape}  {tensor.bytes} B  {tensor.sha256}"
        for tensor in message.tensors
    ]
    for line in lines:
        typer.echo(printable(line))


def _moment(time: str) -> str:
    """A time in UTC to the second."""
    return f"{time.partition('.')[0].partition('+')[0]}Z"
