"""A federation's members on one machine: the coordinator, each site, and the run, by the commands that members type.

Each works in its member's folder, and writes what it prints into the folder's ``flower/*.log``.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Self

from fedshift.deployment import shell
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.folders import COORDINATOR, SITES
from fedshift.deployment.orphan import with_parent
from fedshift.deployment.supervisor import SECONDS_TO_END, end, free_port, listens, start
from fedshift.errors import FedshiftError

SECONDS_TO_START = 120.0
RUN = "run"


class Processes:
    """The commands that are running, by name: ``coordinator``, ``run``, and each site's by the site's.

    Attributes:
        folder: the federation's.
        agreement: what its members agreed on.
        control_port: where the coordinator's SuperLink listens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.agreement = Agreement.read(self.folder / COORDINATOR)
        self.control_port = free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def coordinator(self) -> Path:
        """The coordinator's folder."""
        return self.folder / COORDINATOR

    def start_coordinator(self) -> None:
        """Start `fedshift federation serve` and wait until sites can connect.

        Raises:
            FedshiftError: they cannot; the message says where its log is.
        """
        public = shell.host_and_port(self.agreement.federation.address)
        command = [*shell.SERVE, "--control-port", str(self.control_port)]
        self._start(COORDINATOR, command, self.coordinator)
        until = time.monotonic() + SECONDS_TO_START
        while not (listens(*public) and listens("127.0.0.1", self.control_port)):
            if self._running[COORDINATOR].poll() is not None or time.monotonic() > until:
                raise FedshiftError(
                    f"The coordinator does not listen at {self.agreement.federation.address}: see "
                    f"'{self.log(COORDINATOR)}', and the logs beside it."
                )
            time.sleep(0.1)

    def start_site(self, site: str) -> None:
        """Start a site's `fedshift federation join`."""
        self._start(site, shell.JOIN, self.folder / SITES / site)

    def start_run(self) -> subprocess.Popen[bytes]:
        """Start `fedshift federation run`; the process ends with the run."""
        return self._start(RUN, shell.RUN, self.coordinator)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """A process that was started."""
        return self._running[name]

    def log(self, name: str) -> Path:
        """Where a process writes what it prints."""
        if name in (COORDINATOR, RUN):
            return self.coordinator / shell.FLOWER / f"{name}.log"
        return self.folder / SITES / name / shell.FLOWER / "site.log"

    def check(self) -> None:
        """Look whether all that should go on does.

        Raises:
            FedshiftError: a process has ended, other than the run's; the message says where its log is.
        """
        for name, process in self._running.items():
            if name != RUN and process.poll() is not None:
                called = "The coordinator" if name == COORDINATOR else f"The site '{name}'"
                raise FedshiftError(f"{called} has ended (exit code {process.returncode}): see '{self.log(name)}'.")

    def kill(self, name: str) -> None:
        """SIGKILL a process, whose children then end by themselves."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End every process with its children, in the reverse order of their start; a second Ctrl-C does not wait."""
        try:
            end(list(reversed(self._running.values())), 3 * SECONDS_TO_END)
        finally:
            self._running.clear()

    def _start(self, name: str, command: shell.Command, folder: Path) -> subprocess.Popen[bytes]:
        self._running[name] = start(with_parent(["-m", *command]), folder, self.log(name))
        return self._running[name]
