"""A real federation on this machine: SuperLink, SuperNodes and runs as processes, each in its member's folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from federated import SITES, set_site
from fedshift.deployment import folders
from fedshift.deployment.agreement import EXPERIMENT, Agreement
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.supervisor import Processes, environment, free_port
from fedshift.experiments import Experiment
from fedshift.files import write
from fedshift.runs.run import Run

CLASSES = ("class 0", "class 1", "class 2")
SAMPLES = "data/samples.npz"  # in each site's folder, of its samples alone
DATA: dict[str, Any] = {"name": "arrays", "path": SAMPLES}
SERVER = "deployment.executor run"  # the coordinator's process for a run
EXECUTOR = "deployment.executor"  # what runs tasks
SUPERNODE, SUPERLINK, GATE = "flower-supernode", "flower-superlink", "deployment.gate"
PATIENCE = 900.0  # seconds, after which something hangs


class Loopback:
    """The processes of a federation's folder on this machine, and what they have written so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, Processes(folder)

    def start(self) -> None:
        """Start the coordinator and every site, as the READMEs describe."""
        self.processes.start_coordinator()
        for site in SITES:
            self.processes.start_site(site)

    def agree(self, experiment: Experiment) -> Run:
        """Give every member another experiment; the folder of its run, which is not there yet."""
        for member in (self.processes.coordinator, *(self.folder / "sites" / site for site in SITES)):
            write(member / EXPERIMENT, tomli_w.dumps(experiment.table()))
        agreement = Agreement.read(self.processes.coordinator)
        return Run(self.processes.coordinator / "runs" / agreement.run)

    def begin_run(self) -> None:
        """Begin the run, or continue with it; anyone who still watches it from before stops."""
        with suppress(KeyError):  # nobody does
            self.processes.kill("run")
        self.processes.start_run()

    def end_run(self) -> None:
        """Wait for the run's end."""
        self.wait_for(lambda: self.processes.running["run"].poll() is not None)

    def run(self) -> str:
        """Run or resume the federation; returns its output."""
        log = self.processes.log("run")
        before = len(log.read_text()) if log.exists() else 0
        self.begin_run()
        self.end_run()
        return log.read_text()[before:]

    def crash(self, name: str) -> None:
        """SIGKILL a process and all that it has started, as a crash of its machine would end them."""
        started = descendants(self.processes.running[name].pid)
        self.processes.kill(name)
        kill(started)

    def crash_program(self, name: str, program: str) -> None:
        """SIGKILL what a process has started of a program."""
        found = self.programs(name, program)
        assert found, f"'{name}' runs no {program}; the logs are in {self.folder}"
        kill(found)

    def programs(self, name: str, program: str) -> dict[int, str]:
        """What a process has started of a program: its command lines, by id."""
        found = descendants(self.processes.running[name].pid)
        return {pid: command for pid, command in found.items() if program in command}

    def flwr(self, *words: str) -> str:
        """What a command of Flower prints at the coordinator."""
        coordinator = self.processes.coordinator
        program = [str(Path(sys.executable).parent / "flwr"), *words]
        settings = {"cwd": coordinator, "env": environment(coordinator), "timeout": PATIENCE}
        done = subprocess.run(program, capture_output=True, text=True, check=False, **settings)
        return done.stdout + done.stderr

    @contextmanager
    def held(self, **sites: int) -> Iterator[None]:
        """Let each of some sites answer only that many more messages until the end of this."""
        files = {self.folder / "sites" / site / "held": count for site, count in sites.items()}
        for file, count in files.items():
            sent = file.with_name("sent.jsonl")
            file.with_name("waiting").unlink(missing_ok=True)
            write(file, str(count + (sent.read_bytes().count(b"\n") if sent.exists() else 0)))
        try:
            yield
        finally:
            for file in files:
                file.unlink()

    def waits(self, site: str) -> Callable[[], bool]:
        """A function that returns whether a site's executor has a message that it may not answer yet."""
        return (self.folder / "sites" / site / "waiting").exists

    def messages(self, count: int, *sites: str) -> Callable[[], bool]:
        """A function that returns whether some sites, or all, have received that many more messages than now."""
        return self.logged("Received successfully", count, *sites)

    def connected(self, *sites: str) -> Callable[[], bool]:
        """A function that returns whether some sites, or all, have connected to the SuperLink since now."""
        return self.logged("SuperNode ID", 1, *sites)

    def logged(self, words: str, count: int, *sites: str) -> Callable[[], bool]:
        """A function that returns whether SuperNodes of some sites, or all, have logged words so often since now."""
        logs = [self.folder / "sites" / site / "flower/supernode.log" for site in sites or SITES]

        def count_in(log: Path) -> int:
            return log.read_text().count(words) if log.exists() else 0

        before = {log: count_in(log) for log in logs}
        return lambda: all(count_in(log) >= number + count for log, number in before.items())

    def wait_for(self, there: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until something is so."""
        until = time.monotonic() + seconds
        while not there():
            if time.monotonic() > until:
                raise TimeoutError(f"waited for {seconds:g} seconds; the logs are in {self.folder}")
            time.sleep(0.05)


@contextmanager
def loopback(folder: Path, experiment: Experiment, deadline: float = PATIENCE) -> Iterator[Loopback]:
    """A federation of three sites with separate samples, of which no process runs yet; all are ended afterwards."""
    address = f"127.0.0.1:{free_port()}"
    agreed: dict[str, Any] = {"name": "trial", "sites": SITES, "shape": (1, 10, 10), "classes": CLASSES}
    members = FederationSettings(**agreed, address=address, deadline=deadline, wait=PATIENCE)
    folders.make(folder, folders.planned(members, experiment))
    for number, site in enumerate(SITES):
        samples(folder / "sites" / site / SAMPLES, number)
        set_site(folder, site, domains=[])
    made = Loopback(folder)
    with made.processes:
        yield made


def samples(path: Path, seed: int) -> None:
    """Write samples of three classes, brighter with each seed."""
    random, y = np.random.default_rng(seed), np.arange(30) % 3
    x = random.normal(size=(30, 1, 10, 10)) + y[:, None, None, None] + seed
    np.savez(path, x=x.astype("float32"), y=y, classes=np.array(CLASSES))


def events(run: Run, kind: str = "site") -> list[dict[str, Any]]:
    """What a run has reported of, of one kind."""
    path = run.path / "events.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process has started, and theirs in turn: their command lines, by id."""
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]  # whole lines, however few COLUMNS there are
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    found, parents = dict[int, str](), {pid}
    while parents:
        children = {int(row[0]): row[2] for row in rows if int(row[1]) in parents and len(row) == 3}
        found, parents = found | children, set(children)
    return found


def kill(processes: dict[int, str]) -> None:
    """SIGKILL processes, of which some may have ended, and wait until all have."""
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(runs(pid) for pid in processes):
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process runs; one that no client has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
