"""`fedshift federation serve`, `join` and `run`: what they start, start again and end, without Flower's processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedshift.deployment import serving, shell, supervisor
from fedshift.deployment.serving import Registry, inner_port, join, run
from fedshift.deployment.supervisor import ChildProcess, free_port, listens, supervise
from refusal import refuses

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from conftest import Make
from fedshift.deployment import folders
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.keys import site_pair
from fresh import ok
from loopback import descendants, runs

PATIENCE = 120.0
LISTENING = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
"""A program that listens at a port."""


class EnoughError(Exception):
    """What ends a supervisor in a test."""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are plain programs: their commands are ``python`` and arguments."""
    monkeypatch.setattr(supervisor, "with_parent", lambda command: [sys.executable, *command])
    monkeypatch.setattr(supervisor, "PAUSES", (0.1, 0.4))


def until(there: Callable[[], bool]) -> Callable[[], None]:
    """What a supervisor does meanwhile: it ends when something is so."""
    late = time.monotonic() + PATIENCE

    def look() -> None:
        if there():
            raise EnoughError
        assert time.monotonic() < late, "it takes too long"

    return look


def sleeping(name: str, after: ChildProcess | None = None) -> ChildProcess:
    return ChildProcess(name, ["-c", "import time; time.sleep(600)"], after=after)


def test_what_needs_another_waits_until_that_listens_and_starts_again_with_it(plain: None, tmp_path: Path):
    port, lines, seen = free_port(), list[str](), list[int]()
    first = ChildProcess("SuperLink", ["-c", LISTENING.format(port=port)], port=port)
    second = sleeping("executor", after=first)

    def both_twice() -> bool:
        if second.process is None or second.process.pid in seen:
            return False
        assert listens("127.0.0.1", port)
        seen.append(second.process.pid)
        if len(seen) == 1 and first.process is not None:
            first.process.kill()
        return len(seen) == 2

    with pytest.raises(EnoughError):
        supervise(tmp_path, [first, second], lines.append, until(both_twice))
    assert not listens("127.0.0.1", port)
    started = ["The SuperLink is started.", "The executor is started."]
    assert [line for line in lines if "ended" not in line] == started * 2
    (ended,) = (line for line in lines if "ended" in line)
    assert "The SuperLink has ended (SIGKILL" in ended
    assert str(tmp_path / "flower/superlink.log") in ended


def test_pauses_grow_for_what_ends_again_and_again(plain: None, tmp_path: Path):
    part, lines = ChildProcess("SuperNode", ["-c", "exit(3)"]), list[str]()
    with pytest.raises(EnoughError):
        supervise(tmp_path, [part], lines.append, until(lambda: len(lines) >= 8))
    ended = [line for line in lines if "ended" in line]
    assert all("exit code 3" in line for line in ended)
    assert [line.partition("again in ")[2].partition(" ")[0] for line in ended] == ["0.1", "0.2", "0.4", "0.4"]


def test_the_secret_is_private_new_and_removed(plain: None, tmp_path: Path):
    found, path = list[bytes](), tmp_path / shell.SECRET

    def read() -> bool:
        assert path.stat().st_mode & 0o777 == 0o600
        found.append(path.read_bytes())
        return True

    for _ in range(2):
        with pytest.raises(EnoughError):
            supervise(tmp_path, [], list[str]().append, until(read))
        assert not path.exists()
    assert len(found[0]) == 64
    assert found[0] != found[1]


def test_a_member_is_started_once(plain: None, tmp_path: Path):
    def again() -> bool:
        with refuses(str(tmp_path), "end them there first"):
            supervise(tmp_path, [], list[str]().append)
        return (tmp_path / shell.SECRET).exists()

    with pytest.raises(EnoughError):
        supervise(tmp_path, [], list[str]().append, until(again))


def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path):
    """Also those whose main thread never runs again."""
    code = (
        "from pathlib import Path; from fedshift.deployment.supervisor import *; "
        f"supervise(Path({str(tmp_path)!r}), [ChildProcess('SuperNode', ['-m', 'stubborn'])], print)"
    )
    (tmp_path / "stubborn.py").write_text("import threading\nprint('up', flush=True)\nthreading.Event().wait()\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
    log, late = tmp_path / "flower/supernode.log", time.monotonic() + PATIENCE
    while not (log.exists() and "up" in log.read_text()):
        assert time.monotonic() < late
        time.sleep(0.05)
    (child,) = descendants(parent.pid)
    parent.kill()
    parent.wait()
    while runs(child):
        assert time.monotonic() < late
        time.sleep(0.05)


# A member's folder --------------------------------------------------------------------------------


@pytest.fixture
def trial(make: Make, tmp_path: Path) -> Path:
    """A federation of two sites, which uses ports that are free."""
    address = f"127.0.0.1:{free_port()}"
    agreed = FederationSettings(
        name="trial", sites=("a", "b"), shape=(1, 10, 10), classes=("0", "1", "2"), address=address
    )
    experiment = make({"protocol": {"name": "in-domain"}, "data": {"name": "arrays", "path": "data/samples.npz"}})
    folders.make(tmp_path / "trial", folders.planned(agreed, experiment))
    return tmp_path / "trial"


def printed(*arguments: str) -> str:
    return ok("federation", *arguments)


def test_dry_runs_show_commands_of_flower_that_leave_apps_alone(trial: Path):
    before = sorted(trial.rglob("*"))
    served = printed("serve", str(trial / "coordinator"), "--control-port", "9000", "--dry-run")
    joined = printed("join", str(trial / "sites/a"), "--dry-run")
    for lines in (served, joined):
        flower = next(line for line in lines.splitlines() if "--port" in line)
        assert f"--isolation process --superexec-auth-secret-file {shell.SECRET}" in flower
    assert "--host 127.0.0.1 --port 9000" in served
    assert "python -m fedshift.deployment.gate . 9000" in served
    assert "--enable-supernode-auth" in served
    assert "--insecure" not in served + joined
    assert "fedshift.deployment.executor site . 127.0.0.1:" in joined
    assert "flwr run " in printed("run", str(trial / "coordinator"), "--dry-run")
    assert sorted(trial.rglob("*")) == before


def test_folders_that_are_none_are_refused_by_name(trial: Path, tmp_path: Path):
    with refuses(str(tmp_path / "federation.toml"), "fedshift federation init"):
        join(tmp_path, None, print)
    with refuses("keys/site.key", "right member"):
        join(trial / "coordinator", None, print)
    with refuses("does not run", "fedshift federation serve"):
        run(trial / "coordinator")


def test_ports_that_cannot_be_are_refused(trial: Path):
    assert inner_port("fl.example.org:8000") == 8001
    with refuses("65536", "--control-port"):
        inner_port("fl.example.org:65535")


class Known:
    """A SuperLink's control interface that knows some keys."""

    def __init__(self) -> None:
        self.registered = dict[str, bytes]()

    @contextmanager
    def __call__(self, *_: object) -> Iterator[Known]:
        yield self

    def ListNodes(self, _: object) -> SimpleNamespace:  # noqa: N802  # Flower's name
        return SimpleNamespace(nodes_info=[SimpleNamespace(public_key=key) for key in self.registered.values()])

    def RegisterNode(self, request: Any) -> None:  # noqa: N802  # Flower's name
        assert request.name not in self.registered
        self.registered[request.name] = request.public_key


def test_keys_are_registered_once_also_those_that_come_later(trial: Path, monkeypatch: pytest.MonkeyPatch):
    known, lines = Known(), list[str]()
    monkeypatch.setattr(serving, "control", known)
    monkeypatch.setattr(serving, "SECONDS_BETWEEN_KEYS", 0.0)
    registry = Registry(trial / "coordinator", 1, lines.append)
    assert not registry.look()
    assert lines == ["The key of a is registered.", "The key of b is registered."]
    assert not registry.look()
    (trial / "coordinator/keys/c.pub").write_bytes(site_pair().public)
    assert registry.look()
    assert lines[2:] == ["The key of c is registered."]
    assert list(known.registered) == ["a", "b", "c"]
