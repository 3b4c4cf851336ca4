"""The commands that members type, and those of Flower that they start, as lists of arguments.

The READMEs, the compose file and whatever starts a federation by itself take them from here.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedshift.errors import FedshiftError

Command = list[str]

COORDINATOR, SITES = "coordinator", "sites"  # folders of a federation's
LAST_PORT = 65535
HOST = re.compile(r"[A-Za-z0-9.-]+|\[[A-Fa-f0-9:.]+\]")  # a name, or an address, one with colons in brackets
LOOPBACK = ("localhost", "127.0.0.1", "::1")
FLOWER = "flower"  # the folder in a member's where Flower keeps its things
SECRET = f"{FLOWER}/secret"  # what the processes of a member that is at work know each other by
ENVIRONMENT = "flower.env"
KEYS = "keys"
AUTHORITY = "certificates/ca.crt"
OF_COORDINATOR = (AUTHORITY, "certificates/superlink.crt", "certificates/superlink.key")
OF_SITE = (AUTHORITY, "keys/site.key", "site.toml")
GATE_ADDRESS = "FEDSHIFT_GATE_ADDRESS"  # where the gate listens in a container, which has an address of its own
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
SERVE: Command = ["fedshift", "federation", "serve"]
JOIN: Command = ["fedshift", "federation", "join"]
RUN: Command = ["fedshift", "federation", "run"]


def environment(folder: Path) -> dict[str, str]:
    """What the environment of a member's processes holds.

    Args:
        folder: the member's, from the root.
    """
    return {"FLWR_HOME": str(folder / FLOWER), **QUIET}


def check_address(address: str, what: str) -> None:
    """Check a host with a port.

    Raises:
        FedshiftError: it is none.
    """
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
    """Start the SuperLink, which only processes of its own machine reach.

    Args:
        port: where it listens.
    """
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
    """Start what sites connect to; it passes their requests on to the SuperLink, and no others.

    Args:
        port: where the SuperLink listens.
    """
    return ["-m", "fedshift.deployment.gate", ".", str(port)]


def supernode(address: str, port: int) -> Command:
    """Start a site's SuperNode, which starts no process itself.

    Args:
        address: host and port at which the coordinator is reached.
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
    """Start the member's own part: what carries out Flower's tasks with the fedshift that is installed.

    Args:
        role: "coordinator" or "site".
        port: where the member's SuperLink or SuperNode listens.
    """
    return ["-m", "fedshift.deployment.executor", role, ".", f"127.0.0.1:{port}", SECRET]


def start_run(app: str, federation: str) -> Command:
    """Start a run and show what it prints.

    Args:
        app: the folder of the app that is sent.
        federation: the federation's name, which Flower's connection to the SuperLink has as well.
    """
    return ["flwr", "run", app, federation, "--stream"]


def follow_run(number: int, federation: str) -> Command:
    """Show what a run prints that is under way.

    Args:
        number: the run's, as Flower gave it.
        federation: the federation's name.
    """
    return ["flwr", "log", str(number), federation, "--stream"]
