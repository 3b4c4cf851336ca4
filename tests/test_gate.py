"""The gate before the SuperLink: only what SuperNodes ask with the key of a site comes through, and nobody fills it.

The SuperLink is a stand-in that answers everything, so what it has seen is what came through.
"""

from __future__ import annotations

import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.deployment.keys import make_certificates, site_pair

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedshift.deployment.gate import ROUTES, CallerLimits, Gate, is_fleet_route, listen, serve, server

HOST = "127.0.0.1"
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"
PATIENCE = 60.0
QUICK = CallerLimits(body=100_000, handshake=30.0, head=30, idle=30.0, peer=20, all=30)
Headers = dict[str, str]


class Key:
    """A key pair, and what SuperNodes sign with it."""

    def __init__(self) -> None:
        self._key = load_ssh_private_key(site_pair().private, None)
        self.pem = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def headers(self, others: Headers | None = None, age: float = 0.0) -> Headers:
        """The headers of a request that was signed some seconds ago."""
        signed = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
        signature = self._key.sign(signed.encode(), ec.ECDSA(SHA256()))
        return {
            "flwr-public-key": b64encode(self.pem).decode(),
            "flwr-timestamp": signed,
            "flwr-signature": b64encode(signature).decode(),
            **(others or {}),
        }


@dataclass
class SuperLink:
    """Stands in for the SuperLink: the requests that came, their bodies, and whether a piece of one has come."""

    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    received: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        body, more = b"", True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                return
            body, more = body + event["body"], event["more_body"]
            self.received.set()
        self.bodies.append(body)
        headers = [(b"content-type", b"application/protobuf"), (b"flwr-note", b"old"), (b"x-inside", b"secret")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"answer to " + body[:20]})


@dataclass(frozen=True)
class World:
    """What a gate needs: a folder of certificates, and the key of the only site."""

    folder: Path
    key: Key

    @property
    def trust(self) -> ssl.SSLContext:
        """What everybody has who has ca.crt."""
        return ssl.create_default_context(cafile=self.folder / "ca.crt")

    @contextmanager
    def superlink(self, port: int = 0) -> Iterator[SuperLink]:
        """A stand-in for the SuperLink."""
        link = SuperLink()
        listening = socket.create_server((HOST, port))
        link.port = listening.getsockname()[1]
        plain: dict[str, Any] = {"loop": "asyncio", "lifespan": "off", "ws": "none", "log_config": None}
        pair = {"ssl_certfile": self.folder / "superlink.crt", "ssl_keyfile": self.folder / "superlink.key"}
        running = uvicorn.Server(uvicorn.Config(link, **plain, **pair, log_level="critical"))
        with in_thread(running, threading.Thread(target=running.run, args=([listening],))):
            yield link

    @contextmanager
    def gate(self, port: int, limits: CallerLimits = QUICK, trusted: ssl.SSLContext | None = None) -> Iterator[Caller]:
        """A gate before a SuperLink's port, and somebody who calls there."""
        gate = Gate({self.key.pem.decode().strip(): "berlin"}, port, trusted or self.trust, limits)
        listening, running = listen(f"{HOST}:0", limits), server(gate, self.folder)
        port_of_gate = listening.getsockname()[1]
        with in_thread(running, threading.Thread(target=serve, args=(running, gate, listening))):
            yield Caller(port_of_gate, self.trust)


@contextmanager
def in_thread(running: uvicorn.Server, thread: threading.Thread) -> Iterator[None]:
    with ExitStack() as stack:
        thread.start()
        stack.callback(thread.join, PATIENCE)
        stack.callback(setattr, running, "force_exit", True)
        stack.callback(setattr, running, "should_exit", True)
        yield  # connections wait until it accepts them


@dataclass(frozen=True)
class Caller:
    """Somebody who reaches the gate's port and has ca.crt."""

    port: int
    trust: ssl.SSLContext

    def open(self) -> socket.socket:
        """A connection of TCP."""
        return socket.create_connection((HOST, self.port), timeout=PATIENCE)

    @contextmanager
    def connected(self) -> Iterator[ssl.SSLSocket]:
        """A connection of TLS."""
        with self.open() as plain, self.trust.wrap_socket(plain, server_hostname=HOST) as secured:
            yield secured

    def told(self, sent: bytes) -> bytes:
        """All that comes after something was sent, until the gate ends the connection."""
        with self.connected() as connection:
            connection.sendall(sent)
            return to_the_end(connection)

    def requested(self, route: str, headers: Headers, body: bytes = b"") -> tuple[int, Headers, bytes]:
        """Status, headers and body of the answer to a request."""
        with self.connected() as connection:
            connection.sendall(request(route, {**headers, "content-length": str(len(body))}) + body)
            return answer(connection)


def request(target: str, headers: Headers, method: str = "POST") -> bytes:
    """A request's head."""
    lines = [f"{method} {target} HTTP/1.1", "host: gate", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def to_the_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except (ConnectionError, ssl.SSLError):
        pass  # ended without goodbye
    return received


def answer(connection: socket.socket) -> tuple[int, Headers, bytes]:
    response = HTTPResponse(connection)
    response.begin()
    return response.status, dict(response.getheaders()), response.read()


def status(received: bytes) -> int:
    return int(received.split(b" ", 2)[1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("certificates")
    authority, pair = make_certificates("trial", [HOST])
    (folder / "ca.crt").write_bytes(authority.public)
    (folder / "superlink.crt").write_bytes(pair.public)
    (folder / "superlink.key").write_bytes(pair.private)
    return World(folder, Key())


@pytest.fixture(scope="module")
def link(world: World) -> Iterator[SuperLink]:
    with world.superlink() as link:
        yield link


@pytest.fixture(scope="module")
def caller(world: World, link: SuperLink) -> Iterator[Caller]:
    with world.gate(link.port) as caller:
        yield caller


@pytest.fixture(autouse=True)
def _nothing_seen(link: SuperLink) -> None:
    link.seen.clear(), link.bodies.clear(), link.received.clear()


# What comes through -------------------------------------------------------------------------------


def test_the_routes_are_those_that_a_supernode_with_a_registered_key_asks_for():
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    fleet = {route for method, route in PROTOBUF_REQUEST_TYPES if route.startswith("/v1/fleet/")}
    assert fleet - ROUTES == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert fleet >= ROUTES


def test_what_a_site_asks_is_passed_on_and_the_answer_back(world: World, link: SuperLink, caller: Caller):
    headers = world.key.headers({"content-type": "application/protobuf", "cookie": "x", "flwr-package-name": "flwr"})
    told, back, body = caller.requested(PULL, headers, b"question")
    assert (told, body) == (200, b"answer to question")
    (seen,) = link.seen
    passed = {name.decode(): value.decode() for name, value in seen["headers"]}
    assert seen["raw_path"].decode() == PULL
    assert link.bodies == [b"question"]
    assert {name: passed.get(name) for name in headers} == {**headers, "cookie": None}
    assert {name.lower() for name in back} == {"content-type", "flwr-note", "transfer-encoding"}


def test_a_body_is_passed_on_as_it_comes(world: World, link: SuperLink, caller: Caller):
    with caller.connected() as connection:
        connection.sendall(request(PUSH, world.key.headers({"content-length": "6"})) + b"abc")
        assert link.received.wait(PATIENCE)
        connection.sendall(b"def")
        assert answer(connection)[0] == 200
    assert link.bodies == [b"abcdef"]


# Attacks: another route ---------------------------------------------------------------------------

OTHERS = [
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/register-node",
    "//v1/fleet/pull-messages",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/v1/fleet/%70ull-messages",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "/V1/fleet/pull-messages",
    "/v1/fleet/pull-messages?x=1",
    "https://gate/v1/control/start-run",
]


@pytest.mark.parametrize("target", OTHERS)
def test_a_site_with_its_key_reaches_no_other_route(target: str, world: World, link: SuperLink, caller: Caller):
    told = caller.told(request(target, world.key.headers({"content-length": "0"})))
    assert status(told) == 404
    assert b"server:" not in told.lower()
    assert link.seen == []


@pytest.mark.parametrize("method", ["GET", "PUT", "CONNECT", "post"])
def test_another_method(method: str, world: World, link: SuperLink, caller: Caller):
    assert status(caller.told(request(PULL, world.key.headers(), method))) == 404
    assert link.seen == []


def test_a_websocket(world: World, link: SuperLink, caller: Caller):
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    assert status(caller.told(request(PULL, world.key.headers(upgrade), "GET"))) == 404
    assert link.seen == []


@pytest.mark.parametrize(
    "smuggled",
    [
        {"content-length": "3", "transfer-encoding": "chunked"},
        {"content-length": "-3"},
        {"content-length": "3, 4"},
        {"transfer-encoding": "gzip, chunked"},
    ],
)
def test_a_request_that_could_be_read_in_two_ways(smuggled: Headers, world: World, link: SuperLink, caller: Caller):
    """What follows a body must not be taken for a request by one and for the body by the other."""
    inner = request("/v1/control/start-run", {"content-length": "0"})
    caller.told(request(PULL, world.key.headers(smuggled)) + b"0\r\n\r\n" + inner)
    assert [seen for seen in link.seen if seen["raw_path"].decode() != PULL] == []


@given(route=st.sampled_from(sorted(ROUTES)), data=st.data())
def test_no_other_spelling_of_a_route_is_one(route: str, data: st.DataObject):
    place = data.draw(st.integers(0, len(route) - 1))
    letter = route[place]
    instead = data.draw(
        st.sampled_from([f"%{ord(letter):02x}", f"%{ord(letter):02X}", letter.swapcase(), letter * 2, "", "/", "//"])
        | st.text(st.characters(max_codepoint=255), max_size=4)
    )
    spelled = route[:place] + instead + route[place + 1 :]
    assert is_fleet_route(spelled.encode("latin-1")) == (spelled in ROUTES)
    assert is_fleet_route(spelled.encode("latin-1")) <= (instead == letter)


# Attacks: another key -----------------------------------------------------------------------------


def test_an_outsider_with_the_certificate_of_the_authority(link: SuperLink, caller: Caller):
    for route in sorted(ROUTES):
        assert caller.requested(route, {})[0] == 401
    assert link.seen == []


def test_a_key_that_is_no_sites(link: SuperLink, caller: Caller):
    assert caller.requested(PULL, Key().headers())[0] == 401
    assert link.seen == []


@pytest.mark.parametrize("age", [306, 86_400, -6, -86_400])
def test_a_signature_of_another_time_that_is_sent_again(age: float, world: World, link: SuperLink, caller: Caller):
    assert caller.requested(PULL, world.key.headers(age=age))[0] == 401
    assert link.seen == []


def test_headers_that_are_no_signature_of_the_site(world: World, caller: Caller):
    mine, other = world.key.headers(), Key().headers()
    wrong = [
        {**other, "flwr-public-key": mine["flwr-public-key"]},
        {**mine, "flwr-timestamp": other["flwr-timestamp"]},
        {**mine, "flwr-timestamp": "yesterday"},
        {**mine, "flwr-timestamp": "0001-01-01T00:00:00+23:59"},
        {**mine, "flwr-signature": ""},
        {**mine, "flwr-public-key": b64encode(b"\xff").decode()},
        *({name: value for name, value in mine.items() if name != left_out} for left_out in mine),
    ]
    assert [caller.requested(PULL, headers)[0] for headers in wrong] == [401] * len(wrong)


def test_a_header_that_comes_twice(world: World, link: SuperLink, caller: Caller):
    """The SuperLink might read the other one."""
    again = {name.upper(): value for name, value in Key().headers().items()}
    assert caller.requested(PULL, {**world.key.headers(), **again})[0] == 401
    assert link.seen == []


# Attacks: bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [{"content-length": "500000000"}, {"transfer-encoding": "chunked"}])
def test_a_body_without_a_key_is_not_read(length: Headers, link: SuperLink, caller: Caller):
    """The answer comes before a byte of it was sent."""
    assert status(caller.told(request(PUSH, length))) == 401
    assert link.seen == []


def test_a_body_that_is_sent_all_the_same_ends_with_the_connection(link: SuperLink, caller: Caller):
    piece, sent = bytes(2**20), 0
    with caller.connected() as connection:
        connection.sendall(request(PUSH, {"content-length": "500000000"}))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            for _ in range(500):
                connection.sendall(piece)
                sent += len(piece)
    assert sent < 100 * len(piece)  # what buffers of the system take, which are not the gate's
    assert link.seen == []


def test_a_body_that_is_too_long_is_cut(world: World, link: SuperLink, caller: Caller):
    chunk = b"%x\r\n" % 40_000 + bytes(40_000) + b"\r\n"
    with caller.connected() as connection:
        connection.sendall(request(PUSH, world.key.headers({"transfer-encoding": "chunked"})))
        for _ in range(3):
            connection.sendall(chunk)
        assert status(to_the_end(connection)) == 413
    assert link.bodies == []


# Attacks: slow and many callers -------------------------------------------------------------------


def test_a_caller_without_tls_is_ended(world: World, link: SuperLink):
    limits = CallerLimits(handshake=0.2)
    with world.gate(link.port, limits) as caller, caller.open() as half_open:
        assert to_the_end(half_open) == b""


def test_headers_that_drip(world: World, link: SuperLink):
    """Each byte comes in time, all of them do not."""
    with world.gate(link.port, CallerLimits(head=1)) as caller, caller.connected() as connection:
        connection.settimeout(0.1)
        with pytest.raises((ConnectionError, ssl.SSLError, EOFError)):  # which of the two notices it
            while True:
                with suppress(TimeoutError):
                    connection.sendall(b"a")
                    if connection.recv(1) == b"":
                        raise EOFError


def test_a_body_that_stalls(world: World, link: SuperLink):
    with world.gate(link.port, CallerLimits(idle=0.2)) as caller:
        told = caller.told(request(PUSH, world.key.headers({"content-length": "10"})) + b"abc")
    assert status(told) == 503  # which a SuperNode tries again after
    assert link.bodies == []


def test_a_body_that_drips(world: World, link: SuperLink):
    with world.gate(link.port, CallerLimits(request=0.5)) as caller, caller.connected() as connection:
        connection.sendall(request(PUSH, world.key.headers({"content-length": "100000"})))
        received = b""
        connection.settimeout(0.05)
        while not received:
            connection.sendall(b"x")
            with suppress(TimeoutError):
                received = connection.recv(100)
        assert status(received) == 503
    assert link.bodies == []


def test_connections_of_one_address_are_counted(world: World, link: SuperLink):
    """One too many is ended before TLS; once another has ended there is room again."""
    with world.gate(link.port, CallerLimits(peer=2)) as caller:
        with caller.connected(), caller.connected(), caller.open() as third:
            assert to_the_end(third) == b""
        told = None
        while told is None:  # until the gate has noticed that others have ended
            with suppress(ConnectionError, ssl.SSLError):
                told = caller.requested(PULL, world.key.headers())[0]
        assert told == 200


def test_open_connections_keep_no_site_away(world: World, link: SuperLink):
    """Half of them TCP alone, half of them TLS with a body that never ends."""
    limits = CallerLimits(handshake=0.3, head=1, peer=100)
    with world.gate(link.port, limits) as caller, ExitStack() as stack:
        half_open = [stack.enter_context(caller.open()) for _ in range(20)]
        endless = [stack.enter_context(caller.connected()) for _ in range(20)]
        for connection in endless:
            connection.sendall(request(PUSH, {"transfer-encoding": "chunked"}))
        assert caller.requested(PULL, world.key.headers(), b"x")[0] == 200
        assert {status(to_the_end(connection)) for connection in endless} == {401}
        assert {to_the_end(connection) for connection in half_open} == {b""}


# The SuperLink behind it --------------------------------------------------------------------------


def test_a_superlink_of_another_authority_is_none(world: World, link: SuperLink, tmp_path: Path):
    (tmp_path / "ca.crt").write_bytes(make_certificates("other", [HOST])[0].public)
    trusts_other = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    with world.gate(link.port, trusted=trusts_other) as caller:
        assert caller.requested(PULL, world.key.headers())[0] == 502
    assert link.seen == []


# The program --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host"),
    [("127.0.0.1:0", HOST), ("localhost:0", HOST), ("[::1]:0", "::1"), ("fl.example.org:0", "0.0.0.0")],
)
def test_the_gate_listens_where_sites_can_reach_it(address: str, host: str):
    try:
        listening = listen(address, QUICK)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listening:
        assert listening.getsockname()[0] == host
