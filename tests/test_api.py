"""The front door: sources and options become the experiments that the command line makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedshift
from conftest import TINY, Make, interrupt_after
from fedshift import Client2Vec, Experiment, FedAvg, FedProx, FedSR
from fedshift.cli import before
from fedshift.clients.partitions import IID
from fedshift.clients.protocols import LeaveOneDomainOut
from fedshift.datasets.mnist import RotatedMNIST
from fedshift.models.small import MLP
from fedshift.runs import scheduling
from fedshift.runs.events import Progress
from fedshift.study.grid import override
from fresh import ok
from refusal import refuses

SILENT = Progress()


# Names ------------------------------------------------------------------------------------------


def test_every_name_is_there_and_listed():
    assert set(dir(fedshift)) == set(fedshift.__all__)
    assert all(getattr(fedshift, name) is not None for name in fedshift.__all__)
    with pytest.raises(AttributeError, match="FedFoo"):
        _ = fedshift.FedFoo  # type: ignore[attr-defined]  # that is the point


def test_names_are_imported_when_they_are_used():
    heavy = "print(*sys.modules.keys() & {'torch', 'pandas', 'matplotlib'})"
    code = f"import sys, fedshift; dir(fedshift); {heavy}; fedshift.compare; {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\ntorch\n"


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(given: str | None, expected: str):
    """OpenMP reads the variable when torch is loaded, so `import fedshift` alone has to set it."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    code = "import sys, fedshift, os; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected} False\n"


# Experiments ------------------------------------------------------------------------------------


def test_options_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The same words give the same experiments, by way of the command line and from Python."""
    seen: list[list[Experiment]] = []
    monkeypatch.setattr(before, "print_estimates", seen.append)
    example = str(Path(__file__).parents[1] / "examples" / "my_prox.py")
    words = (
        f"compare --method fedavg,my-prox --data rotated-mnist --model mlp --hold-out 0,75 --seed 0,1 --rounds 7 "
        f"--device cpu --out {tmp_path} --name mine --plugin {example} --set train.lr=0.1,0.2 --dry-run"
    )
    ok(*words.split())
    assert seen == [
        fedshift.grid(
            method=["fedavg", "my-prox"],
            data="rotated-mnist",
            model="mlp",
            hold_out=["0", "75"],
            seed=range(2),
            rounds=7,
            device="cpu",
            out=tmp_path,
            name="mine",
            plugins=example,
            settings={"train.lr": (0.1, 0.2)},
        )
    ]
    assert len(seen[0]) == 16


def test_sources_of_every_kind(make: Make, tiny_document: dict[str, Any], tmp_path: Path):
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(tiny_document))
    one = make()
    assert (
        fedshift.grid(tiny_document) == fedshift.grid(file) == fedshift.grid(str(file)) == fedshift.grid(one) == [one]
    )
    assert fedshift.experiment(one) is one
    assert fedshift.grid("rotated-mnist") == fedshift.grid()
    assert fedshift.grid([one, make({"seed": 1})]) == [one, make({"seed": 1})]


def test_choices_may_be_instances_and_tables(tiny_document: dict[str, Any]):
    chosen = {
        "method": FedSR(l2r=0.05),
        "model": MLP(dim=5, hidden=(6, 7)),
        "data": RotatedMNIST(images_per_class=10),
        "protocol": LeaveOneDomainOut(hold_out="75"),
        "partition": IID(clients=2),
    }
    one = fedshift.experiment(tiny_document, **chosen)
    assert {name: getattr(one, name) for name in chosen} == chosen
    assert fedshift.experiment(tiny_document, method={"name": "fedsr", "l2r": 0.05}).method == FedSR(l2r=0.05)
    nested = Client2Vec(base=FedProx(mu=0.3))
    assert fedshift.experiment(tiny_document, method=nested).method == nested


def test_an_instance_is_what_runs(tiny_document: dict[str, Any]):
    """It takes the place of the file's settings and of presets; dotted settings still change it."""
    document = override(tiny_document, {"method.weighting": "samples", "protocol.hold_out": "all"})
    assert fedshift.experiment(document, method=FedAvg(), hold_out="dark").method.weighting == "uniform"
    changed = fedshift.experiment(document, method=FedSR(), hold_out="dark", settings={"method.l2r": 0.2})
    assert changed.method == FedSR(l2r=0.2)
    assert fedshift.grid(data="digits", hold_out="mnist")[0].name == "digits"  # other data are another experiment


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "fedsr"}, ["Unknown option 'methods'", "Did you mean 'method'", "settings="]),
        ({"method": "fedrs"}, ["'fedrs'", "Did you mean 'fedsr'"]),
        ({"method": FedSR}, ["FedSR", "give the name of a method", "an instance"]),
        ({"method": ["fedavg", FedAvg()]}, ["same run twice"]),
        ({"method": {"l2r": 0.1}}, ["a table with a name"]),
        ({"rounds": "ten"}, ["train.rounds = 'ten'", "integer"]),
        ({"settings": ["train.lr=0.1"]}, ["settings = ['train.lr=0.1']", "dotted"]),
        ({"name": "a/b"}, ["name = 'a/b'"]),
    ],
    ids=str,
)
def test_a_bad_option_is_named_with_its_fix(options: dict[str, Any], words: list[str]):
    with refuses(*words):
        fedshift.grid(TINY, **options)


def test_a_bad_source_is_named():
    for source in ([], 3, [3], None):
        with refuses("not an experiment", "TOML"):
            fedshift.grid(source)  # type: ignore[arg-type]  # that is the point


# Runs -------------------------------------------------------------------------------------------


def test_run_carries_out_one_run(tiny_document: dict[str, Any]):
    run = fedshift.run(tiny_document, method=FedSR(l2r=0.05), progress=SILENT)
    assert run.finished
    assert run.experiment.method == FedSR(l2r=0.05)
    assert run.path.parent.name == "tiny"
    assert run.summary["last"]["position"] == run.records[-1]["position"] == 2
    assert run.messages["train"]["up"]["bytes"] > 0
    assert run.notes == []
    assert "encoder.body.1.weight" in run.weights
    with refuses("exists", "fedshift report", "run.out"):
        fedshift.run(tiny_document, method=FedSR(l2r=0.05), progress=SILENT)
    with refuses("2 runs", "fedshift compare", "--seed"):
        fedshift.run(tiny_document, seed=[0, 1], progress=SILENT)


def test_interrupted_runs_are_resumed_and_loaded(make: Make):
    one = make({"train.rounds": 3})
    with pytest.raises(KeyboardInterrupt):
        fedshift.run(one, progress=interrupt_after(2))
    path = scheduling.run_path(one)
    assert [run.finished for run in fedshift.load(path).runs] == [False]
    (resumed,) = fedshift.resume(path, SILENT).runs
    assert resumed.finished
    (loaded,) = fedshift.load(str(path)).runs
    assert loaded.model().state_dict().keys() == resumed.model().state_dict().keys()
    with refuses("No run folder", "nowhere'"):
        fedshift.load(path / "nowhere")
    with refuses("not a run folder", "run.json"):
        fedshift.Run.open(path / "nowhere")


def test_a_frame_has_what_the_records_say(tiny_document: dict[str, Any]):
    """2 methods x 2 seeds x 2 held-out domains x 3 rules x 3 environments (a target and two sources)."""
    comparison = fedshift.compare(
        tiny_document, method=["fedavg", "fedsr"], seed=[0, 1], hold_out=["dark", "light"], progress=SILENT
    )
    frame = comparison.frame()
    assert len(frame) == len(comparison.measurements()) == 2 * 2 * 2 * 3 * 3
    about = ["run", "method", "seed", "hold_out", "rule", "oracle", "position", "stage", "round"]
    scores = ["environment", "role", "model", "models", "accuracy", "loss", "n", "accuracy low", "accuracy high"]
    assert [*frame.columns] == [*about, *scores]
    assert set(frame[frame["oracle"]]["rule"]) == {"target_best"}
    last = frame[(frame["rule"] == "last") & (frame["role"] == "test")]
    for method, mean in last.groupby("method")["accuracy"].mean().items():
        assert mean == pytest.approx(comparison.accuracy(str(method)))
