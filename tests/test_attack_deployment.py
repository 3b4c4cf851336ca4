"""An attack on a federation of real processes: anyone who reaches the coordinator starts a separate app.

The app reads each site's private key and its data and sends them back; where it is imported it leaves a mark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedshift[flower]'")

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from conftest import Make
from federated import SITES
from fedshift.deployment import shell
from fedshift.deployment.executor import ACQUIRE
from fedshift.deployment.supervisor import end, listens, start, with_parent
from loopback import PATIENCE, SUPERNODE, Loopback, loopback
from reference import small
from test_flower import IMPATIENT, REAL, as_simulated

pytestmark = pytest.mark.federation

SETTINGS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "other"
version = "1.0.0"
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "other:server"
clientapp = "other:client"
"""
CODE = """
import json
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

MARKS = Path({marks!r})
(MARKS / Path.cwd().name).touch()
server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    requested = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    replies = grid.send_and_receive(requested, timeout=600)  # a busy machine answers late
    reported = [reply.error.reason if reply.has_error() else "answered" for reply in replies]
    (MARKS / "replies.json").write_text(json.dumps(reported))

@client.query()
def query(message, context):
    found = {{str(file): file.read_bytes() for file in Path().rglob("*.key")}}
    return Message(RecordDict({{"found": ConfigRecord(found)}}), reply_to=message)
"""


def test_nobody_runs_code_at_a_member(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not an outsider, nor a site, nor who has the coordinator's machine; afterwards the run is as ever."""
    monkeypatch.setenv("PYTHONPATH", IMPATIENT, prepend=os.pathsep)
    marks, experiment = tmp_path / "marks", make({**small("fedavg"), **REAL})
    with loopback(tmp_path / "trial", experiment) as federation:
        app = other_app(tmp_path / "other", marks)
        run, connected = federation.agree(experiment), federation.connected(*SITES)
        federation.start()
        federation.wait_for(connected)
        an_outsider_is_refused(federation, app, tmp_path / "outside")
        who_lacks_the_secret_gets_no_task(federation)
        another_app_is_not_run_by_the_coordinator(federation, app)
        assert list(marks.iterdir()) == []
        another_app_is_not_run_by_a_site(federation, app, marks)
        federation.processes.start_coordinator()
        said = federation.run()
        assert run.finished, said
        as_simulated(federation, run)


def other_app(folder: Path, marks: Path) -> Path:
    """An app that takes what it can, and the folder where it leaves marks."""
    folder.mkdir()
    marks.mkdir()
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "other.py").write_text(CODE.format(marks=str(marks)))
    return folder


# Who attacks ------------------------------------------------------------------------------------------


def an_outsider_is_refused(federation: Loopback, app: Path, home: Path) -> None:
    """At the public address, with the certificate that every site has."""
    home.mkdir()
    authority = federation.folder / "sites/dark/certificates/ca.crt"
    address = federation.processes.federation.address
    (home / "config.toml").write_text(f'[superlink.trial]\naddress = "{address}"\nroot-certificates = "{authority}"\n')
    key = federation.folder / "sites/dark/keys/site.pub"
    told: dict[str, Any] = {"env": {**os.environ, "FLWR_HOME": str(home), **shell.QUIET}, "timeout": PATIENCE}
    for words in (["run", str(app), "trial", "--stream"], ["supernode", "register", str(key), "trial"]):
        command = [str(Path(sys.executable).parent / "flwr"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **told)
        assert done.returncode != 0, done.stdout
        assert "Invalid Flower App" not in done.stdout + done.stderr
        assert "Successfully" not in done.stdout


def who_lacks_the_secret_gets_no_task(federation: Loopback) -> None:
    """On a site's own machine."""
    (command,) = federation.programs("gray", SUPERNODE).values()
    words = command.split()
    port = words[words.index("--port") + 1]
    for secret in (b"guessed", (federation.folder / "sites/dark" / shell.SECRET).read_bytes()):
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        client = RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, [version, signed])
        with closing(client), pytest.raises(httpx.HTTPStatusError, match="401"):
            client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
    file = federation.folder / "sites/gray" / shell.SECRET
    assert file.stat().st_mode & 0o777 == 0o600


def another_app_is_not_run_by_the_coordinator(federation: Loopback, app: Path) -> None:
    """Anyone who starts a run at the SuperLink's own port; no site gets a message."""
    said = federation.flwr("run", str(app), "trial", "--stream")
    assert "Successfully started run" in said
    assert "another app than fedshift's" in said
    assert not any((federation.folder / "sites" / site / "log.jsonl").exists() for site in SITES)


def another_app_is_not_run_by_a_site(federation: Loopback, app: Path, marks: Path) -> None:
    """Who has the coordinator's machine and keys runs another app there, with Flower's own executor."""
    processes = federation.processes
    processes.kill("coordinator")
    with dishonest(federation):
        federation.wait_for(lambda: federation.flwr("supernode", "list", "trial").count("online") == 3)
        federation.flwr("run", str(app), "trial", "--stream")
        federation.wait_for((marks / "replies.json").exists)
    assert sorted(file.name for file in marks.iterdir()) == ["coordinator", "replies.json"]
    told = json.loads((marks / "replies.json").read_text())
    assert told == ["The site could not answer; its logs show why."] * 3
    for site in SITES:
        (line,) = (federation.folder / "sites" / site / "log.jsonl").read_text().splitlines()
        assert json.loads(line)["what"] == "refused"
        assert not (federation.folder / "sites" / site / "sent.jsonl").exists()


@contextmanager
def dishonest(federation: Loopback) -> Iterator[None]:
    """A coordinator's SuperLink that starts apps itself, behind the coordinator's gate."""
    port, coordinator = federation.processes.control_port, federation.processes.coordinator
    address = shell.host_and_port(federation.processes.federation.address)
    free: Callable[[], bool] = lambda: not listens("127.0.0.1", port) and not listens(*address)  # noqa: E731
    federation.wait_for(free)
    command = shell.superlink(port)
    at = command.index("--isolation")
    started = [
        start(with_parent(each), coordinator, coordinator / "flower/dishonest.log")
        for each in ([*command[:at], *command[at + 4 :]], shell.gate(port))
    ]
    try:
        federation.wait_for(lambda: listens("127.0.0.1", port) and listens(*address))
        yield
    finally:
        end(started)
        federation.wait_for(free)
