"""The sites as the coordinator sees them: connections, identities, and the results of requests.

Everything that happens to a site is an event with a reason. A site is identified by its key. A thief of the key does
not have the site's earlier replies, so a site that fails to prove them is quarantined: it receives nothing, and none of
its replies is used, until the coordinator's operator confirms it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.core.messages import Missing, Order
from fedshift.core.setup import Setup
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.flower import Away, Link
from fedshift.deployment.keys import commitment, digest, is_proof
from fedshift.deployment.leaving import of_replies
from fedshift.deployment.wire import (
    Done,
    Failed,
    Join,
    Joined,
    Reply,
    Request,
    Work,
    read_reply,
)
from fedshift.errors import DivergedError, FedshiftError, UnknownNameError
from fedshift.manifest import checked, intact, parsed
from fedshift.rounds.coordinator import Received
from fedshift.runs.events import RunEvents
from fedshift.runs.schema import File

ROSTER = "roster"  # the folder of a coordinator, with a folder for each run
SECONDS_BETWEEN_LOOKS = 0.5  # at who is connected
Arrival = Reply | Away | FedshiftError
"""The result of a request: a reply, its absence, or its error."""


class RosterEntry(File):
    """The entry of a site."""

    last: str = ""  # the digest of its last reply; empty before the first reply and after a confirmation
    quarantine: str = ""  # the reason of its quarantine; empty outside quarantine


@dataclass(frozen=True)
class Roster:
    """The sites of a run, in a file each; changes are written at once, and another process may make them."""

    folder: Path

    def entry(self, site: str) -> RosterEntry:
        """The entry of a site.

        Raises:
            DamagedError: its file cannot be read.
        """
        path = self._path(site)
        fix = f"Remove it if you have verified '{site}': its next reply is then accepted without a proof."
        with intact(path, fix):
            return checked(parsed(path.read_bytes()), RosterEntry) if path.exists() else RosterEntry()

    def replied(self, site: str, digest: str) -> None:
        self._write(site, RosterEntry(last=digest))

    def quarantine(self, site: str, why: str) -> None:
        self._write(site, RosterEntry(last=self.entry(site).last, quarantine=why))

    def confirm(self, site: str) -> str:
        """Release a site from quarantine and return the reason; its next reply is accepted without a proof."""
        if not (why := self.entry(site).quarantine):
            raise FedshiftError(f"'{site}' is not in quarantine, so there is nothing to confirm.")
        self._write(site, RosterEntry())
        return why

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.json"

    def _write(self, site: str, entry: RosterEntry) -> None:
        files.make_folder(self.folder)
        files.write(self._path(site), entry.model_dump_json(), private=True)


class Members:
    """The sites of a federation, behind a link."""

    def __init__(
        self,
        agreement: Agreement,
        setup: Setup,
        link: Link,
        roster: Roster,
        display: RunEvents,
        samples: dict[int, int],
    ) -> None:
        """Start without joined sites.

        Args:
            agreement: the agreement.
            setup: the run's setup.
            link: carries requests and replies.
            roster: the last replies.
            display: receives events.
            samples: filled with each client's number of training samples, by id, when its site joins and reports it.
        """
        self._samples = samples
        self._agreement, self._federation = agreement, agreement.federation
        self._link, self._roster, self._display = link, roster, display
        self._limits = of_replies(agreement, setup)
        self._sessions: dict[str, int] = {}
        self._away = set[str]()  # sites that did not answer the last request

    def wait_for(self, requested: Sequence[str], many: int, fewest: int) -> None:
        """Wait until ``many`` of some sites are connected; when the time is up, ``fewest`` are enough."""
        wait, told = self._federation.wait, list[str]()
        until = time.monotonic() + wait
        many = min(many, len(requested) - sum(bool(self._roster.entry(site).quarantine) for site in requested))
        while len(missing := self._missing(requested)) > len(requested) - many:
            if time.monotonic() > until:
                break
            if missing != told:
                told = missing
                self.notify("coordinator", "waiting", f"for {', '.join(missing)}, at most {wait:g} seconds")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if len(missing) > len(requested) - fewest:
            raise FedshiftError(
                f"{len(requested) - len(missing)} of {len(requested)} sites are connected after {wait:g} seconds, "
                f"{fewest} at least are needed (train.min_answers): {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not. Start the run again to resume from its last checkpoint."
            )

    def _missing(self, requested: Sequence[str]) -> list[str]:
        online = self._link.online()
        return [site for site in requested if site not in online or self._roster.entry(site).quarantine]

    # Requests -------------------------------------------------------------------------------------

    def address(self, site: str) -> dict[str, Any]:
        """The fields of every request to a site, see :class:`fedshift.deployment.wire.SiteRequest`."""
        last, agreement = self._roster.entry(site).last, self._agreement
        about = {"site": site, "run": agreement.run, "agreed": agreement.digest}
        return about | {"session": self._sessions.get(site, 0), "known": commitment(last) if last else ""}

    def join(self, sites: Sequence[str]) -> dict[str, Arrival]:
        """Request sites to take part, which starts a session with each that does."""
        arrived = self._exchange({site: Join(**self.address(site), settings=self._agreement.agreed) for site in sites})
        for site, reply in arrived.items():
            if isinstance(reply, Joined):
                self._sessions[site] = reply.session
                client = self._agreement.client(site)
                if client is not None and reply.samples is not None:
                    self._samples[client] = reply.samples
        return arrived

    def ask(self, works: Mapping[str, Work]) -> dict[str, Arrival]:
        """The results of work; a site joins first if it has not, and again if it has started another session."""
        arrived = self._in_session(works)
        again = {
            site: works[site] for site, each in arrived.items() if isinstance(each, Failed) and each.reason == "session"
        }
        return arrived | (self._in_session(again) if again else {})

    def _in_session(self, works: Mapping[str, Work]) -> dict[str, Arrival]:
        new = [site for site in works if site not in self._sessions]
        cannot = (
            {site: arrived for site, arrived in self.join(new).items() if not isinstance(arrived, Joined)}
            if new
            else {}
        )
        requested = {site: replace(work, **self.address(site)) for site, work in works.items() if site not in cannot}
        arrived = cannot | self._exchange(requested)
        for site, each in arrived.items():
            if isinstance(each, Failed) and each.reason == "session":
                self._sessions.pop(site, None)
        return {site: arrived[site] for site in works}

    def _exchange(self, requests: Mapping[str, Request]) -> dict[str, Arrival]:
        missing, started = set(self._missing(list(requests))), time.monotonic()
        packed = {site: request.to_bytes() for site, request in requests.items() if site not in missing}
        arrived: dict[str, Arrival] = {}
        for site in sorted(missing):
            why = self._roster.entry(site).quarantine
            arrived[site] = Away("quarantined", why) if why else Away("offline")
            self._report_result(site, requests[site], arrived[site])
        for site, data in self._link.exchange(packed, self._federation.deadline):
            arrived[site] = data if isinstance(data, Away) else self._read(site, packed[site], data)
            size = 0 if isinstance(data, Away) else len(data)
            seconds = round(time.monotonic() - started, 3)
            self._report_result(
                site, requests[site], arrived[site], seconds=seconds, bytes_down=len(packed[site]), bytes_up=size
            )
        return {site: arrived[site] for site in requests}

    def _read(self, site: str, request: bytes, data: bytes) -> Arrival:
        try:
            reply = read_reply(data, self._limits)
        except FedshiftError as error:
            return error
        if isinstance(reply, Failed) and not reply.proof:  # such as a site whose settings cannot be read
            self._sessions.pop(site, None)  # so nothing but a request to join is sent until it proves who it is
            return reply
        if not is_proof(reply.proof, self._roster.entry(site).last, request):
            why = f"cannot prove what it replied before; `fedshift federation confirm {site}` if you know that it is it"
            self._roster.quarantine(site, why)
            return Away("quarantined", why)
        self._roster.replied(site, digest(data))
        if reply.site != site and not isinstance(reply, Failed):  # which may not know its name
            return FedshiftError(f"sent a reply of the site {reply.site!r:.40}")
        return reply

    # Events -----------------------------------------------------------------------------------------

    def notify(self, who: str, what: str, why: str = "", **more: Any) -> None:
        self._display.site(who, what, why=why, **more)

    def _report_result(self, site: str, request: Request, arrived: Arrival, **more: Any) -> None:
        """Emit an event for the result of a request; an answer to work counts as a step."""
        order = request.order if isinstance(request, Work) else None
        if order is not None:
            more |= {"stage": order.stage, "round": order.round, "exchange": order.exchange}
            self._display.steps(1)
            self._display.answered()
        if isinstance(arrived, Joined):
            samples = [] if arrived.samples is None else [f"{arrived.samples} samples"]
            versions = [" ".join(each) for each in arrived.versions.items()]
            self.notify(site, "joined", ", ".join([*versions, *samples]), **more)
        elif isinstance(arrived, Done):
            if site in self._away:
                self._away.remove(site)
                self.notify(site, "back")
            self.notify(site, "scored" if order is None else "answered", **more)
        else:
            self._away.add(site)
            self.notify(site, *_in_words(arrived), **more)


def confirm(folder: Path, site: str) -> str:
    """Release a site from quarantine at a coordinator and return the reason."""
    agreement = Agreement.read(folder)
    if site not in agreement.federation.sites:
        raise UnknownNameError("site", site, agreement.federation.sites)
    return Roster(folder / ROSTER / agreement.run).confirm(site)


def as_received(order: Order, site: str, arrived: Arrival) -> Received:
    """What the coordinator aggregates, or continues without, for the result of an order."""
    if isinstance(arrived, Done) and arrived.answer is not None:
        return arrived.answer
    if isinstance(arrived, Away):
        return Missing(order.client, str(arrived))
    if isinstance(arrived, Failed) and arrived.reason in ("policy", "order"):
        return Missing(order.client, f"refused: {arrived}")
    kind = DivergedError if isinstance(arrived, Failed) and arrived.reason == "diverged" else FedshiftError
    what = str(arrived) if isinstance(arrived, Failed | FedshiftError) else "sent no answer to its order"
    return kind(f"The site '{site}' {what}.")


def refuses(arrived: Arrival) -> bool:
    """Whether a site refuses to take part, regardless of other problems."""
    return isinstance(arrived, Failed) and arrived.reason in ("policy", "models", "experiment")


def _in_words(arrived: Failed | Away | FedshiftError) -> tuple[str, str]:
    if isinstance(arrived, Away):
        return arrived.what, arrived.why
    return "refused" if refuses(arrived) else "failed", str(arrived)
