"""The sites as the coordinator sees them: who is there, and what comes of what they are asked.

All that happens to a site is told, with the reason, as it happens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.deployment.agreement import FederationSettings
from fedshift.deployment.link import Away, Link
from fedshift.deployment.wire import MEGABYTE, Done, Failed, Joined, Reply, Request, Work, read_reply
from fedshift.errors import FedshiftError
from fedshift.runs.progress import RunProgress
from fedshift.runs.schema import SiteEvent, moment

SECONDS_BETWEEN_LOOKS = 0.5  # at who is connected
Came = Reply | Away | FedshiftError
"""What came of a request: a reply, that there is none, or what is wrong with it."""


class Members:
    """The sites of a federation, behind a link."""

    def __init__(self, federation: FederationSettings, link: Link, display: RunProgress) -> None:
        """Nobody is asked yet; ``display`` hears of all that happens."""
        self._federation, self._link, self._display = federation, link, display
        self._away = set[str]()  # who did not answer when last asked

    def wait_for(self, asked: Sequence[str], many: int, fewest: int) -> None:
        """Wait until so ``many`` of the sites that are asked are connected; in the end the ``fewest`` are enough.

        Raises:
            FedshiftError: not even these are.
        """
        wait, told = self._federation.wait, list[str]()
        until = time.monotonic() + wait
        while len(missing := self._missing(asked)) > len(asked) - many:
            if time.monotonic() > until:
                break
            if missing != told:
                told = missing
                self.tell("coordinator", "waiting", f"for {', '.join(missing)}, at most {wait:g} seconds")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if len(missing) > len(asked) - fewest:
            raise FedshiftError(
                f"{len(asked) - len(missing)} of {len(asked)} sites are connected after {wait:g} seconds, {fewest} at "
                f"least are needed (train.min_answers): {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
                "not. Started again, the run goes on from its last checkpoint."
            )

    def _missing(self, asked: Sequence[str]) -> list[str]:
        """The sites among some that are not connected."""
        online = self._link.online()
        return [site for site in asked if site not in online]

    def ask(self, requests: Mapping[str, Request]) -> dict[str, Came]:
        """What comes of requests, one for each site."""
        offline, started = set(self._missing(list(requests))), time.monotonic()
        packed = {site: request.to_bytes() for site, request in requests.items() if site not in offline}
        came: dict[str, Came] = {}
        for site in sorted(offline):
            came[site] = Away("offline")
            self._tell_of(site, requests[site], came[site])
        for site, data in self._link.exchange(packed, self._federation.deadline):
            came[site] = data if isinstance(data, Away) else self._read(site, data)
            size = 0 if isinstance(data, Away) else len(data)
            seconds = round(time.monotonic() - started, 3)
            self._tell_of(
                site, requests[site], came[site], seconds=seconds, bytes_down=len(packed[site]), bytes_up=size
            )
        return {site: came[site] for site in requests}

    def _read(self, site: str, data: bytes) -> Reply | FedshiftError:
        """What a site sent, or what is wrong with it."""
        try:
            reply = read_reply(data, self._federation.largest * MEGABYTE)
        except FedshiftError as error:
            return error
        if reply.site != site and not isinstance(reply, Failed):  # which may not know its name
            return FedshiftError(f"sent a reply of the site {reply.site!r:.40}")
        return reply

    # What is told ---------------------------------------------------------------------------------

    def tell(self, who: str, what: str, why: str = "", **more: Any) -> None:
        """Tell of something that happened."""
        self._display.site(SiteEvent(when=moment(time.time()), who=who, what=what, why=why, **more))

    def _tell_of(self, site: str, request: Request, came: Came, **more: Any) -> None:
        """Tell of what came of a request; where work is counted, an answer is a step."""
        order = request.order if isinstance(request, Work) else None
        if order is not None:
            more |= {"stage": order.stage, "round": order.round, "exchange": order.exchange}
            self._display.steps(1)
            self._display.answered()
        if isinstance(came, Joined):
            self.tell(site, "joined", ", ".join(" ".join(each) for each in came.versions.items()), **more)
        elif isinstance(came, Done):
            if site in self._away:
                self._away.remove(site)
                self.tell(site, "back")
            self.tell(site, "scored" if order is None else "answered", **more)
        else:
            self._away.add(site)
            self.tell(site, *_in_words(came), **more)


def refuses(came: Came) -> bool:
    """Whether a site does not want to take part, whatever else is wrong."""
    return isinstance(came, Failed) and came.reason in ("policy", "experiment")


def _in_words(came: Failed | Away | FedshiftError) -> tuple[str, str]:
    """What happened, in a word, and why."""
    if isinstance(came, Away):
        return came.what, came.why
    return "refused" if refuses(came) else "failed", str(came)
