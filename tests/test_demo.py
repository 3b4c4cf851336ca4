"""`fedshift federation demo`, `rehearse` and `sent`: a whole federation on one machine, and what is left of it."""

from __future__ import annotations

import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from conftest import Make
from federated import Local, members
from fedshift.cli.federation_make import compared
from fedshift.deployment import shell
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import EXPERIMENT, carried_out, carry_out, difference, experiment, planned_demo, rehearse
from fedshift.deployment.folders import make
from fedshift.deployment.sent import read_sent
from fedshift.deployment.site_data import SiteFolder
from fedshift.deployment.supervisor import free_port
from fedshift.errors import FedshiftError
from fedshift.runs.events import Progress
from fresh import ok

IN_DOMAIN = {"protocol": {"name": "in-domain"}, "train.rounds": 2, "evaluate.batch": 6}
CITIES = ("berlin", "oslo", "rome")


def said(*arguments: str) -> str:
    """What a command prints; its error is raised."""
    return " ".join(ok("federation", *arguments).split())


def of_folder(folder: Path) -> list[str]:
    """The processes on this machine that work in a federation's folder."""
    found = []
    for about in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (about / "environ").read_bytes(), (about / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if f"FLWR_HOME={folder}".encode() in environment and command:  # a zombie has none
            found.append(command.replace(b"\0", b" ").decode())
    return found


def none_left(folder: Path) -> None:
    """Children of processes that were ended notice that within a moment."""
    until = time.monotonic() + 300
    while (left := of_folder(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []


# The demonstration -------------------------------------------------------------------------------


def test_each_site_has_other_digits_on_its_own_disk(tmp_path: Path):
    """Turned by 360 degrees and not at all, images are the same, so that equal ones would be seen."""
    pytest.importorskip("cryptography", reason="the extra 'flower' is not installed")
    folder = tmp_path / "d"
    make(folder, planned_demo(experiment("fedsr", 2), {"a": 0, "b": 360}))
    agreement, seen = Agreement.read(folder / "coordinator"), list[set[bytes]]()
    assert agreement.federation.shape == (1, 28, 28)
    assert agreement.experiment.train.min_answers == 0.5
    for site in ("a", "b"):
        place = folder / "sites" / site
        own = SiteFolder(place, agreement.at(place))
        assert own.settings.threads == 1
        assert [path.name for path in (place / "data").iterdir()] == ["digits.npz"]
        data = own.samples()
        assert torch.bincount(data.y).tolist() == [80] * 10
        seen.append({image.numpy().tobytes() for image in data.x})
    assert [len(images) for images in seen] == [800, 800]
    assert not seen[0] & seen[1]


# Processes ---------------------------------------------------------------------------------------

LISTENING = """
import socket, sys, time
listening = [socket.create_server(("127.0.0.1", int(port))) for port in ({port}, sys.argv[-1])]
time.sleep(600)
"""


@pytest.fixture
def stubs(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation whose coordinator only listens; sites' processes and the run are up to the test."""
    port = free_port()
    monkeypatch.setattr("fedshift.deployment.supervisor.with_parent", lambda command: [sys.executable, *command[1:]])
    monkeypatch.setattr(shell, "SERVE", ["-c", LISTENING.format(port=port)])
    monkeypatch.setattr(shell, "JOIN", ["-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(shell, "RUN", ["-c", "import time; time.sleep(600)"])
    return members(tmp_path / "trial", make(IN_DOMAIN), federation={"address": f"127.0.0.1:{port}"})


def test_a_process_that_ends_at_its_start_is_named_with_its_log(stubs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shell, "JOIN", ["-c", "print('there is no key'); exit(3)"])
    lines: list[str] = []
    with pytest.raises(FedshiftError) as raised:
        carry_out(stubs, lines.append, Console(file=StringIO()))
    logs = {site: stubs / f"sites/{site}/flower/site.log" for site in ("dark", "gray", "light")}
    site = str(raised.value).split("'")[1]  # any is seen first
    assert str(raised.value) == f"The site '{site}' has ended (exit code 3): see '{logs[site]}'."
    assert logs[site].read_text() == "there is no key\n"
    assert [line.partition(" ")[0] for line in lines] == ["Starting"] * 3
    none_left(stubs)


# What is left of a run ---------------------------------------------------------------------------


@pytest.fixture
def federation(make: Make, tmp_path: Path) -> Path:
    """A federation's folder after its run, of which only messages were not real."""
    folder = members(tmp_path / "trial", make(IN_DOMAIN))
    coordinate(folder / "coordinator", Local(folder), Progress())
    return folder


def test_a_rehearsal_ends_with_the_weights_of_the_federation(federation: Path):
    assert "Compared with the federation's run: equal weights, bit for bit." in said("rehearse", str(federation))


def test_weights_that_differ_are_said_to(federation: Path, make: Make, tmp_path: Path):
    run, other = carried_out(federation), members(tmp_path / "other", make({**IN_DOMAIN, "seed": 1}))
    theirs = rehearse(other, Progress())
    one, two = load_file(run.path / "weights.safetensors"), load_file(theirs.path / "weights.safetensors")
    apart = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert apart > 0.01
    assert difference(run, theirs) == pytest.approx(apart, rel=1e-6)
    assert f"weights differ by {apart:.2g} at most" in compared(run, theirs)


def test_what_left_a_site_is_shown(federation: Path):
    """A join, and an answer in each of two rounds, the second with scores; the last model is scored alone."""
    site = federation / "sites/gray"
    messages = read_sent(site / "sent.jsonl")
    assert [message.what for message in messages] == ["join", "answer", "answer", "score"]
    told, full = said("sent", str(site)), said("sent", str(site), "--full")
    assert "What has left gray" in told
    assert "Messages: 4 of" in told
    assert "without a tensor" not in told  # a join declares the number of samples
    tensors = [tensor for message in messages for tensor in message.tensors]
    assert len(tensors) > 10
    assert all(tensor.name in full and tensor.sha256 in full for tensor in tensors)
    (federation / "sites/gray/sent.jsonl").unlink()
    assert said("sent", str(site)) == "Nothing has left 'gray' yet."


# All of it ---------------------------------------------------------------------------------------


@pytest.mark.federation
def test_the_demonstration_with_real_processes(tmp_path: Path):
    """Two rounds with Flower as it is; then the same run as a simulation ends with the same bits."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    folder = tmp_path / "federation"
    done = subprocess.run(
        [sys.executable, "-m", "fedshift", "federation", "demo", "--to", str(folder), "--sites", "2", "--rounds", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    none_left(folder)
    run = carried_out(folder)
    for words in (
        "Starting the coordinator at",
        f"1/1 {run.path.name}  done: ",
        f"Report: {run.path / 'report.html'}",
        "Every process has ended.",
        f"fedshift federation rehearse {folder}",
    ):
        assert words in done.stdout
    assert (run.path / "report.html").is_file()
    assert [record["round"] for record in run.records] == [1, 2]
    assert {row["environment"] for row in run.records[0]["environments"]} == set(CITIES[:2])
    assert difference(run, rehearse(folder, Progress())) == 0.0
    assert "Messages: 4 of" in said("sent", str(folder / "sites/oslo"))
    assert run.resumable_experiment().evaluate.every == EXPERIMENT["evaluate"]["every"]
