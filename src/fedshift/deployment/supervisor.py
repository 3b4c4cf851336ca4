"""A member's processes: started, restarted when one ends, and ended together.

    python -m fedshift.deployment.supervisor PARENT flower-supernode --superlink ...
    python -m fedshift.deployment.supervisor PARENT -m fedshift.deployment.executor site ...

runs an installed command, or a module, in this process, which ends when the process PARENT has ended.
"""

from __future__ import annotations

import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from fedshift import files
from fedshift.deployment import shell
from fedshift.deployment.federation_toml import read_federation
from fedshift.errors import FedshiftError

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_START = 120.0
SECONDS_TO_END = 5.0
LONG = 60.0  # seconds after which an ended process counts as one that had worked
PAUSES = 1.0, 30.0  # seconds before a process is started again: at first, and at most
RUN = "run"


# One process ------------------------------------------------------------------------------------------


def with_parent(command: list[str]) -> list[str]:
    """The arguments for a command that ends with this process: an installed command, or ``-m`` and a module."""
    # -P: nothing is imported from the folder that it works in, which is a member's.
    return [sys.executable, "-P", "-m", "fedshift.deployment.supervisor", str(os.getpid()), *command]


def start(command: Sequence[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a member's folder with the member's environment; its output is appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C reaches only the parent, and the children can be found
        )


def end(running: Sequence[subprocess.Popen[bytes]], seconds: float = SECONDS_TO_END) -> None:
    """End processes with their children; a second Ctrl-C does not wait.

    Args:
        running: the processes, each the leader of its session.
        seconds: the time until they are killed.
    """
    # The number of a reaped process may be reused by now; its children have ended by themselves.
    running = [process for process in running if process.returncode is None]
    try:
        for process in running:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + seconds
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:
        for process in running:
            with suppress(ProcessLookupError, PermissionError):  # none of its group is left
                os.killpg(process.pid, signal.SIGKILL)
        for process in running:
            process.wait()


def environment(folder: Path) -> Mapping[str, str]:
    """The environment of a member's processes; Flower finds its commands next to this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, **shell.environment(folder)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


# A member's -------------------------------------------------------------------------------------------


@dataclass
class ChildProcess:
    """A process that runs until it is ended."""

    name: str  # its name in printed lines, such as "SuperLink"
    command: shell.Command  # an installed command, or ``-m`` and a module, with arguments
    # the process that must listen at a port before this one starts, and with which this one restarts, if any
    after: ChildProcess | None = None
    port: int | None = None  # its port on 127.0.0.1, if it matters
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _due: float = field(default=0.0, init=False)
    _pause: float = field(default_factory=lambda: PAUSES[0], init=False)

    @property
    def log(self) -> Path:
        """Its log file in the member's folder."""
        return Path(shell.FLOWER) / f"{self.name.lower()}.log"

    @property
    def listens(self) -> bool:
        return self.process is not None and (self.port is None or listens("127.0.0.1", self.port))

    def start_if_due(self, folder: Path) -> bool:
        """Start it in the member's folder unless it runs, has just ended, or has to wait for another."""
        if self.process is not None or time.monotonic() < self._due or not (self.after is None or self.after.listens):
            return False
        self._began = time.monotonic()
        self.process = start(with_parent(self.command), folder, folder / self.log)
        return True

    def find_end(self) -> str:
        """How it ended; empty if it runs."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return ""
        pause = PAUSES[0] if time.monotonic() - self._began > LONG else self._pause
        self.process, self._due, self._pause = None, time.monotonic() + pause, min(2 * pause, PAUSES[1])
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{how}; it is started again in {pause:g} seconds"

    def stop(self) -> None:
        """End it; it may be restarted."""
        if self.process is not None:
            end([self.process])
            self.process = None


def supervise(
    folder: Path,
    parts: Sequence[ChildProcess],
    say: Callable[[str], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Keep a member's processes running until this process is interrupted; then end them all.

    Args:
        folder: the member's folder.
        parts: its processes, in the order of their dependencies.
        say: receives a line for each event.
        meanwhile: called repeatedly while they run.
    """
    with _alone(folder):
        try:
            while True:
                for part in parts:
                    if how := part.find_end():
                        say(f"The {part.name} has ended ({how}). See '{folder / part.log}'.")
                        for other in parts:
                            if other.after is part:
                                other.stop()  # it has nothing to finish that is still needed
                    if part.start_if_due(folder):
                        say(f"The {part.name} is started.")
                meanwhile()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            end([part.process for part in reversed(parts) if part.process is not None])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Prevent a second process from starting the same member's processes, which identify each other by a new secret."""
    secret = folder / shell.SECRET
    files.make_folder(secret.parent)
    try:
        with FileLock(secret.with_name(".lock"), timeout=0):
            files.write(secret, secrets.token_hex(32), private=True)
            try:
                yield
            finally:
                files.remove(secret)
    except Timeout as error:
        raise FedshiftError(
            f"The processes of '{folder}' run already, started in another terminal: end them there first."
        ) from error


# All members' -----------------------------------------------------------------------------------------


class Processes:
    """A federation's members on one machine: the commands that they type, each in its folder, as processes.

    Attributes:
        folder: the federation's folder.
        coordinator: the coordinator's folder.
        federation: its federation.toml.
        control_port: the port of the coordinator's SuperLink.
        running: the processes by name: ``coordinator``, ``run``, and each site's name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.coordinator = self.folder / shell.COORDINATOR
        self.federation = read_federation(self.coordinator)
        self.control_port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start_coordinator(self) -> None:
        """Start `fedshift federation serve` and wait until sites can connect."""
        address = self.federation.address
        serving = self._start(shell.COORDINATOR, [*shell.SERVE, "--control-port", str(self.control_port)])
        until = time.monotonic() + SECONDS_TO_START
        while not (listens(*shell.host_and_port(address)) and listens("127.0.0.1", self.control_port)):
            if serving.poll() is not None or time.monotonic() > until:
                raise FedshiftError(
                    f"The coordinator does not listen at {address}: see '{self.log(shell.COORDINATOR)}', and the logs "
                    "beside it."
                )
            time.sleep(0.1)

    def start_site(self, site: str) -> None:
        self._start(site, shell.JOIN)

    def start_run(self) -> subprocess.Popen[bytes]:
        """Start `fedshift federation run`; the process ends with the run."""
        return self._start(RUN, shell.RUN)

    def log(self, name: str) -> Path:
        if name in (shell.COORDINATOR, RUN):
            return self.coordinator / shell.FLOWER / f"{name}.log"
        return self.folder / shell.SITES / name / shell.FLOWER / "site.log"

    def check(self) -> None:
        """Check that all processes run."""
        for name, process in self.running.items():
            if name != RUN and process.poll() is not None:
                called = "The coordinator" if name == shell.COORDINATOR else f"The site '{name}'"
                raise FedshiftError(f"{called} has ended (exit code {process.returncode}): see '{self.log(name)}'.")

    def kill(self, name: str) -> None:
        """SIGKILL a process, whose children then end by themselves."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            end(list(reversed(self.running.values())), 3 * SECONDS_TO_END)
        finally:
            self.running.clear()

    def _start(self, name: str, command: shell.Command) -> subprocess.Popen[bytes]:
        log = self.log(name)
        self.running[name] = start(with_parent(["-m", *command]), log.parents[1], log)
        return self.running[name]


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)  # like a kill, after which a run resumes from its last checkpoint


def main() -> None:
    parent, *sys.argv = sys.argv[1:]
    threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        (command,) = entry_points(group="console_scripts", name=sys.argv[0])
        sys.exit(command.load()())


if __name__ == "__main__":
    main()
