"""The gate: a federation's only port, through which sites reach the coordinator's SuperLink.

Flower's SuperLink serves its SuperNodes at the same port as clients that start runs and register keys, without
authentication. So it listens on 127.0.0.1 only, and the gate forwards requests of SuperNodes with a site's key, and
nothing else. A request is judged by its first line and headers, before its body is read.

    python -m fedshift.deployment.gate FOLDER PORT-OF-THE-SUPERLINK
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedshift.deployment.federation_toml import read_federation
from fedshift.deployment.flower import sites_by_key
from fedshift.deployment.shell import GATE_ADDRESS, KEYS, LOOPBACK, OF_COORDINATOR, host_and_port
from fedshift.errors import FedshiftError, needs

with needs("flower", "The gate of a federation"):
    import httpx
    import uvicorn
    from flwr.common.constant import (
        FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
        SYSTEM_TIME_TOLERANCE,
        TIMESTAMP_HEADER,
        TIMESTAMP_TOLERANCE,
    )
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
    from uvicorn.protocols.http.h11_impl import H11Protocol

# The routes of a SuperNode with a registered key; only the coordinator registers and removes keys.
ROUTES = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
FLOWERS = "flwr-"  # the prefix of Flower's headers
CERTIFICATES = Path("certificates")
LONGEST_HEAD = 16 * 1024  # bytes of a request before its body
ENVELOPE = 2**20  # bytes of a request in addition to its piece of a message
SECONDS_BETWEEN_REPORTS = 60

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CallerLimits:
    """Limits for callers."""

    # bytes of a request. Flower sends messages in pieces of 5 MiB.
    body: int = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + ENVELOPE
    handshake: float = 10.0  # seconds until a connection is encrypted
    head: int = 10  # seconds for a request's headers, and between requests
    idle: float = 30.0  # seconds between two pieces of a body
    request: float = 300.0  # seconds for a request, and again for the answer
    peer: int = 64  # connections from one address
    all: int = 256  # connections

    @classmethod
    def of(cls, sites: int) -> CallerLimits:
        """The limits for a number of sites, which may share an address; a SuperNode has up to 5 connections."""
        peer = 64 + 8 * sites
        return cls(peer=peer, all=4 * peer)


def run_gate(folder: Path, upstream_port: int, address: str | None = None) -> None:
    """Run the gate until this process is interrupted.

    Args:
        folder: the coordinator's folder, whose sites and keys are read once.
        upstream_port: the SuperLink's port on 127.0.0.1.
        address: host:port at which sites reach the gate, by default from federation.toml. The gate listens at every
            address of the machine, unless the host is a local address.
    """
    federation = read_federation(folder, OF_COORDINATOR)  # without the experiment: plugins have no business here
    sites = sites_by_key(folder / KEYS, federation.sites)
    limits, place, certificates = CallerLimits.of(len(sites)), address or federation.address, folder / CERTIFICATES
    try:
        trusted = ssl.create_default_context(cafile=certificates / "ca.crt")
        gate = Gate(sites, upstream_port, trusted, limits)
        serving = server(gate, certificates)
    except OSError as error:
        raise FedshiftError(
            f"'{certificates}' must contain ca.crt, superlink.crt and the matching superlink.key ({error})."
        ) from error
    try:
        listener = listen(place, limits)
    except OSError as error:
        raise FedshiftError(
            f"The gate cannot listen at {place}: {error}. End what does, or give another port."
        ) from error
    with closing(listener), suppress(KeyboardInterrupt):
        serve(serving, gate, listener)


class Gate:
    """The application that judges requests and forwards them."""

    def __init__(self, sites: Mapping[str, str], port: int, trusted: ssl.SSLContext, limits: CallerLimits) -> None:
        """Prepare for requests.

        Args:
            sites: the sites' names by public key in PEM.
            port: the SuperLink's port on 127.0.0.1.
            trusted: trusts the authority of the SuperLink's certificate.
            limits: limits for callers.
        """
        self.limits = limits
        self._sites = sites
        self._refused: Counter[str] = Counter()
        self._upstream = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}",
            verify=trusted,
            headers={"accept-encoding": "identity"},
            trust_env=False,  # no proxy that the environment names
            timeout=httpx.Timeout(limits.request, connect=limits.handshake),
            limits=httpx.Limits(max_keepalive_connections=0),  # a reused connection may be closing
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI request."""
        try:
            headers = self._judged(scope)
            response = await self._forward(scope["raw_path"].decode(), headers, receive)
        except _RefusedError as refusal:
            who = scope["client"][0] if scope["client"] else "an unknown address"
            self._refused[f"{refusal.status} to {who}"] += 1
            await _send_status(send, refusal.status)
        except _GoneError:
            pass  # the caller is gone
        else:
            await self._relay(response, send)

    async def close(self) -> None:
        await self._upstream.aclose()

    async def report(self) -> None:
        """Log the number of requests refused since the last report, in one line."""
        if self._refused:
            told = ", ".join(f"{count} x {what}" for what, count in self._refused.most_common(5))
            log.warning("without an answer of the SuperLink in the last %d seconds: %s", SECONDS_BETWEEN_REPORTS, told)
            self._refused.clear()

    def _judged(self, scope: Scope) -> dict[str, str]:
        """The headers to forward.

        Raises:
            _RefusedError: the request is not from a SuperNode with a site's key.
        """
        requested = (scope["method"], scope["http_version"], scope["query_string"])
        if requested != ("POST", "1.1", b"") or not is_fleet_route(scope["raw_path"]):
            raise _RefusedError(404)
        named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        passed = [(name, value) for name, value in named if name in ("accept", "content-type", "content-length")]
        passed += [(name, value) for name, value in named if name.startswith(FLOWERS)]
        headers = dict(passed)
        if len(headers) < len(passed) or self.site(headers) is None:
            raise _RefusedError(401)
        if int(headers.get("content-length", 0)) > self.limits.body:
            raise _RefusedError(413)
        return headers

    def site(self, headers: Mapping[str, str]) -> str | None:
        """The site that signed a request, by the rules of Flower's SuperLink, if any."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True).decode("ascii").strip()
            site = self._sites[key]
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            signed = headers[TIMESTAMP_HEADER]
            age = (now() - datetime.fromisoformat(signed)).total_seconds()
            fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            valid = verify_signature(bytes_to_public_key(key.encode()), signed.encode("ascii"), signature)
        except (KeyError, ValueError, TypeError, OverflowError):  # a header is missing, or not what it should be
            return None
        return site if fresh and valid else None

    async def _forward(self, route: str, headers: dict[str, str], receive: Receive) -> httpx.Response:
        """The SuperLink's response, whose body is not read yet.

        Raises:
            _RefusedError: there is no response, or the body is too long or too slow.
            _GoneError: the caller closed the connection.
        """
        request = self._upstream.build_request("POST", route, headers=headers, content=self._body(receive))
        try:
            async with asyncio.timeout(self.limits.request):
                return await self._upstream.send(request, stream=True)
        except httpx.TimeoutException as error:
            raise _RefusedError(504) from error
        except httpx.TransportError as error:
            raise _RefusedError(502) from error
        except TimeoutError as error:
            raise _RefusedError(503) from error  # after which SuperNodes try again, other than after 408

    async def _body(self, receive: Receive) -> AsyncIterator[bytes]:
        """The pieces of a request's body as they arrive.

        Raises:
            TimeoutError: a piece is late.
            _RefusedError: the body is too long.
            _GoneError: the caller closed the connection.
        """
        length, more = 0, True
        while more:
            async with asyncio.timeout(self.limits.idle):
                event = await receive()
            if event["type"] != "http.request":
                raise _GoneError
            length, more = length + len(event["body"]), event["more_body"]
            if length > self.limits.body:
                raise _RefusedError(413)
            yield event["body"]

    async def _relay(self, response: httpx.Response, send: Send) -> None:
        """Forward the response; an incomplete one ends the connection."""
        headers = [(name, value) for name, value in response.headers.raw if _is_passed_back(name)]
        try:
            async with asyncio.timeout(self.limits.request):
                await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
                async for piece in response.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (httpx.TransportError, TimeoutError) as error:
            log.warning("an answer broke off: %r", error)
        finally:
            await response.aclose()


def is_fleet_route(raw_path: bytes) -> bool:
    """Whether a raw path is exactly one of the routes of SuperNodes."""
    return raw_path.decode("latin-1") in ROUTES


# The server ---------------------------------------------------------------------------------------


def listen(address: str, limits: CallerLimits) -> socket.socket:
    """A socket that listens where sites reach the gate."""
    host, port = host_and_port(address)
    host = ("127.0.0.1" if host == "localhost" else host) if host in LOOPBACK else "0.0.0.0"
    listener = _Listener(limits, socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(limits.all)
    except OSError:
        listener.close()
        raise
    return listener


def server(gate: Gate, certificates: Path) -> uvicorn.Server:
    """The server that speaks TLS and HTTP with callers; ``certificates`` has superlink.crt and superlink.key."""
    config = uvicorn.Config(
        gate,
        http=_Caller,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=gate.limits.head,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        callback_notify=gate.report,
        timeout_notify=SECONDS_BETWEEN_REPORTS,
        ssl_certfile=certificates / "superlink.crt",
        ssl_keyfile=certificates / "superlink.key",
    )
    config.load()
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, gate: Gate, listener: socket.socket) -> None:
    """Serve callers until the server is stopped."""

    async def all_callers() -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            await gate.close()

    with asyncio.Runner(loop_factory=lambda: _Loop(gate.limits.handshake)) as runner:
        runner.run(all_callers())


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with a time limit for handshakes, which uvicorn has no setting for."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def create_server(self, *args: Any, **kwargs: Any) -> asyncio.Server:
        create: Callable[..., Awaitable[asyncio.Server]] = super().create_server
        return await create(*args, **kwargs, ssl_handshake_timeout=self._seconds, ssl_shutdown_timeout=self._seconds)


class _Caller(H11Protocol):
    """A connection with a time limit for a request's headers, which uvicorn lacks."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _look(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._patience is None:
            self._patience = self.loop.call_later(self.config.timeout_keep_alive, self.transport.abort)

    def _stop(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Listener(socket.socket):
    """A socket that closes connections above the limit at once, before anything is read."""

    def __init__(self, limits: CallerLimits, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._limits = limits
        self._open: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: it exceeds the limit; the event loop then accepts the next.
        """
        accepted, address = super().accept()
        peer = str(address[0])
        if self._open[peer] >= self._limits.peer or self._open.total() >= self._limits.all:
            accepted.close()
            raise ConnectionAbortedError
        self._open[peer] += 1
        return _Counted(accepted, lambda: self._ended(peer)), address

    def _ended(self, peer: str) -> None:
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]


class _Counted(socket.socket):
    """A connection that reports when it is closed."""

    def __init__(self, accepted: socket.socket, ended: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._ended: Callable[[], None] | None = ended

    def close(self) -> None:
        super().close()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


# Answers ------------------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A request that is not forwarded, or fails."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _GoneError(Exception):
    """The caller closed the connection."""


async def _send_status(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _is_passed_back(name: bytes) -> bool:
    lower = name.decode("latin-1").lower()
    return lower in ("content-type", "content-length") or lower.startswith(FLOWERS)


def main() -> None:
    """Run the gate of a coordinator's folder."""
    folder, port = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    try:
        run_gate(Path(folder), int(port), os.environ.get(GATE_ADDRESS))
    except FedshiftError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
