"""Flower's grid in memory: every message crosses as the bytes of Flower's protocol, and no process is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate.utils import (
    create_message_error_unavailable_ins_message,
    create_message_error_unavailable_res_message,
)
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedshift.deployment.attend import Attendant
from fedshift.deployment.executor import attend
from fedshift.deployment.flower import APP, CODE, MANIFEST, SETTINGS, sites_by_key
from fedshift.deployment.keys import site_pair
from fedshift.files import make_folder, write

RUN = 7


def bundle(**changes: bytes | None) -> bytes:
    """Fedshift's app as Flower packs it, with other files by name; None: without that file."""
    files = {SETTINGS: (APP / SETTINGS).read_bytes(), CODE: (APP / CODE).read_bytes(), MANIFEST: b"", **changes}
    with ZipFile(packed := BytesIO(), "w") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    return packed.getvalue()


BUNDLE = bundle()
App = Callable[[Path, Message], Message]


def client(folder: Path, message: Message) -> Message:
    """What a site answers in a run of fedshift's own app."""
    return attend(Attendant(folder), message, BUNDLE)


@dataclass
class SuperNode:
    """A node of the grid.

    Attributes:
        name: as it was registered.
        number: Flower's.
        key: its public key in PEM.
        folder: its site's.
        app: what answers there.
        online: whether it sends heartbeats.
        pulls: how often the coordinator asks before a reply is there; None: never one.
    """

    name: str
    number: int
    key: str
    folder: Path
    app: App = client
    online: bool = True
    pulls: int | None = 0

    def answer(self, message: Message) -> Message:
        """What a SuperNode sends back, an error where its app raised one."""
        try:
            return self.app(self.folder, message)
        except Exception as error:
            reason = str(type(error)) + ":<'" + str(error) + "'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@dataclass(frozen=True)
class Crossing:
    """A message on its way: its head, the tree of the objects in it, and each of these, in bytes."""

    head: bytes
    tree: bytes
    objects: Mapping[str, bytes]

    @classmethod
    def of(cls, message: Message) -> Crossing:
        """Pack a message, which is given its number, as Flower does."""
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        head = message_to_proto(remove_content_from_message(message)).SerializeToString()
        return cls(head, get_object_tree(message).SerializeToString(), objects)

    def message(self) -> Message:
        """Unpack it, as whoever it is for does."""
        number = message_from_proto(ProtoMessage.FromString(self.head)).metadata.message_id
        names = [each.object_id for each in iterate_object_tree(ObjectTree.FromString(self.tree))]
        message = inflate_object_from_contents(number, {name: self.objects[name] for name in names})
        message.metadata.__dict__["_message_id"] = number
        return message

    def bytes(self) -> bytes:
        """All that crosses."""
        return b"".join([self.head, self.tree, *self.objects.values()])


@dataclass
class MemoryGrid(Grid):
    """A grid whose nodes answer at once, in this process.

    Attributes:
        nodes: those that are registered.
        came: all that came from nodes, by name.
        full: messages are too large for the SuperLink.
    """

    nodes: list[SuperNode]
    came: list[tuple[str, bytes]] = field(default_factory=list)
    full: bool = False
    _waiting: dict[str, tuple[int | None, Crossing]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make this process that of the run's server."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, SUPERLINK_NODE_ID

    def __getitem__(self, name: str) -> SuperNode:
        """The node of a name."""
        return next(node for node in self.nodes if node.name == name)

    def set_run(self, run: Run) -> None:
        """Not needed here."""

    @property
    def run(self) -> Run:
        """Not needed here."""
        raise NotImplementedError

    def create_message(self, *arguments: object, **more: object) -> Message:
        """Not needed here, and deprecated."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """The numbers of all nodes."""
        return [node.number for node in self.nodes]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """All nodes, also those that are offline."""
        return [
            NodeInfo(
                node_id=node.number,
                status="online" if node.online else "offline",
                public_key=node.key.encode(),
                name=node.name,
            )
            for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give each message to its node; the number of each, empty for one that no node is for."""
        return [] if self.full else [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        sent = Crossing.of(message).message()
        node = next((node for node in self.nodes if node.number == message.metadata.dst_node_id), None)
        if node is None:
            return ""
        number = sent.metadata.message_id
        if node.online:
            reply = Crossing.of(node.answer(sent))
            self.came.append((node.name, reply.bytes()))
        else:
            reply = Crossing.of(create_message_error_unavailable_res_message(sent.metadata, "node_unavail"))
        self._waiting[number] = (node.pulls, reply)
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; an error in the place of one to an unknown message."""
        replies: list[Message] = []
        for number in message_ids:
            if number not in self._waiting:
                unknown = create_message_error_unavailable_ins_message(number, RUN)
                replies.append(Crossing.of(unknown).message())
                continue
            pulls, reply = self._waiting.pop(number)
            if pulls == 0:
                replies.append(reply.message())
            else:
                self._waiting[number] = (None if pulls is None else pulls - 1, reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not needed here."""
        raise NotImplementedError


def registered(folder: Path) -> MemoryGrid:
    """A grid with a node for each site of a federation's folder, whose new keys are given to the coordinator."""
    keys = folder / "coordinator" / "keys"
    make_folder(keys)
    sites = sorted(site.name for site in (folder / "sites").iterdir())
    for site in sites:
        write(keys / f"{site}.pub", site_pair().public)
    by_key = sites_by_key(keys, sites)
    nodes = [
        SuperNode(site, 10**15 + number, key, folder / "sites" / site)
        for number, (key, site) in enumerate(by_key.items())
    ]
    return MemoryGrid(nodes)
