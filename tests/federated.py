"""A federation's folders for tests, and a link that requests sites in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedshift.deployment.agreement import EXPERIMENT, SITE
from fedshift.deployment.attend import Attendant
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.federation_toml import FEDERATION
from fedshift.deployment.flower import Away
from fedshift.deployment.keys import digest
from fedshift.deployment.turns import Turn
from fedshift.deployment.wire import (
    DECIMALS,
    Done,
    Failed,
    MessageLimits,
    Reply,
    Request,
    Work,
    read_reply,
    read_request,
)
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.files import make_folder, write
from fedshift.runs.events import Progress
from fedshift.runs.schema import Record

SITES = ("dark", "gray", "light")
ANY_SIZE = MessageLimits(10**9, 10**8)


def request_of(data: bytes) -> Request:
    """A request, however large."""
    return read_request(data, ANY_SIZE)


def reply_of(data: bytes) -> Reply:
    """A reply, however large."""
    return read_reply(data, ANY_SIZE)


def members(
    folder: Path, experiment: Experiment, sites: tuple[str, ...] = SITES, federation: Mapping[str, Any] | None = None
) -> Path:
    """The folders of a federation whose sites contain one domain each of the tiny data."""
    table = {**experiment.table(), "plugins": []}
    agreed = {
        "name": "trial",
        "sites": list(sites),
        "shape": [1, 10, 10],
        "classes": [f"class {number}" for number in range(3)],
        "address": "127.0.0.1:8000",
        "wait": 5.0,
        **(federation or {}),
    }
    for member in [folder / "coordinator", *(folder / "sites" / site for site in sites)]:
        make_folder(member)
        write(member / EXPERIMENT, tomli_w.dumps(table))
        write(member / FEDERATION, tomli_w.dumps(agreed))
    for site in sites:
        set_site(folder, site)
    return folder


def set_site(folder: Path, site: str, **settings: Any) -> None:
    """Write what a site declares about itself."""
    table = {"name": site, "domains": [site], "threads": 1, "device": "cpu", "min_scored": 1, **settings}
    write(folder / "sites" / site / SITE, tomli_w.dumps(table))


def as_sent(records: list[Record]) -> list[Record]:
    """Records whose scores have the decimals with which they leave a site."""

    def rounded(name: str, value: Any) -> Any:
        if name == "metrics":
            return {metric: rounded("accuracy", each) for metric, each in value.items()}
        if name == "intervals":
            return {metric: [rounded("accuracy", end) for end in ends] for metric, ends in value.items()}
        return round(value, DECIMALS) if name in ("accuracy", "loss") and value is not None else value

    return [
        {**record, "environments": [{n: rounded(n, v) for n, v in row.items()} for row in record["environments"]]}
        for record in records
    ]


class Local:
    """Sites in this process, each with its folder; ``change`` may alter a site's reply, or report it away."""

    def __init__(self, folder: Path, change: Callable[[str, bytes, bytes], bytes | Away] | None = None) -> None:
        self.sites = {path.name: Attendant(path) for path in sorted((folder / "sites").iterdir())}
        self.change = change or (lambda site, request, reply: reply)
        self.away: set[str] = set()
        self.messages: list[tuple[str, bytes, bytes | Away]] = []

    def online(self) -> set[str]:
        return set(self.sites) - self.away

    def exchange(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes | Away]]:
        for site, request in reversed(requests.items()):  # in the order in which sites happen to be ready
            reply = self.sites[site].answer(request)
            arrived = self.change(site, request, reply)
            if isinstance(arrived, bytes) and arrived != reply:
                arrived = as_by(self.sites[site], request, arrived, reply)
            self.messages.append((site, request, arrived))
            yield site, arrived


def as_by(site: Attendant, request: bytes, lie: bytes, reply: bytes) -> bytes:
    """What a site sends that lies: it knows its history as an honest one does, and what it has sent."""
    with suppress(FedshiftError):
        told, honest, work = reply_of(lie), reply_of(reply), request_of(request)
        lie = lie if told.proof else replace(told, proof=honest.proof).to_bytes()
        if isinstance(told, Failed) and isinstance(work, Work) and isinstance(honest, Done):
            fail(site, work)
    site.turns().replied(digest(lie))
    return lie


def fail(site: Attendant, work: Work) -> None:
    """Have a site remember that it could not do what it was requested."""
    if work.score is not None:
        site.turns().end(Turn("score", work.position - (work.order is not None)), "failed")
    if work.order is not None:
        stage, exchange = site.site.setup.find(work.order.stage, work.order.exchange)
        site.turns().end(Turn("order", work.position, stage.exchanges.index(exchange)), "failed")


class Clock:
    """A clock on which time passes only by sleeping, so that a busy machine is never late."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def kill_after(answers: int, folder: Path) -> None:
    """Coordinate the federation's run, and stop when that many answers have come and the next one does."""
    left = [answers]

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        coordinate(folder / "coordinator", Local(folder, change), Progress())
