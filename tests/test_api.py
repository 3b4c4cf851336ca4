"""The front door: sources and options become the experiments that the command line makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import tomli_w
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make, interrupt_after
from fedshift import Client2Vec, Experiment, FedAvg, FedProx, FedSR
from fedshift.cli import app as cli
from fedshift.cli import before
from fedshift.clients.partitions import IID
from fedshift.clients.protocols import LeaveOneDomainOut
from fedshift.core.servers import SERVERS
from fedshift.datasets.mnist import RotatedMNIST
from fedshift.errors import FedshiftWarning
from fedshift.experiments import NAMED
from fedshift.methods import METHODS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.models.small import MLP
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.study import api
from fedshift.study.api import FIELDS, Options
from fedshift.study.grid import expand, override
from refusal import refuses

SILENT = Progress()


# Names ------------------------------------------------------------------------------------------


def test_every_name_is_there_and_listed():
    assert set(dir(fedshift)) == set(fedshift.__all__)
    assert all(getattr(fedshift, name) is not None for name in fedshift.__all__)
    with pytest.raises(AttributeError, match="FedFoo"):
        _ = fedshift.FedFoo  # type: ignore[attr-defined]  # that is the point


def test_every_method_can_be_imported():
    for name in METHODS:
        cls = METHODS.get(name).cls
        if cls.__module__.startswith("fedshift."):
            assert getattr(fedshift, cls.__name__) is cls


def test_whatever_an_experiment_names_can_be_made_and_registered():
    """Every list, and the class that its entries derive from."""
    for catalogue in (*NAMED.values(), INDICES, ENCODERS, SERVERS):
        name = catalogue.base().__name__
        assert getattr(fedshift, name) is catalogue.base()
        assert any(getattr(fedshift, listed) is catalogue for listed in fedshift.__all__)


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


def test_every_option_has_a_field_and_a_type():
    assert {*FIELDS, "settings", "tuned"} == set(get_type_hints(Options))


def test_options_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The same words give the same experiments, by way of the command line and from Python."""
    seen: list[list[Experiment]] = []
    monkeypatch.setattr(before, "print_estimates", seen.append)
    example = str(Path(__file__).parents[1] / "examples" / "my_prox.py")
    words = (
        f"compare --method fedavg,my-prox --data rotated-mnist --model mlp --hold-out 0,75 --seed 0,1 --rounds 7 "
        f"--device cpu --out {tmp_path} --name mine --plugin {example} --set train.lr=0.1,0.2 --dry-run"
    )
    result = CliRunner().invoke(cli.app, words.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
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


def test_an_experiment_can_be_changed(make: Make):
    one = make({"method.name": "fedprox", "method.mu": 0.7})
    assert fedshift.experiment(one, rounds=9).train.rounds == 9
    assert fedshift.experiment(one, rounds=9).method == one.method
    with pytest.warns(fedshift.FedshiftWarning, match=r"\[method\].* not used: mu"):
        assert fedshift.experiment(one, method="fedsr").method == FedSR()
    with pytest.warns(fedshift.FedshiftWarning, match=r"\[model\].* not used: hidden"):
        assert fedshift.experiment(one, model="cnn").model.dim == one.model.dim == 4
    assert [e.seed for e in fedshift.grid([one], seed=[3, 4], hold_out="dark")] == [3, 4]


def test_choices_may_be_instances_and_tables(tiny_document: dict[str, Any]):
    one = fedshift.experiment(
        tiny_document,
        method=FedSR(l2r=0.05),
        model=MLP(dim=5, hidden=(6, 7)),
        data=RotatedMNIST(images_per_class=10),
        protocol=LeaveOneDomainOut(hold_out="75"),
        partition=IID(clients=2),
    )
    assert one.method == FedSR(l2r=0.05)
    assert one.model == MLP(dim=5, hidden=(6, 7))
    assert one.data == RotatedMNIST(images_per_class=10)
    assert one.protocol == LeaveOneDomainOut(hold_out="75")
    assert one.partition == IID(clients=2)
    assert fedshift.experiment(tiny_document, method={"name": "fedsr", "l2r": 0.05}).method == FedSR(l2r=0.05)
    nested = Client2Vec(base=FedProx(mu=0.3))
    assert fedshift.experiment(tiny_document, method=nested).method == nested


def test_an_instance_is_what_runs(tiny_document: dict[str, Any]):
    """It takes the place of the file's settings and of presets; dotted settings still change it."""
    document = override(tiny_document, {"method.weighting": "samples", "protocol.hold_out": "all"})
    assert fedshift.experiment(document, method=FedAvg(), hold_out="dark").method.weighting == "uniform"
    preset = fedshift.METHODS.get("fediir")()
    assert fedshift.experiment("rotated-mnist", method=preset).method == preset
    assert fedshift.experiment("rotated-mnist", method="fediir").method != preset
    changed = fedshift.experiment(document, method=FedSR(), hold_out="dark", settings={"method.l2r": 0.2})
    assert changed.method == FedSR(l2r=0.2)


def test_other_data_are_another_experiment():
    assert fedshift.grid(data="digits", hold_out="mnist")[0].name == "digits"
    assert fedshift.grid(data=RotatedMNIST())[0].name == "rotated-mnist"
    assert fedshift.grid(data="digits", hold_out="mnist", name="mine")[0].name == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "fedsr"}, ["Unknown option 'methods'", "Did you mean 'method'", "settings="]),
        ({"method": "fedrs"}, ["'fedrs'", "Did you mean 'fedsr'"]),
        ({"method": FedSR}, ["FedSR", "give the name of a method", "an instance"]),
        ({"method": []}, ["method = []", "give the name of a method"]),
        ({"method": ["fedavg", FedAvg()]}, ["same run twice"]),
        ({"seed": [1, 1]}, ["same run twice"]),
        ({"method": {"l2r": 0.1}}, ["a table with a name"]),
        ({"model": ["mlp", "cnn"]}, ["give the name of a model"]),
        ({"rounds": "ten"}, ["train.rounds = 'ten'", "integer"]),
        ({"settings": {"train.lrr": 0.1}}, ["'lrr'", "Did you mean 'lr'"]),
        ({"settings": ["train.lr=0.1"]}, ["settings = ['train.lr=0.1']", "dotted"]),
        ({"plugins": "nowhere.py"}, ["nowhere.py", "does not exist"]),
        ({"name": "a/b"}, ["name = 'a/b'"]),
    ],
    ids=str,
)
def test_a_bad_option_is_named_with_its_fix(options: dict[str, Any], words: list[str]):
    with refuses(*words):
        fedshift.grid(TINY, **options)


@pytest.mark.parametrize("source", [[], 3, [3], None])
def test_a_bad_source_is_named(source: Any):
    with refuses("no experiment", "TOML"):
        fedshift.grid(source)


def test_a_class_without_a_name_says_how_to_register_it():

    class Mine(FedAvg):
        """A method nobody registered."""

    with refuses("Mine", "@fedshift.methods.METHODS.register('name')"):
        fedshift.grid(TINY, method=Mine())


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
    with refuses("describes 2"):
        fedshift.run(tiny_document, method=["fedavg", "fedsr"], progress=SILENT)


def test_where_one_method_is_needed_it_is_the_sources_first(tiny_document: dict[str, Any]):
    document = {**tiny_document, "method": {"name": ["fedprox", "fedavg"]}}
    with pytest.warns(FedshiftWarning, match=r"fedprox, fedavg.*--method fedavg"):
        assert api.experiment(document).method_name == "fedprox"
    for options in ({"method": ["fedprox", "fedavg"]}, {"settings": {"method.name": ["fedprox", "fedavg"]}}):
        with refuses("describes 2"):
            api.experiment(tiny_document, **options)


def test_interrupted_runs_are_resumed_and_loaded(make: Make):
    one = make({"train.rounds": 3})
    with pytest.raises(KeyboardInterrupt):
        fedshift.run(one, progress=interrupt_after(2))
    path = runner.run_path(one)
    assert [run.finished for run in fedshift.load(path).runs] == [False]
    (resumed,) = fedshift.resume(path, SILENT).runs
    assert resumed.finished
    (loaded,) = fedshift.load(str(path)).runs
    assert loaded.model().state_dict().keys() == resumed.model().state_dict().keys()
    with refuses("no run folder", "nowhere'"):
        fedshift.load(path / "nowhere")
    with refuses("no run folder", "run.json"):
        fedshift.Run.open(path / "nowhere")


def test_when_every_run_fails_compare_says_so(tiny_document: dict[str, Any]):
    wild = {"train.lr": 900.0, "train.rounds": 6, "train.momentum": 0.99}
    with refuses("2 of 2 runs", "fedavg-light-seed0"):
        fedshift.compare(tiny_document, seed=[0, 1], settings=wild, progress=SILENT)
    comparison = fedshift.compare(tiny_document, settings={**wild, "train.lr": [900.0, 0.1]}, progress=SILENT)
    assert comparison.failure.startswith("1 of 2 runs failed. fedavg-light-seed0")
    assert fedshift.compare(tiny_document, progress=SILENT).failure == ""


def test_a_frame_has_what_the_records_say(tiny_document: dict[str, Any]):
    """2 methods x 2 seeds x 2 held-out domains x 3 rules x 3 environments (a target and two sources)."""
    comparison = fedshift.compare(
        tiny_document, method=["fedavg", "fedsr"], seed=[0, 1], hold_out=["dark", "light"], progress=SILENT
    )
    frame = comparison.frame()
    assert len(frame) == len(comparison.measurements()) == 2 * 2 * 2 * 3 * 3
    about = ["run", "method", "seed", "hold_out", "rule", "oracle", "position", "stage", "round"]
    assert [*frame.columns] == [*about, "environment", "role", "model", "models", "accuracy", "loss", "n"]
    assert set(frame[frame["oracle"]]["rule"]) == {"target_best"}
    last = frame[(frame["rule"] == "last") & (frame["role"] == "test")]
    for method, mean in last.groupby("method")["accuracy"].mean().items():
        assert mean == pytest.approx(comparison.accuracy(str(method)))
    record = comparison.runs[0].records[-1]["environments"][0]
    row = last[(last["run"] == comparison.runs[0].path.name) & (last["environment"] == record["environment"])].iloc[0]
    assert (row["accuracy"], row["loss"], row["n"]) == (record["accuracy"], record["loss"], record["n"])


def test_without_pandas_measurements_are_left(make: Make, monkeypatch: pytest.MonkeyPatch):
    comparison = fedshift.compare(make(), progress=SILENT)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refuses("measurements()", "fedshift[pandas]"):
        comparison.frame()
    assert comparison.measurements()[0]["method"] == "fedavg"


def test_estimate_has_a_line_for_each_row(tiny_document: dict[str, Any]):
    plain, other = fedshift.estimate(tiny_document, method=["fedavg", "fedpin"], seed=[0, 1])
    assert [(line.label, line.runs) for line in (plain, other)] == [("fedavg", 2), ("fedpin", 2)]
    assert (plain.cost.rounds, plain.cost.steps) == (2, 8)
    assert not Path(tiny_document["run"]["out"]).exists()


def test_index_is_of_client2vec_unless_another_is_given(tiny_document: dict[str, Any]):
    settings = {"method.index": {"name": "feature-average", "encoder": {"name": "offline", "size": 16}}}
    made = fedshift.index(tiny_document, settings=settings, progress=SILENT)
    assert made.clients == ("dark", "gray")
    assert made.feature.shape == (2, 16)
    with refuses("'fedavg'", "index", "method.name=client2vec"):
        fedshift.index(tiny_document, method="fedavg", progress=SILENT)
    (same,) = expand(override(tiny_document, {"method.name": "client2vec", **settings}))
    assert fedshift.index(same, progress=SILENT).feature.equal(made.feature)
