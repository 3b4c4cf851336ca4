"""What the coordinator asks of its SuperLink besides starting runs: which keys it knows, and which run is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from fedshift.errors import FedshiftError, needs

RUNNING = ("starting", "running")


def pem(file: Path) -> bytes:
    """A public key in OpenSSH's format as Flower keeps it, in PEM.

    Raises:
        FedshiftError: it is none.
    """
    with needs("flower", "A federation"):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (ValueError, OSError) as error:
        raise FedshiftError(f"'{file}' is no public key in OpenSSH's format ({error}).") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Control:
    """A connection to the control interface of the SuperLink on this machine."""

    def __init__(self, port: int, authority: Path) -> None:
        """Connect when something is asked.

        Args:
            port: at which the SuperLink listens, on 127.0.0.1.
            authority: the certificate that it is trusted by.
        """
        with needs("flower", "A federation"):
            from flwr.supercore.control import ControlHttpClient
            from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        self._client: Any = ControlHttpClient.from_server_address(
            server_address=f"127.0.0.1:{port}",
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def keys(self) -> set[bytes]:
        """Every key in PEM that was registered, also one that was taken back."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with _answered():
            return {bytes(node.public_key) for node in self._client.ListNodes(ListNodesRequest()).nodes_info}

    def register(self, name: str, key: bytes) -> None:
        """Make a site's key known.

        Args:
            name: the site's.
            key: its public key in PEM.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with _answered():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def run_under_way(self) -> int | None:
        """The number of the newest run that has begun and not ended."""
        from flwr.proto.control_pb2 import ListRunsRequest

        with _answered():
            runs = self._client.ListRuns(ListRunsRequest(limit=20)).run_dict.values()
        under_way = [run for run in runs if run.status.status in RUNNING]
        return max(under_way, key=lambda run: run.running_at).run_id if under_way else None


@contextmanager
def _answered() -> Iterator[None]:
    """Say in an error of ours that the SuperLink does not answer, or refuses."""
    with needs("flower", "A federation"):
        import httpx
    try:
        yield
    except httpx.HTTPError as error:
        raise FedshiftError(f"The SuperLink does not do what it is asked: {error}") from error
