"""Flower's grid in memory: messages are Flower's own objects, and no process is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

from flwr.app import Error, Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedshift.deployment.attend import Attendant
from fedshift.deployment.executor import attend
from fedshift.deployment.flower import APP, CODE, MANIFEST, SETTINGS, sites_by_key
from fedshift.deployment.keys import site_pair
from fedshift.files import make_folder, write


def bundle(**changes: bytes | None) -> bytes:
    """Fedshift's app as Flower packs it, with other files by name; None: without that file."""
    files = {SETTINGS: (APP / SETTINGS).read_bytes(), CODE: (APP / CODE).read_bytes(), MANIFEST: b"", **changes}
    with ZipFile(packed := BytesIO(), "w") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    return packed.getvalue()


BUNDLE = bundle()


def client(folder: Path, message: Message) -> Message:
    """What a site answers in a run of fedshift's own app."""
    return attend(Attendant(folder), message, BUNDLE)


@dataclass
class SuperNode:
    """A node of the grid: what answers there, whether it sends heartbeats, and whether its replies never come."""

    name: str
    node_id: int
    public_key: bytes
    folder: Path
    app: Callable[[Path, Message], Message] = client
    status: str = "online"
    late: bool = False

    def answer(self, message: Message) -> Message:
        """What a SuperNode sends back, an error where its app raised one."""
        try:
            return self.app(self.folder, message)
        except Exception as error:
            reason = str(type(error)) + ":<'" + str(error) + "'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@dataclass
class MemoryGrid:
    """A grid whose nodes answer at once, in this process, and all that came from them, by name."""

    nodes: list[SuperNode]
    arrived: list[tuple[str, bytes]] = field(default_factory=list)
    _waiting: dict[str, Message] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        """Make this process that of the run's server."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, SUPERLINK_NODE_ID

    def __getitem__(self, name: str) -> SuperNode:
        """The node of a name."""
        return next(node for node in self.nodes if node.name == name)

    def get_nodes(self) -> Iterable[SimpleNamespace]:
        """All nodes, also those that are offline."""
        return [SimpleNamespace(**vars(node)) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give each message to its node; the number of each."""
        numbers = []
        for message in messages:
            number = message.metadata.__dict__["_message_id"] = f"message {next(self._numbers)}"
            node = next(node for node in self.nodes if node.node_id == message.metadata.dst_node_id)
            reply = node.answer(message)
            self.arrived.append((node.name, _bytes(reply)))
            if not node.late:
                self._waiting[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there."""
        return [self._waiting.pop(number) for number in message_ids if number in self._waiting]


def _bytes(reply: Message) -> bytes:
    """All that a reply brings."""
    if reply.has_error():
        return str(reply.error.reason).encode()
    return b"".join(array.data for record in reply.content.array_records.values() for array in record.values())


def registered(folder: Path) -> MemoryGrid:
    """A grid with a node for each site of a federation's folder, whose new keys are given to the coordinator."""
    keys = folder / "coordinator" / "keys"
    make_folder(keys)
    sites = sorted(site.name for site in (folder / "sites").iterdir())
    for site in sites:
        write(keys / f"{site}.pub", site_pair().public)
    return MemoryGrid(
        [
            SuperNode(site, 10**15 + number, key.encode(), folder / "sites" / site)
            for number, (key, site) in enumerate(sites_by_key(keys, sites).items())
        ]
    )
