"""Flower itself: a SuperLink and SuperNodes with TLS and registered keys, as processes on this machine.

Starting a federation costs seconds, so what needs a whole federation is one test with one scenario after the other.
"""

from __future__ import annotations

import http.client
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import Make
from federated import SITES, Local, request_of
from fedshift.deployment import shell
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.flower import Away
from fedshift.deployment.keys import make_certificates, site_pair
from fedshift.deployment.supervisor import end, free_port, listens, start, with_parent
from fedshift.deployment.wire import Work
from fedshift.experiments import Experiment
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from loopback import DATA, EXECUTOR, GATE, PATIENCE, SERVER, SUPERLINK, SUPERNODE, Loopback, events, loopback
from reference import small
from test_coordinate import alike, position_of

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedshift[flower]'")
pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedshift[flower]'")

pytestmark = pytest.mark.federation

# As in test_coordinate: batches of one environment's samples, whose products are rounded the same.
REAL = {"name": "real", "data": DATA, "protocol": {"name": "in-domain"}, "train.rounds": 3, "evaluate.batch": 6}
MADE_BY_RUNS = ("runs", "roster", "state", "flower", "rehearsal")  # folders of members
Experiments = Callable[..., Experiment]
IMPATIENT = str(Path(__file__).with_name("impatient"))  # what SuperNodes do first


@pytest.fixture
def real(make: Make, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    """A function that makes a method's experiment on data of the sites' own."""
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.3")  # seconds, for 1
    monkeypatch.setenv("PYTHONPATH", IMPATIENT, prepend=os.pathsep)
    return lambda name, **changes: make(
        {**small(name), **REAL, **{f"train.{key}": each for key, each in changes.items()}}
    )


# Scenarios ----------------------------------------------------------------------------------------


@contextmanager
def in_round_2(federation: Loopback, experiment: Experiment) -> Iterator[Run]:
    """A run that was started, while sites have their orders of the second round and 'gray' does not answer."""
    run, there = federation.agree(experiment), federation.messages(3)
    with federation.held(gray=2):
        federation.begin_run()
        federation.wait_for(there)
        yield run


def carried_on(federation: Loopback, run: Run, done: int) -> None:
    """`run` continues after that many rounds, to the bits of a simulation."""
    said = federation.run()
    assert [event["done"] for event in events(run, "begin")] == [0, done], said
    as_simulated(federation, run)


def the_coordinators_run_is_killed(federation: Loopback, real: Experiments) -> None:
    """In the second round of a method with client state, when sites have their orders; `run` carries it on."""
    with in_round_2(federation, real("fraug")) as run:
        federation.crash_program("coordinator", SERVER)
    carried_on(federation, run, 1)


def who_watches_the_run_is_killed(federation: Loopback, real: Experiments) -> None:
    """The run continues, and the same command shows it again, from its beginning."""
    with in_round_2(federation, real("fedavg")) as run:
        federation.crash("run")
        federation.begin_run()
    federation.end_run()
    assert federation.processes.running["run"].returncode == 0
    assert [event["done"] for event in events(run, "begin")] == [0]
    as_simulated(federation, run)


def the_coordinator_is_killed(federation: Loopback, real: Experiments) -> None:
    """With all its processes; SuperNodes come back by themselves when it is there again."""
    with in_round_2(federation, real("fedcir")) as run:
        federation.crash("coordinator")
    federation.wait_for(lambda: not listens("127.0.0.1", federation.processes.control_port))  # the old one
    federation.processes.start_coordinator()
    carried_on(federation, run, 1)


def the_superlink_and_the_gate_are_killed(federation: Loopback, real: Experiments) -> None:
    """They are started again by themselves. The gate is not missed; the run has ended with the SuperLink."""
    in_round_3 = federation.messages(4)
    with in_round_2(federation, real("scaffold")) as run:
        federation.crash_program("coordinator", GATE)
    with federation.held(gray=3):
        federation.wait_for(in_round_3)
        federation.crash_program("coordinator", SUPERLINK)
    federation.wait_for(lambda: bool(federation.programs("coordinator", SUPERLINK)))
    federation.wait_for(lambda: listens("127.0.0.1", federation.processes.control_port))
    carried_on(federation, run, 2)


def a_site_is_killed(federation: Loopback, real: Experiments) -> None:
    """The run continues without it, and with it when it is back; what it keeps is what it would have kept otherwise."""
    run = federation.agree(real("fraug", min_answers=0.5, rounds=4))
    in_round_2 = federation.messages(3, "gray")
    with federation.held(gray=2, light=3):
        federation.begin_run()
        federation.wait_for(in_round_2)
        federation.crash("gray")
        back = federation.connected("gray")
        federation.wait_for(lambda: "offline" in happened(run, "gray"))  # Flower notices it after half a minute
        federation.processes.start_site("gray")
        federation.wait_for(back)
    federation.end_run()
    gone = [(each["client"], each["round"], each["why"]) for each in missing(run)]
    assert gone == [("gray", 2, "offline: node unavailable"), ("gray", 3, "offline")]
    told = happened(run, "gray")
    assert "answered" in told[told.index("back") :]
    as_replayed(federation, run)


def a_sites_processes_are_killed(federation: Loopback, real: Experiments) -> None:
    """Its executor in one round, its SuperNode in a later one; they are started again by themselves."""
    run = federation.agree(real("fraug", min_answers=0.5, rounds=6))
    with federation.held(gray=2, light=3):
        federation.begin_run()
        federation.wait_for(federation.waits("gray"))  # what it has not started, its next executor would begin
        federation.crash_program("gray", EXECUTOR)
        federation.wait_for(lambda: "failed" in happened(run, "gray"))  # Flower notices it after half a minute
    again = federation.messages(1, "gray")
    with federation.held(gray=0):
        federation.wait_for(again)
        back = federation.connected("gray")
        federation.crash_program("gray", SUPERNODE)
        federation.wait_for(back)
    federation.end_run()
    assert [each["client"] for each in missing(run)].count("gray") == len(missing(run)) >= 2
    as_replayed(federation, run)


SCENARIOS = {
    "the run": (the_coordinators_run_is_killed, who_watches_the_run_is_killed, the_coordinator_is_killed),
    "processes": (the_superlink_and_the_gate_are_killed, a_site_is_killed, a_sites_processes_are_killed),
}


@pytest.mark.parametrize("which", SCENARIOS)
def test_a_federation_on_flower(real: Experiments, tmp_path: Path, which: str):
    """Methods end with a simulation's bits, whatever is killed; what a site refuses ends a run at its start."""
    with loopback(tmp_path / "trial", real("fedsr")) as federation:
        federation.start()
        for scenario in SCENARIOS[which]:
            scenario(federation, real)


# What is compared ---------------------------------------------------------------------------------


def as_simulated(federation: Loopback, run: Run) -> None:
    """A run ended as the sequential engine does: weights, records, messages, and what each site keeps."""
    assert run.finished, federation.processes.log("run").read_text()[-4000:]
    assert not missing(run)  # every site answered every order
    simulated = rehearse(federation.folder, Progress())
    alike(run, simulated)
    same_states(federation, run, lambda site: simulated.path / "clients")


def same_states(federation: Loopback, run: Run, other: Callable[[str], Path]) -> None:
    """What each site's client keeps is what another folder has of it."""
    for number, site in enumerate(SITES):
        ours = last_state(federation.folder / "sites" / site / "state" / run.path.name, number)
        theirs = last_state(other(site), number)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def last_state(folder: Path, client: int) -> Mapping[str, torch.Tensor]:
    """What a client keeps after its last round; nothing of a method without client state."""
    states = sorted(folder.glob(f"{client}@*.safetensors"), key=position_of)
    return load_file(states[-1]) if states else {}


def as_replayed(federation: Loopback, run: Run) -> None:
    """A run ended as one in this process does whose sites miss the same orders."""
    folder = federation.folder.with_name(f"replay-{run.path.name}")
    shutil.copytree(federation.folder, folder, ignore=shutil.ignore_patterns(*MADE_BY_RUNS))
    replayed = coordinate(folder / "coordinator", Replay(folder, run), Progress())
    alike(run, replayed, records=False)
    same_states(federation, run, lambda site: folder / "sites" / site / "state" / run.path.name)


class Replay(Local):
    """Sites in this process that are away whenever one of another run was."""

    def __init__(self, folder: Path, run: Run) -> None:
        super().__init__(folder)
        self.gone = {(each["client"], each["stage"], each["round"], each["exchange"]) for each in missing(run)}

    def exchange(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes | Away]]:
        gone = {site for site, request in requests.items() if self._is_gone(site, request)}
        yield from ((site, Away("late")) for site in gone)
        yield from super().exchange({site: requests[site] for site in requests.keys() - gone}, deadline)

    def _is_gone(self, site: str, data: bytes) -> bool:
        order = work.order if isinstance(work := request_of(data), Work) else None
        return order is not None and (site, order.stage, order.round, order.exchange) in self.gone


def happened(run: Run, site: str) -> list[str]:
    """What a site did, or what happened to it."""
    return [event["what"] for event in events(run) if event["who"] == site]


def missing(run: Run) -> list[dict[str, Any]]:
    """Every answer that a run continued without."""
    return [each for record in run.records for each in record.get("missing", [])]


# Who is refused -----------------------------------------------------------------------------------


def test_who_is_refused(real: Experiments, tmp_path: Path):
    """A key that is not registered, connections in clear, and a SuperLink with a certificate of another authority."""
    with loopback(tmp_path / "trial", real("fedsr")) as federation:
        processes, sites = federation.processes, federation.folder / "sites"

        def log(site: str) -> Path:
            return sites / site / "flower/supernode.log"

        address = processes.federation.address
        processes.start_coordinator()
        (sites / "dark/keys/site.key").write_bytes(site_pair().private)
        (sites / "gray/certificates/ca.crt").write_bytes(make_certificates("another", ["localhost"])[0].public)
        for site in ("dark", "gray"):
            processes.start_site(site)
        clear = start(with_parent(in_clear(shell.supernode(address, free_port()))), sites / "light", log("light"))
        for site, said in (("gray", "CERTIFICATE_VERIFY_FAILED"), ("light", "Connection attempt failed")):
            federation.wait_for(lambda site=site, said=said: log(site).exists() and said in log(site).read_text())
        federation.wait_for(lambda: "The SuperNode has ended" in processes.log("dark").read_text())
        connection = http.client.HTTPConnection(*shell.host_and_port(address), timeout=PATIENCE)
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.request("GET", "/")
            connection.getresponse()
        connection.close()
        federation.wait_for(lambda: processes.log("coordinator").read_text().count("is registered") == 3)
        listed = federation.flwr("supernode", "list", "trial")
        end([clear])
        assert listed.count("registered") == 3
        assert "online" not in listed


def in_clear(command: shell.Command) -> shell.Command:
    """The command of a SuperNode without TLS, and so without its key, which Flower does not use in clear."""
    at = command.index("--root-certificates")
    return [*command[:at], "--insecure", *command[at + 4 : command.index("--isolation")]]
