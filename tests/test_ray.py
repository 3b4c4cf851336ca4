"""A Ray cluster: the bits of worker processes, whatever dies, and nothing of Ray where it is not requested."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import CNN_WITH_BN, Make, results
from fedshift.engines.choice import Choice
from fedshift.engines.engine import Outcome
from fedshift.engines.kernels import Kernels
from fedshift.engines.parcels import Packed, Packing, read, written
from fedshift.engines.ray_actors import Actor
from fedshift.experiments import Experiment
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand
from refusal import refuses
from test_workers import jobs_of, kill_workers

cluster = pytest.mark.cluster
THREE = {"protocol": {"name": "in-domain"}, "train.rounds": 4, "run.checkpoint_every": 1}
PRIVATE = {**THREE, **CNN_WITH_BN, "method.bn": "local", "method.optimiser_state": "kept"}
RAY = {"run.engine": "ray", "run.workers": 2}


class Nodes:
    """A cluster whose head has no processor, and two nodes with one each; ``ray`` is connected to it."""

    def __init__(self, ray: Any) -> None:
        from ray.cluster_utils import Cluster

        self.ray = ray
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.workers = [self.cluster.add_node(num_cpus=1) for _ in range(2)]

    def kill(self, node_id: str) -> None:
        """Let a node die, and another come."""
        (socket,) = [each["RayletSocketName"] for each in self.ray.nodes() if each["NodeID"] == node_id]
        (node,) = [node for node in self.workers if node.raylet_socket_name == socket]
        self.workers.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    nodes = Nodes(ray)
    ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="error")
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


def carried_out(experiment: Experiment, notes: list[str] | None = None) -> Run:
    """A new run; what the engine reports goes to ``notes``."""
    progress = Progress()
    if notes is not None:
        progress.note = notes.append  # type: ignore[method-assign]  # to listen
    return runner.start(experiment, progress)


def by_workers(make: Make, changes: dict[str, Any], tmp_path: Path) -> Run:
    """The same run with two worker processes."""
    its = {"run.engine": "workers", "run.workers": 2, "run.out": str(tmp_path / "workers")}
    return carried_out(make({**changes, **its}))


def dying(monkeypatch: pytest.MonkeyPatch, marker: Path, times: int) -> None:
    """Have the actor that trains client 1 in round 3 killed that many times."""
    kill_workers(monkeypatch, marker, times)
    by_value(monkeypatch)


def slow(monkeypatch: pytest.MonkeyPatch, marker: Path) -> None:
    """Have the actor that first trains client 1 in round 3 write down its node, and take its time."""
    plain, test = FedAvg.risk, os.getpid()

    def risk(self: FedAvg, net: Any, batch: Any, context: Any) -> Any:
        if os.getpid() != test and context.round == 3 and int(context.client) == 1 and not marker.exists():
            import ray

            marker.write_text(ray.get_runtime_context().get_node_id())
            time.sleep(60)
        return plain(self, net, batch, context)

    monkeypatch.setattr(FedAvg, "risk", risk)
    by_value(monkeypatch)


def by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an actor see what a test has patched in a class of fedshift, which it would import as it is."""
    import cloudpickle

    from fedshift.engines import ray_actors
    from fedshift.methods import fedavg

    plain, modules = ray_actors.send_plugins, (fedavg, sys.modules[__name__])

    def sent() -> None:
        plain()
        for module in modules:
            cloudpickle.register_pickle_by_value(module)

    monkeypatch.setattr(ray_actors, "send_plugins", sent)


@pytest.fixture(autouse=True)
def by_reference() -> Iterator[None]:
    """Undo :func:`by_value`."""
    yield
    import cloudpickle

    for name in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(sys.modules[name])


# Parcels ------------------------------------------------------------------------------------------


def test_parcels_lie_one_behind_the_other_and_hold_every_kind_of_tensor():
    """What is in the first parcel is not in the second: it has its place there."""
    tensors = [torch.arange(5.0), torch.tensor(3), torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([True, False])]
    tensors += [torch.empty(0, 4), torch.arange(6).view(2, 3).T, torch.randn(3, dtype=torch.complex64)]
    first = Packing()
    for tensor in tensors[:2]:
        first.put(tensor)
    second = Packing(first.ends, first.placed)
    data = written({"all": tensors, "again": tensors[0]}, second, {}).getvalue()
    parcels = first.packed(), second.packed()
    assert len(parcels[0]) == 128
    for parcel in parcels:
        parcel.setflags(write=False)  # as in Ray's object store
    found = read(data, Packed(*parcels), {}, copy=True)
    for ours, theirs in zip([*found["all"], found["again"]], [*tensors, tensors[0]], strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(ours, theirs)
        ours.zero_()  # a copy may be written to
    assert not parcels[0].flags.writeable
    assert torch.equal(read(data, Packed(*parcels), {}, copy=True)["again"], tensors[0])


# Where Ray is not installed -------------------------------------------------------------------------


def test_without_ray_the_extra_is_named(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with refuses("fedshift[ray]"):
        carried_out(make(RAY))


def test_ray_has_as_many_actors_as_are_asked_for(make: Make):
    experiment = make({**RAY, "run.gpus": 0.25, "run.address": "10.0.0.7:6379"})
    choice = Simulation(experiment).choice(lambda text: None)
    assert choice == Choice("ray", 2, 1, Kernels(channels_last=choice.kernels.channels_last), 0.25, "10.0.0.7:6379")
    assert str(choice).startswith("2 Ray actors of 1 thread")
    assert choice.together == 1


# The clients of a cohort on a cluster ---------------------------------------------------------------


@cluster
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fraug", "fedcir"])
def test_actors_give_the_bits_of_workers(make: Make, tmp_path: Path, nodes: Nodes, method: str):
    changes = {**PRIVATE, "method.name": method} if method == "fedavg" else {**THREE, "method.name": method}
    expected = results(by_workers(make, changes, tmp_path))
    assert results(carried_out(make({**changes, **RAY, "run.out": str(tmp_path / "ray")}))) == expected


@cluster
def test_a_dead_actor_costs_its_own_work(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes):
    expected, notes = results(by_workers(make, PRIVATE, tmp_path)), list[str]()
    dying(monkeypatch, tmp_path / "killed", times=1)
    run = carried_out(make({**PRIVATE, **RAY, "run.out": str(tmp_path / "ray")}), notes)
    assert results(run) == expected
    (note,) = notes
    assert note.startswith("A Ray actor died in round 3 (")
    assert "while it trained client 'gray', and was replaced; 1 so far" in note


@cluster
def test_an_actor_that_dies_twice_ends_the_run_which_then_goes_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes
):
    expected = results(by_workers(make, PRIVATE, tmp_path))
    dying(monkeypatch, tmp_path / "killed", times=2)
    experiment = make({**PRIVATE, **RAY, "run.out": str(tmp_path / "ray")})
    with refuses("A Ray actor died twice in round 3, while it trained client 'gray'"):
        carried_out(experiment)
    (run,), failed = runner.run_all([experiment], Progress())
    assert not failed
    assert results(run) == expected


@cluster
def test_a_node_that_dies_in_a_round_costs_its_own_work(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes
):
    """The node that works for client 1 in round 3 goes; the other does its work, and a new node helps it."""
    expected, marker, notes = results(by_workers(make, PRIVATE, tmp_path)), tmp_path / "slow", list[str]()
    slow(monkeypatch, marker)

    def kill() -> None:
        last = time.monotonic() + 60
        while not (marker.exists() and marker.read_text()):
            if time.monotonic() > last:
                return
            time.sleep(0.02)
        nodes.kill(marker.read_text())

    killer = threading.Thread(target=kill)
    killer.start()
    run = carried_out(make({**PRIVATE, **RAY, "run.out": str(tmp_path / "ray")}), notes)
    killer.join()
    nodes.workers.append(nodes.cluster.add_node(num_cpus=1))
    assert results(run) == expected
    (note,) = notes
    assert note.startswith("A Ray actor died in round 3 (")


@cluster
def test_a_plugins_code_goes_with_the_job(make: Make, tmp_path: Path, nodes: Nodes):
    """A method in a file that nodes need not have."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import fedshift\n"
        "@fedshift.METHODS.register('mine')\n"
        "class Mine(fedshift.FedAvg):\n"
        "    '''Half the risk.'''\n"
        "    def risk(self, net, batch, context):\n"
        "        return super().risk(net, batch, context) / 2\n"
    )
    changes = {**THREE, "plugins": [str(plugin)], "method.name": "mine"}
    expected = results(by_workers(make, changes, tmp_path))
    assert results(carried_out(make({**changes, **RAY, "run.out": str(tmp_path / "ray")}))) == expected


def test_an_actor_that_cannot_read_what_a_run_is_says_why():
    """As where a node has another version of fedshift."""
    site = Actor(Kernels())
    site.read_shared(b"no pickle", np.zeros(0, np.uint8), True)
    data, tensors = site.work(b"", np.zeros(0, np.uint8), np.zeros(0, np.uint8), "cpu")
    error = read(data, Packed(tensors), {}, copy=True)
    assert isinstance(error, pickle.UnpicklingError)
    assert error.__notes__[0].startswith("In a Ray actor that reads the run:")


@cluster
def test_data_are_on_a_node_once_and_idle_actors_let_go(make: Make, tmp_path: Path, nodes: Nodes):
    """Two lessons, data and run, in the first round alone; whom one job leaves without work rests."""
    from fedshift.engines.ray_actors import RayActors

    engine, simulation = RayActors(Kernels(), 2, 2), Simulation(make(THREE))
    jobs = jobs_of(simulation)
    for _ in range(2):
        assert all(isinstance(outcome, Outcome) for outcome in engine.train(jobs))
    assert [copy for *_, copy in engine._lessons] == [False, True]
    while not all(actor.ready for actor in engine._pool):
        engine._answered()
    assert len([*engine.train(jobs)]) == 3
    assert [actor._rested for actor in engine._pool] == [False, False]
    assert len([*engine.train(jobs[:1])]) == 1
    assert [actor._rested for actor in engine._pool] == [False, True]
    engine.close()


# The runs of a table on a cluster -------------------------------------------------------------------

GRID = """
name = "grid"
seed = [0, 1, 2, 3, 4, 5]
[data]
name = "rotated-mnist"
images_per_class = 20
[protocol]
name = "in-domain"
[model]
name = "mlp"
hidden = []
dim = 16
[method]
name = ["fedavg", "fedprox"]
[train]
rounds = 40
steps = 4
batch = 8
[evaluate]
every = 1
[run]
checkpoint_every = 5
"""
SPREAD = ["--set", "run.engine=ray", "--set", "run.spread=runs", "--set", "run.workers=2", "--set", "run.address=local"]


@cluster
def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path):
    """Twelve runs on two tasks; after the first four have finished, anyone who started them is killed."""
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "grid.toml").write_text(GRID)
    command = [sys.executable, "-m", "fedshift", "compare", "grid.toml", *SPREAD]
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    folder, last = tmp_path / "runs" / "grid", time.monotonic() + 240
    while len(done := [*folder.glob("*/summary.json")]) < 4:
        assert first.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < last, (tmp_path / "log").read_text()
        time.sleep(0.05)
    first.kill()
    first.wait()
    before = {path: path.stat().st_mtime_ns for path in done}
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stdout + second.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == before
    runs = [Run(path.parent) for path in folder.glob("*/summary.json")]
    assert len(runs) == 12
    for run in runs:
        rounds = Counter(json.loads(line)["position"] for line in (run.path / "records.jsonl").read_text().splitlines())
        assert rounds == Counter(range(1, 41))
    alone = expand({**_table(tmp_path), "run": {"out": str(tmp_path / "alone"), "engine": "sequential", "threads": 1}})
    expected, failed = runner.run_all(alone, Progress())
    assert not failed
    for run in expected:
        its = folder / run.path.name
        assert (its / "weights.safetensors").read_bytes() == (run.path / "weights.safetensors").read_bytes()


def _table(tmp_path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((tmp_path / "grid.toml").read_text())
