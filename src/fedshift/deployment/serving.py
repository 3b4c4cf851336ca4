"""The processes of the coordinator and the sites: ``serve``, ``join`` and ``run``, each in its member's folder."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from fedshift.deployment import shell
from fedshift.deployment.federation_toml import read_federation
from fedshift.deployment.flower import APP
from fedshift.deployment.keys import read_public_key
from fedshift.deployment.supervisor import ChildProcess, environment, free_port, listens, supervise, with_parent
from fedshift.errors import FedshiftError, needs
from fedshift.files import make_folder, write
from fedshift.written import read_toml

CONNECTION = f"{shell.FLOWER}/config.toml"  # where Flower's commands find the SuperLink
SECONDS_BETWEEN_KEYS = 5.0
RUNNING = ("starting", "running")


# The coordinator --------------------------------------------------------------------------------------


def parts_of_coordinator(port: int) -> list[ChildProcess]:
    """The coordinator's processes, of which the SuperLink listens at a port of this machine only."""
    superlink = ChildProcess("SuperLink", shell.superlink(port), port=port)
    return [
        superlink,
        ChildProcess("gate", shell.gate(port)),
        ChildProcess("executor", shell.executor("coordinator", port), after=superlink),
    ]


def inner_port(address: str, chosen: int | None = None) -> int:
    """The SuperLink's port on 127.0.0.1: the port after the public one, unless another is chosen."""
    public = shell.host_and_port(address)[1]
    port = public + 1 if chosen is None else chosen
    if port == public or port > shell.LAST_PORT:
        raise FedshiftError(
            f"The SuperLink cannot have port {port}: sites connect to port {public}, and the SuperLink needs another "
            "a free port of this machine, such as --control-port 9000."
        )
    return port


def serve(folder: Path, port: int | None, say: Callable[[str], None]) -> None:
    """Start the coordinator's processes, and keep them running until this process is interrupted.

    Args:
        folder: the coordinator's folder.
        port: the SuperLink's port on 127.0.0.1; None: the port after the public one.
        say: receives a line for each event.
    """
    folder, federation = folder.resolve(), read_federation(folder, shell.OF_COORDINATOR)
    inner = inner_port(federation.address, port)
    for number in (shell.host_and_port(federation.address)[1], inner):
        if listens("127.0.0.1", number):
            raise FedshiftError(
                f"Something listens at port {number} of this machine already: end it, or choose other ports (address "
                "in every member's federation.toml, --control-port)."
            )
    connection = {"address": f"127.0.0.1:{inner}", "root-certificates": str(folder / shell.AUTHORITY)}
    make_folder(folder / shell.FLOWER)
    write(folder / CONNECTION, tomli_w.dumps({"superlink": {federation.name: connection}}))
    parts = superlink, gate, _ = parts_of_coordinator(inner)
    registry = Registry(folder, inner, say)

    def meanwhile() -> None:
        if superlink.listens and registry.look():
            gate.stop()  # it knows the keys that were there when it was started

    say(f"Sites reach this coordinator at {federation.address}.")
    supervise(folder, parts, say, meanwhile)


@contextmanager
def control(port: int, authority: Path) -> Iterator[Any]:
    """Flower's client for the control interface of the SuperLink on this machine.

    Args:
        port: the SuperLink's port on 127.0.0.1.
        authority: the certificate authority that it is trusted by.
    """
    with needs("flower", "A federation"):
        import httpx
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    client = ControlHttpClient.from_server_address(
        server_address=f"127.0.0.1:{port}",
        insecure=False,
        root_certificates=authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.HTTPError as error:
        raise FedshiftError(f"The SuperLink refuses a request: {error}") from error
    finally:
        client.close()


class Registry:
    """Registers the sites' keys with the SuperLink, including keys that are added while it runs."""

    def __init__(self, folder: Path, port: int, say: Callable[[str], None]) -> None:
        self._keys, self._authority = folder / shell.KEYS, folder / shell.AUTHORITY
        self._port, self._say = port, say
        self._seen: dict[Path, bytes] = {}
        self._due = 0.0

    def look(self) -> bool:
        """Every few seconds, register the folder's new keys and retry failures; whether keys were replaced."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + SECONDS_BETWEEN_KEYS
        now = {file: file.read_bytes() for file in sorted(self._keys.glob("*.pub"))}
        if now == self._seen:
            return False
        try:
            with control(self._port, self._authority) as client:
                from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

                known = {bytes(node.public_key) for node in client.ListNodes(ListNodesRequest()).nodes_info}
                for file in now:
                    if (key := read_public_key(file)) not in known:  # a removed key is listed, too
                        client.RegisterNode(RegisterNodeRequest(public_key=key, name=file.stem))
                        self._say(f"The key of {file.stem} is registered.")
        except FedshiftError as error:
            self._say(f"The keys in '{self._keys}' are not all registered yet: {error}")
            return False
        changed, self._seen = bool(self._seen), now
        return changed


def run(folder: Path) -> int:
    """Start or resume the coordinator's run and show its output; its exit code, 0 if it has finished.

    A run in progress is only shown.

    Args:
        folder: the coordinator's folder.

    Raises:
        FedshiftError: `fedshift federation serve` does not run here, or the folder is wrong.
    """
    folder, federation = folder.resolve(), read_federation(folder, (shell.AUTHORITY,))
    superlinks = read_toml(folder / CONNECTION)["superlink"] if (folder / CONNECTION).is_file() else {}
    ports = [shell.host_and_port(each["address"])[1] for each in superlinks.values()]
    if not any(listens("127.0.0.1", port) for port in ports):
        raise FedshiftError(
            f"The SuperLink of '{folder}' does not run. Start it first, in another terminal: "
            f"fedshift federation serve {folder}"
        )
    from fedshift.deployment.agreement import Agreement
    from fedshift.deployment.coordinate import RUNS
    from fedshift.runs.locks import is_locked
    from fedshift.runs.run import Run

    of_run = Run(folder / RUNS / Agreement.read(folder).run)
    command = shell.start_run(str(APP), federation.name)
    if is_locked(of_run.path):
        with control(ports[0], folder / shell.AUTHORITY) as client:
            from flwr.proto.control_pb2 import ListRunsRequest

            runs = client.ListRuns(ListRunsRequest(limit=20)).run_dict.values()
        if under_way := [run for run in runs if run.status.status in RUNNING]:
            newest = max(under_way, key=lambda run: run.running_at)
            command = shell.follow_run(newest.run_id, federation.name)
    code = subprocess.run(with_parent(command), cwd=folder, env=environment(folder), check=False).returncode
    return code or int(not of_run.finished)


# A site -----------------------------------------------------------------------------------------------


def parts_of_site(address: str, port: int) -> list[ChildProcess]:
    supernode = ChildProcess("SuperNode", shell.supernode(address, port), port=port)
    return [supernode, ChildProcess("executor", shell.executor("site", port), after=supernode)]


def join(folder: Path, address: str | None, say: Callable[[str], None]) -> None:
    """Start a site's processes, and keep them running until this process is interrupted.

    Args:
        folder: the site's folder.
        address: host and port of the coordinator, by default from federation.toml.
        say: receives a line for each event.
    """
    folder, federation = folder.resolve(), read_federation(folder, shell.OF_SITE)
    if address is not None:
        shell.check_address(address, "--address")
    reached = address or federation.address
    say(f"This site takes part in '{federation.name}'; the coordinator is at {reached}.")
    supervise(folder, parts_of_site(reached, free_port()), say)
