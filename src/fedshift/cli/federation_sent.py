"""What ``fedshift federation sent`` prints."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedshift.cli.console import open_console
from fedshift.cli.federation_serve import say
from fedshift.deployment.agreement import read_site
from fedshift.deployment.sent import SENT, SentMessage, Total, read_sent, summary
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, printable


def sent(folder: Path, full: bool, as_json: bool) -> None:
    """Print what has left a site.

    Args:
        folder: the site's.
        full: every message and tensor.
        as_json: print JSON.

    Raises:
        FedshiftError: it is no site's folder.
        DamagedError: a line of the file is not what was written.
    """
    site, path, console = read_site(folder)[0].name, folder / SENT, open_console()
    messages, totals = read_sent(path), summary(path)

    if as_json:
        say(json.dumps(_table(site, messages, totals, full), indent=2, ensure_ascii=False))
        return
    if not messages:
        say(f"Nothing has left '{site}' yet.")
        return
    if full:
        for message in messages:
            _print_message(message)
    console.print(_short(site, totals).rich())
    bare = sum(not message.tensors for message in messages)
    size = bytes_text(sum(message.bytes for message in messages))
    beside = f", {bare} of them without a tensor (that it takes part, or that it fails)" if bare else ""
    say(f"Messages: {len(messages)} of {size} in all, names and shapes included{beside}.")
    say(f"Every line of '{path}' is as it was written.")


def _short(site: str, totals: list[Total]) -> Table:
    """By exchange and category."""
    rows = [
        [
            total.exchange or "(joining, last scores)",
            total.category,
            *(str(total.messages), str(total.tensors), bytes_text(total.bytes)),
            *(_moment(total.first), _moment(total.last)),
        ]
        for total in totals
    ]
    columns = ["exchange", "category", "messages", "tensors", "bytes", "first", "last"]
    return Table(f"What has left {site}", columns, rows)


def _print_message(message: SentMessage) -> None:
    trip = f" {message.stage}/{message.round} ({message.exchange})" if message.exchange else ""
    lines = [f"{_moment(message.time)}  {message.what}{trip}  {message.bytes} B  sha256 {message.sha256}"]
    lines += [
        f"    {tensor.category:<12}  {tensor.name}  {tensor.type} {tensor.shape}  {tensor.bytes} B  {tensor.sha256}"
        for tensor in message.tensors
    ]
    for line in lines:
        say(printable(line))


def _moment(time: str) -> str:
    """A time in UTC to the second."""
    return f"{time.partition('.')[0].partition('+')[0]}Z"


def _table(site: str, messages: list[SentMessage], totals: list[Total], full: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "site": site,
        "messages": len(messages),
        "bytes": sum(message.bytes for message in messages),
        "totals": [asdict(total) for total in totals],
    }
    return {**found, "sent": [message.model_dump() for message in messages]} if full else found
