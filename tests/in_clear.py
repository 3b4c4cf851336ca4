"""A real SuperLink without TLS, and sites that talk to it through a proxy which keeps every byte of theirs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_connection import http_request_response

from fedshift.deployment.apps import carry_out
from fedshift.deployment.keys import Pair, site_pair
from fedshift.files import make_folder, write
from flower_grid import BUNDLE, App, client

HOST = "127.0.0.1"


class Ringing(HttpGrid):
    """Flower's grid, which rings at a node for which it has pushed a message, so that none has to ask all the time.

    Nor does it ask while a site answers: of a reply that is not there whole, Flower asks for the rest a second later.
    """

    bells: Mapping[int, threading.Semaphore] = {}
    answering = threading.Lock()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push, then ring."""
        pushed = super().push_messages(messages)
        for message in messages:
            self.bells[message.metadata.dst_node_id].release()
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull what sites have answered."""
        with self.answering:
            return super().pull_messages(message_ids)


class Proxy:
    """Passes bytes between sites and a port, and keeps those that sites send."""

    def __init__(self, port: int) -> None:
        self._to, self._kept, self._lock = port, dict[int, bytearray](), threading.Lock()
        self._listening = socket.create_server((HOST, 0))
        self._sockets = [self._listening]
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def sent(self) -> bytes:
        """All that sites sent since the last call, connection by connection."""
        with self._lock:
            whole = b"\0".join(bytes(each) for each in self._kept.values())
            for each in self._kept.values():
                each.clear()
        return whole

    def close(self) -> None:
        """End all connections."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                site, _ = self._listening.accept()
                link = socket.create_connection((HOST, self._to))
                for each in (site, link):  # or half a message waits for the other side's word of the half before
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [site, link]
                kept = self._kept.setdefault(len(self._sockets), bytearray())
                threading.Thread(target=self._pass_on, args=(site, link, kept), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(link, site, None), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, kept: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    with self._lock:
                        kept += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)


@dataclass
class InClear:
    """A SuperLink, a proxy before it, and sites, for one run after the other.

    Attributes:
        folder: that of the federation whose run it is.
        replies: what the sites' apps returned since the run began.
        after: called with a site's name after each message that it answered.
        app: what answers at the sites.
    """

    proxy: Proxy
    port: int
    state: object
    keys: dict[str, Pair]
    folder: Path = Path()
    replies: list[Message] = field(default_factory=list)
    after: Callable[[str], None] = lambda site: None
    app: App = client
    errors: list[BaseException] = field(default_factory=list)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    bells: dict[int, threading.Semaphore] = field(default_factory=dict)
    there: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def end(self) -> None:
        """Ring once more, without a message."""
        for bell in self.bells.values():
            bell.release()

    def run(self, folder: Path, after: Callable[[str], None], app: App = client) -> bytes:
        """Carry out a federation's run; every byte that its sites sent."""
        self.folder, self.after, self.app = folder, after, app
        self.replies.clear()
        self.proxy.sent()
        make_folder(folder / "coordinator" / "keys")
        for site, pair in self.keys.items():
            write(folder / "coordinator" / "keys" / f"{site}.pub", pair.public)
        number = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[number])
        token = self.state.claim_task(run.primary_task_id)
        self.state.activate_task(run.primary_task_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = run.primary_task_id, number, 1
        with closing(Ringing(f"{HOST}:{self.port}", insecure=True, token=token)) as grid:
            grid.bells, grid.answering = self.bells, self.one_at_a_time
            grid.set_run(run)
            carry_out(folder / "coordinator", grid, BUNDLE)
        self.state.finish_task(run.primary_task_id, "completed", "")
        assert not self.errors
        return self.proxy.sent()

    def attend(self, site: str) -> None:
        """What a SuperNode does, with its app in this thread."""
        try:
            key = load_ssh_private_key(self.keys[site].private, None)
            address = f"{HOST}:{self.proxy.port}"
            pair = (key, key.public_key())
            with http_request_response(address, True, None, pair) as (number, receive, send, _, _, pull, push, confirm):
                bell = self.bells[number] = threading.Semaphore(0)
                self.there.release()
                while bell.acquire() and (came := receive()) is not None:
                    head, tree = came
                    run = head.metadata.run_id
                    message = pull_and_inflate_object_from_tree(
                        tree, partial(pull, run), partial(confirm, run), return_type=Message
                    )
                    message.metadata.__dict__["_message_id"] = tree.object_id
                    with self.one_at_a_time:
                        reply = self.app(self.folder / "sites" / site, message)
                        self.after(site)
                        self.replies.append(reply)
                        reply.metadata.__dict__["_message_id"] = reply.object_id
                        wanted, session = send(reply, get_object_tree(reply), 0.1)
                        for name, each in get_all_nested_objects(reply).items():
                            if name in wanted:
                                push(run, session, name, each.deflate())
        except BaseException as error:
            self.errors.append(error)
            raise


@contextmanager
def in_clear(sites: tuple[str, ...]) -> Iterator[InClear]:
    """Start a SuperLink and the sites; they are ended afterwards."""
    app = create_app()
    state = app.state.linkstate_factory.state()
    keys = {site: site_pair() for site in sites}
    for pair in keys.values():
        key = load_ssh_private_key(pair.private, None).public_key()
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key_to_bytes(key), 0)
    listening = socket.create_server((HOST, 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    serving = threading.Thread(target=server.run, args=([listening],), daemon=True)
    with ExitStack() as stack:
        serving.start()
        stack.callback(serving.join, 60)
        stack.callback(setattr, server, "should_exit", True)
        while serving.is_alive() and not server.started:
            time.sleep(0.01)
        proxy = stack.enter_context(closing(Proxy(listening.getsockname()[1])))
        running = InClear(proxy, listening.getsockname()[1], state, keys)
        threads = [threading.Thread(target=running.attend, args=(site,), daemon=True) for site in sites]
        for thread in threads:
            thread.start()
            stack.callback(thread.join, 60)
        for _ in sites:
            assert running.there.acquire(timeout=300)
        stack.callback(running.end)
        yield running
