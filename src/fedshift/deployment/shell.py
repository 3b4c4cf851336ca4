"""The commands that members type, and Flower's commands that they start, as lists of arguments.

READMEs, the compose file and the demonstration use them.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedshift.errors import FedshiftError

Command = list[str]

COORDINATOR, SITES = "coordinator", "sites"  # folders of a federation's
LAST_PORT = 65535
HOST = re.compile(r"[A-Za-z0-9.-]+|\[[A-Fa-f0-9:.]+\]")  # a name or an address; an IPv6 address in brackets
LOOPBACK = ("localhost", "127.0.0.1", "::1")
FLOWER = "flower"  # the folder in a member's where Flower keeps its things
SECRET = f"{FLOWER}/secret"  # the secret by which a running member's processes identify each other
ENVIRONMENT = "flower.env"
KEYS = "keys"
AUTHORITY = "certificates/ca.crt"
OF_COORDINATOR = (AUTHORITY, "certificates/superlink.crt", "certificates/superlink.key")
OF_SITE = (AUTHORITY, "keys/site.key", "site.toml")
GATE_ADDRESS = "FEDSHIFT_GATE_ADDRESS"  # where the gate listens in a container, which has a separate address
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
SERVE: Command = ["fedshift", "federation", "serve"]
JOIN: Command = ["fedshift", "federation", "join"]
RUN: Command = ["fedshift", "federation", "run"]


def environment(folder: Path) -> dict[str, str]:
    """The environment variables of a member's processes; ``folder`` is the member's, absolute."""
    return {"FLWR_HOME": str(folder / FLOWER), **QUIET}


def check_address(address: str, what: str) -> None:
    """Raise an error if a text is not a host with a port."""
    host, _, port = address.rpartition(":")
    unknown = not HOST.fullmatch(host) or host == "0.0.0.0"
    if unknown or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise FedshiftError(f"{what} = '{address}': give host:port at which it is reached, as fl.example.org:8000.")


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address such as fl.example.org:8000 or [::1]:8000."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


# What members' commands start, each in the member's folder --------------------------------------------


def superlink(port: int) -> Command:
    """Start the SuperLink at a port that only this machine can reach."""
    return [
        "flower-superlink",
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
        *("--ssl-ca-certfile", AUTHORITY),
        *("--ssl-certfile", "certificates/superlink.crt"),
        *("--ssl-keyfile", "certificates/superlink.key"),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", SECRET),
        *("--database", f"{FLOWER}/superlink.db"),
    ]


def gate(port: int) -> Command:
    """Start the gate, which forwards sites' requests to the SuperLink at a port."""
    return ["-m", "fedshift.deployment.gate", ".", str(port)]


def supernode(address: str, port: int) -> Command:
    """Start a site's SuperNode, which starts no process itself.

    Args:
        address: host and port of the coordinator.
        port: where the SuperNode talks to the site's executor, on 127.0.0.1.
    """
    return [
        "flower-supernode",
        *("--superlink", address),
        *("--root-certificates", AUTHORITY),
        *("--auth-supernode-private-key", "keys/site.key"),
        *("--port", str(port)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", SECRET),
    ]


def executor(role: str, port: int) -> Command:
    """Start the member's executor, which works on Flower's tasks with the installed fedshift.

    Args:
        role: "coordinator" or "site".
        port: the port of the member's SuperLink or SuperNode.
    """
    return ["-m", "fedshift.deployment.executor", role, ".", f"127.0.0.1:{port}", SECRET]


def start_run(app: str, federation: str) -> Command:
    """Start a run and show its output.

    Args:
        app: the folder of the app that is sent.
        federation: the federation's name, which Flower's connection to the SuperLink has as well.
    """
    return ["flwr", "run", app, federation, "--stream"]


def follow_run(number: int, federation: str) -> Command:
    """Show the output of a run in progress, by Flower's number."""
    return ["flwr", "log", str(number), federation, "--stream"]
