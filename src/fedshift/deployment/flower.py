"""Flower as the link between a coordinator and its sites: its messages carry requests and replies.

An app that ``flwr run`` sends is compared with the installed one; its code is never executed.
"""

from __future__ import annotations

import time
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile, ZipFile

from fedshift.deployment.keys import read_public_key
from fedshift.errors import FedshiftError, needs

ARRAY, RECORD = "message", "fedshift"
TYPE = "query"  # Flower's kind of message for what is neither its training nor its evaluation
SECONDS_BETWEEN_PULLS = 0.2
ONLINE = "online"
APP = Path(__file__).with_name("app")
SETTINGS, CODE = "pyproject.toml", "fedshift_federation.py"
MANIFEST = ".info/CONTENT"  # digests of the other two, which Flower's builder adds
LARGEST = 10_000  # bytes of a file that are compared


@dataclass(frozen=True)
class Away:
    """No reply came from a site: ``what`` is one word, such as "offline", ``why`` a reason, if known."""

    what: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


# Flower's errors for a reply whose upload was interrupted.
LOST = Away("failed", "message unavailable")


class Link(Protocol):
    """Sends requests to sites and receives their replies."""

    def online(self) -> set[str]:
        """The connected sites, identified by their registered keys."""

    def exchange(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes | Away]]:
        """Send each site its request; yield each site's reply or failure as it arrives, within ``deadline`` seconds."""


def is_ours(bundle: bytes) -> bool:
    """Whether a Flower app bundle equals the installed app.

    Contents are compared, not archives, since archives depend on the compression library and Flower rewrites settings.
    """
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            sizes = {file.filename: file.file_size for file in archive.infolist()}
            if set(sizes) != {SETTINGS, CODE, MANIFEST} or max(sizes.values()) > LARGEST:
                return False
            code, settings = archive.read(CODE), tomllib.loads(archive.read(SETTINGS).decode())
    except (BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError, ValueError, OSError):  # none, or damaged
        return False
    return code == (APP / CODE).read_bytes() and settings == tomllib.loads((APP / SETTINGS).read_text())


def content(data: bytes) -> Any:
    """A message's bytes as a Flower record, in pieces if long."""
    with needs("flower", "A federation"):
        from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({RECORD: ArrayRecord({ARRAY: Array("uint8", (len(data),), "fedshift", data)})})


def data_of(message: Any) -> bytes:
    """The bytes of a Flower message."""
    try:
        data = message.content.array_records[RECORD][ARRAY].data
    except (KeyError, ValueError, AttributeError) as error:
        raise FedshiftError("sent a message without fedshift's record") from error
    return bytes(data)


def sites_by_key(folder: Path, sites: Sequence[str]) -> dict[str, str]:
    """The sites' names by public key, as Flower nodes have them.

    Args:
        folder: the coordinator's folder of public keys, ``<site>.pub`` each.
        sites: the federation's sites.
    """
    present = {file.stem for file in folder.glob("*.pub")}
    if missing := [site for site in sites if site not in present]:
        raise FedshiftError(
            f"'{folder}' lacks {', '.join(f'{site}.pub' for site in missing)}: put the public key of each site there, "
            "which is keys/site.pub in the site's folder."
        )
    if others := sorted(present.difference(sites)):
        raise FedshiftError(
            f"'{folder}' contains {', '.join(f'{name}.pub' for name in others)}, but the federation's sites are "
            f"{', '.join(sites)}: take the file away, or give it the name of its site."
        )
    found: dict[str, str] = {}
    for site in sites:
        other = found.setdefault(read_public_key(folder / f"{site}.pub").decode().strip(), site)
        if other != site:
            raise FedshiftError(
                f"'{folder}' has the same key in {other}.pub and {site}.pub: each site needs a separate key."
            )
    return found


class FlowerLink:
    """The SuperNodes of a Flower grid, identified by their registered keys."""

    def __init__(self, grid: Any, sites: Mapping[str, str]) -> None:
        self._grid, self._sites = grid, sites

    def online(self) -> set[str]:
        return set(self._nodes())

    def exchange(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes | Away]]:
        nodes, until = self._nodes(), time.monotonic() + deadline
        waiting: dict[str, str] = {}  # by the message's id
        for site, data in requests.items():
            sent = self._send(nodes, site, data, deadline)
            if isinstance(sent, Away):
                yield site, sent
            else:
                waiting[sent] = site
        while waiting and (left := until - time.monotonic()) > 0:
            for reply in self._grid.pull_messages(list(waiting)):
                site = waiting.pop(reply.metadata.reply_to_message_id, "")
                if not site:
                    continue
                arrived = _arrival(reply)
                again = self._send(self._nodes(), site, requests[site], left) if arrived == LOST else arrived
                if isinstance(again, str):  # a site keeps its reply, so it sends the same again
                    waiting[again] = site
                else:
                    yield site, again
            if waiting:
                time.sleep(SECONDS_BETWEEN_PULLS)
        for site in waiting.values():
            yield site, Away("late", f"no answer within {deadline:g} seconds")

    def _send(self, nodes: Mapping[str, int], site: str, data: bytes, seconds: float) -> str | Away:
        """Send a request with its time limit in seconds; return its number, or the reason of the failure."""
        from flwr.app import Message

        if site not in nodes:
            return Away("offline")
        (sent,) = self._grid.push_messages([Message(content(data), nodes[site], TYPE, ttl=seconds + 1)]) or [""]
        return sent or Away("failed", "Flower did not take the message")

    def _nodes(self) -> dict[str, int]:
        return {
            site: node.node_id
            for node in self._grid.get_nodes()
            if node.status == ONLINE and (site := self._sites.get(_pem(node.public_key))) is not None
        }


def _pem(key: bytes) -> str:
    return key.decode(errors="replace").strip()


def _arrival(reply: Any) -> bytes | Away:
    """The content of a reply or the reason of a failure; an error's text, which may quote a sample, is dropped."""
    from flwr.common.constant import ErrorCode

    if not reply.has_error():
        try:
            return data_of(reply)
        except FedshiftError as error:
            return Away("failed", str(error))
    code = reply.error.code
    names = {value: name for name, value in vars(ErrorCode).items() if isinstance(value, int)}
    word = names.get(code, str(code)).lower().replace("_", " ")
    return Away("offline" if code == ErrorCode.NODE_UNAVAILABLE else "failed", word)
