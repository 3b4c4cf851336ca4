"""Bad input: one readable message that names the value and the fix, exit code 2, and nothing is lost."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from PIL import Image
from torch import Tensor

import fedshift
import fresh
from conftest import CNN_WITH_BN, TINY, AfterRound, Make, go_on, results, resume
from fedshift.cli import app
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples
from fedshift.errors import DivergedError
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.runs.simulation import Simulation
from fedshift.study.api import load
from fedshift.study.grid import expand, override, read
from refusal import refuses


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.name": "fedsrr"}, ["method", "'fedsrr'", "Did you mean 'fedsr'?"]),
        ({"data.name": "rotated-minst"}, ["data set", "Did you mean 'rotated-mnist'?"]),
        ({"model.name": "resnet-18"}, ["model", "Did you mean 'resnet18'?"]),
        ({"protocol.name": "leave-one-out"}, ["protocol", "Did you mean 'leave-one-domain-out'?"]),
        ({"method.mu": 0.1}, ["field", "'mu'", "fedavg"]),
        ({"train.learning_rate": 0.1}, ["field of [train]", "'learning_rate'"]),
        ({"train.round": 1}, ["Did you mean 'rounds'?"]),
        ({"trian.rounds": 1}, ["field of [experiment]", "Did you mean 'train'?"]),
        ({"train.lr": -1}, ["train.lr = -1", "greater than 0"]),
        ({"train.lr": "fast"}, ["train.lr = 'fast'", "number"]),
        ({"train.unit": "rounds"}, ["train.unit = 'rounds'", "'steps' or 'epochs'"]),
        ({"train.participation": 1.5}, ["train.participation = 1.5", "less than or equal to 1"]),
        ({"method.weighting": "size"}, ["method.weighting = 'size'", "'uniform' or 'samples'"]),
        ({"protocol.hold_out": "bright"}, ["domain to hold out 'bright'", "dark, gray, light"]),
        ({"run.device": "tpu"}, ["run.device = 'tpu'"]),
        ({"train": 5}, ["train = 5", "[train]"]),
        ({"method.fedsr": 3}, ["'fedsr'"]),
        ({"method": {"name": "fedsr", "preset": "pasc"}}, ["preset 'pasc'", "Did you mean 'pacs'?"]),
        ({"method.name": []}, ["method.name = []"]),
        ({"method.name": ["fedavg", "fedavg"]}, ["each once"]),
        ({"plugins": "mine.py"}, ["plugins = 'mine.py'", "list of paths"]),
        ({"name": "../up"}, ["name = '../up'", "no slash"]),
        ({"train.lr": float("inf")}, ["train.lr = inf", "finite"]),
        ({"seed": True}, ["seed = True", "integer"]),
        ({"run.device": "meta"}, ["run.device = 'meta'"]),
        ({"seed": "abc"}, ["seed = 'abc'", "integer"]),
        ({"data": {"name": "rotated-mnist", "angles": []}}, ["data.angles = []"]),
        ({"protocol": {}}, ["leave-one-domain-out' needs hold_out"]),
        ({"seed": []}, ["seed is an empty list"]),
        ({"plugins": ["none.py"]}, ["plugin", "none.py", "does not exist"]),
        ({"model.name": "cnn", "data.name": "folder"}, ["data set 'folder' needs path", "--set data.path="]),
    ],
)
def test_the_message_names_the_value_and_the_fix(
    tiny_document: dict[str, Any], changes: dict[str, Any], words: list[str]
):
    with refuses(*words) as caught:
        for experiment in expand(override(tiny_document, changes)):
            Simulation(experiment)
    assert "\n" not in str(caught.value)


def test_a_method_given_by_python_is_checked_too():
    from fedshift.methods.fedsr import FedSR

    with refuses("method.l2r = -1", "equal to 0"):
        FedSR(l2r=-1)


def test_an_experiment_file_that_is_missing_or_no_toml(tmp_path: Path):
    with refuses("'rotated-minst'", "'rotated-mnist'"):
        read("rotated-minst")
    with refuses("no.toml'", "does not exist", "TOML"):
        read(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with refuses("bad.toml'", "TOML"):
        read(tmp_path / "bad.toml")


def folder_of_images(root: Path, skip: tuple[str, str] | None = None) -> None:
    for domain in ("photo", "sketch"):
        for label in ("cat", "dog"):
            if (domain, label) == skip:
                continue
            (root / domain / label).mkdir(parents=True)
            for number in range(6):
                Image.new("RGB", (12, 12), (40 * number, 0, 90)).save(root / domain / label / f"{number}.png")


def folder_experiment(document: dict[str, Any], root: Path) -> dict[str, Any]:
    return override(
        document, {"data.name": "folder", "data.path": str(root), "data.size": 10, "protocol.hold_out": "sketch"}
    )


def test_a_class_missing_in_a_domain(tiny_document: dict[str, Any], tmp_path: Path):
    folder_of_images(tmp_path / "images", skip=("sketch", "dog"))
    document = folder_experiment(tiny_document, tmp_path / "images")
    with refuses("'dog'", "'sketch'", "data.missing_classes=allow"):
        Simulation(*expand(document))
    Simulation(*expand(override(document, {"data.missing_classes": "allow"})))


def test_an_unreadable_image_is_named_by_its_path(tiny_document: dict[str, Any], tmp_path: Path):
    folder_of_images(tmp_path / "images")
    broken = tmp_path / "images" / "photo" / "cat" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with refuses(str(broken)):
        Simulation(*expand(folder_experiment(tiny_document, tmp_path / "images")))


def test_a_loss_that_is_not_finite_names_its_place_and_keeps_the_checkpoint(make: Make):
    def poison(position: int) -> None:
        if position == 4:
            simulation.site.federated = with_inputs(simulation.federated, 1, lambda x: x * float("nan"))

    experiment = make({"train.rounds": 6, "run.checkpoint_every": 3})
    simulation = Simulation(experiment)
    folder = RunFolder.create(experiment, runner.run_path(experiment))
    (error,) = runner.carry_out(
        [(simulation, folder)], simulation.choice(lambda text: None), AfterRound(poison)
    ).values()
    assert re.search(r"client 'gray', round 5, phase 'train', step 1.*train.lr=0.01", str(error))
    resume(folder)  # the data are sound again, and the checkpoint of round 3 was kept
    assert folder.finished


def test_a_run_folder_is_never_overwritten(make: Make):
    experiment = make()
    folder = runner.start(experiment, Progress())
    before = folder.weights_file.read_bytes()
    with refuses("exists", "finished", "fedshift report"):
        runner.start(experiment, Progress())
    assert folder.weights_file.read_bytes() == before


class Noted(Progress):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
def test_a_run_whose_checkpoint_is_damaged_is_made_again(make: Make, keep: int):
    folder = unfinished(make(CNN_WITH_BN))
    (file,) = folder.path.glob("checkpoint@*")
    before, damaged = results(folder), file.read_bytes()[:keep]
    file.write_bytes(damaged)
    noted = Noted()
    resume(folder, noted)
    (note,) = noted.notes
    assert re.search(r"made again from its first round, alone: .*checkpoint@2.safetensors' is damaged", note)
    assert (folder.path / "damaged-1" / file.name).read_bytes() == damaged
    assert results(folder) == before


def test_a_checkpoint_of_another_experiment(make: Make):
    folder, other = unfinished(make()), unfinished(make({"train.lr": 0.05}))
    before = results(folder)
    for file in other.path.glob("*-2.json"):
        (folder.path / file.name).write_bytes(file.read_bytes())
    resume(folder)
    assert results(folder) == before


def with_inputs(federation: FederatedData, client: int, change: Callable[[Tensor], Tensor]) -> FederatedData:
    """The federation with other inputs of one client."""
    clients = list(federation.clients)
    train = clients[client].train
    clients[client] = replace(clients[client], train=Samples(change(train.x), train.y))
    return replace(federation, clients=tuple(clients))


def unfinished(experiment) -> RunFolder:
    folder = runner.start(experiment, Progress())
    (folder.path / "manifest.json").unlink()
    return folder


def test_a_full_disk_keeps_the_last_checkpoint(make: Make, monkeypatch: pytest.MonkeyPatch):
    """The disk fills while the second checkpoint is written."""
    experiment = make({"train.rounds": 6, "run.checkpoint_every": 2})
    synced = os.fsync
    state = {"full": False}

    def fsync(descriptor: int) -> None:
        if state["full"]:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    def fill(position: int) -> None:
        state["full"] = position >= 4

    monkeypatch.setattr(os, "fsync", fsync)
    with refuses("cannot be written", "No space left", "fedshift resume"):
        runner.start(experiment, AfterRound(fill))
    state["full"] = False
    folder = RunFolder.open(runner.run_path(experiment))
    assert not list(folder.path.glob(".*.new"))
    resume(folder)
    assert [record["position"] for record in folder.records()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_standard_output_is_one_line_and_exit_code_1():
    command = [sys.executable, "-m", "fedshift", "list"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_really_full_device(tmp_path: Path):
    from fedshift import files

    (tmp_path / "records.jsonl").symlink_to("/dev/full")
    with refuses("records.jsonl", "No space left", "fedshift resume"):
        files.append(tmp_path / "records.jsonl", "x" * 100_000)


def test_the_command_line_prints_one_message_and_exits_with_2():
    done = fresh.command("run", "--method", "fedsrr")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert [word for word in ("'fedsrr'", "'fedsr'") if word not in done.stderr] == []
    assert done.stderr.count("\n") == 1
    assert "Traceback" in fresh.command("run", "--method", "fedsrr", "--debug").stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.\nC++"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_used_up_memory_is_one_line_and_exit_code_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    monkeypatch.setattr(sys, "argv", ["fedshift", "compare"])
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # which main() wraps
    with pytest.raises(SystemExit) as stopped:
        app.main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in ("Error: ", "train.batch", "run.together", "fedshift resume"))


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch):
    def fail(arguments: list[str]) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(app, "app", fail)
    monkeypatch.setattr(sys, "argv", ["fedshift", "compare"])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with pytest.raises(RuntimeError, match="shapes"):
        app.main()


def test_a_run_whose_memory_was_used_up_goes_on(make: Make):
    def call(position: int) -> None:
        if position == 2:
            raise MemoryError

    experiment = make({"train.rounds": 3, "run.checkpoint_every": 1})
    with pytest.raises(MemoryError):
        runner.start(experiment, AfterRound(call))
    (folder,), failed = runner.resume(runner.below(runner.run_path(experiment)), Progress())
    assert not failed
    assert folder.damage() == ""


def test_run_refuses_a_grid(tmp_path: Path, tiny_document: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "grid.toml"
    file.write_text(tomli_w.dumps(override(tiny_document, {"seed": [0, 1]})))
    monkeypatch.setattr(sys, "argv", ["fedshift", "run", str(file)])
    with pytest.raises(SystemExit) as stopped:
        app.main()
    assert stopped.value.code == 2


def test_an_error_in_a_loss_says_where_it_happened(make: Make):

    from fedshift.methods.fedavg import FedAvg

    class Broken(FedAvg):
        """Divides by zero."""

        def loss(self, net, batch, context):
            raise ZeroDivisionError("no")

    from conftest import simulate

    with pytest.raises(ZeroDivisionError) as caught:
        simulate(make().replace(method=Broken()))
    assert caught.value.__notes__ == [
        "This happened at client 'dark', round 1, phase 'train', step 1, objective 'train'."
    ]


Cut = Callable[[list[str]], list[str]]
CUTS: dict[str, Cut] = {
    "a line is missing": lambda lines: lines[:1] + lines[2:],
    "the end is missing": lambda lines: lines[:-1],
    "all is missing": lambda lines: [],
    "lines changed places": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a number was changed": lambda lines: [*lines[:-1], re.sub(r'"accuracy": [0-9.]+', '"accuracy": 0.5', lines[-1])],
    "a line is no record": lambda lines: ["5\n", *lines[1:]],
    "a line comes twice": lambda lines: [lines[0], *lines],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("finished", [True, False])
def test_records_that_are_not_those_that_were_made(make: Make, cut: str, finished: bool):
    """They are not reported, and the run is made again."""
    folder = runner.start(make({"train.rounds": 4}), Progress())
    before, file = results(folder), folder.path / "records.jsonl"
    if not finished:
        (folder.path / "manifest.json").unlink()
    file.write_text("".join(CUTS[cut](file.read_text().splitlines(keepends=True))))
    folder = RunFolder.open(folder.path)
    with refuses("records.jsonl", "`fedshift resume"):
        load(folder.path)
    noted = Noted()
    resume(folder, noted)
    assert "made again from its first round" in noted.notes[0]
    assert (results(folder), folder.finished) == (before, True)
    assert load(folder.path).runs[0].summary["last"]["position"] == 4


def test_records_of_another_run_are_not_taken(make: Make):
    folder, other = (runner.start(make({"seed": seed}), Progress()) for seed in (0, 1))
    for name in ("records.jsonl", "manifest.json"):
        (folder.path / name).write_bytes((other.path / name).read_bytes())
    with refuses("another run", "fedshift resume"):
        load(folder.path)


@pytest.mark.parametrize("finished", [True, False])
def test_an_experiment_that_was_changed_after_its_run_began(make: Make, finished: bool):
    """Its folder is named after another one; [run] alone may be changed, which decides nothing."""
    folder = runner.start(make(), Progress()) if finished else unfinished(make())
    text = folder.experiment_file.read_text()
    folder.experiment_file.write_text(text.replace("checkpoint_every = 10", "checkpoint_every = 7"))
    assert folder.table()["run"]["checkpoint_every"] == 7
    folder.experiment_file.write_text(text.replace("lr = 0.1", "lr = 0.2"))
    for ask in (folder.table, lambda: load(folder.path), folder.experiment):
        with refuses("experiment.toml", "another experiment", "Undo"):
            ask()


def test_an_experiment_that_was_changed_before_its_first_round(make: Make):
    experiment = make()
    folder = RunFolder.create(experiment, runner.run_path(experiment))
    text = folder.experiment_file.read_text()
    folder.experiment_file.write_text(text.replace("lr = 0.1", "lr = 0.2"))
    with refuses("experiment.toml", "another experiment", "Undo"):
        resume(folder)
    assert not (folder.path / "records.jsonl").exists()


def test_what_a_kill_before_the_beginning_leaves_is_no_obstacle(make: Make):
    experiment = make()
    path = runner.run_path(experiment)
    path.mkdir(parents=True)
    (path / "environment.json").write_text("{}")
    (path / ".experiment.toml.999.new").write_text("name")
    assert runner.start(experiment, Progress()).finished


def test_a_blow_up_in_the_last_step_is_seen(make: Make):
    """One step from a sound loss to weights that are not finite any more."""
    simulation = Simulation(make({"train.steps": 1, "train.rounds": 1, "train.lr": 1000.0}))
    simulation.site.federated = with_inputs(simulation.federated, 0, lambda x: x * 1e36)
    with refuses("not finite", "'dark'", "--set train.lr", error=DivergedError):
        go_on(simulation)


def test_a_term_that_is_no_scalar(make: Make):

    from torch.nn import functional as F

    from fedshift.methods.fedavg import FedAvg

    class Vector(FedAvg):
        """Forgets the mean."""

        def loss(self, net, batch, context):
            return {"cross_entropy": F.cross_entropy(net.head(net.encoder(batch.x)), batch.y, reduction="none")}

    with refuses("'cross_entropy'", "'train'", "shape (4,)", "scalar"):
        _first_round(make().replace(method=Vector()))


def _first_round(experiment) -> None:
    simulation = Simulation(experiment)
    go_on(simulation)


def test_one_bad_run_of_a_grid_does_not_keep_the_others_from_theirs(make: Make, tmp_path: Path):
    """The second held-out domain does not exist: the first run's result is there, and the error names the second."""
    document = override(TINY, {"run.out": str(tmp_path), "protocol.hold_out": ["light", "lihgt"]})
    comparison = fedshift.compare(document, progress=Progress())
    assert len(comparison.folders) == 1
    (message,) = comparison.failed
    assert "lihgt" in message
    assert "Did you mean 'light'" in message
    with refuses("'lihgt'", "'light'"):
        fedshift.compare({**document, "protocol": {"name": "leave-one-domain-out", "hold_out": "lihgt"}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.name": "client2vec", "method.index": "file"}, ["--set method.index.path="]),
        ({"method.name": "client2vec", "method.base": {"name": "fedavg", "mu": 1.0}}, ["[method.base]", "'mu'"]),
        ({"method.name": "client2vec", "method.base": "centralised"}, ["pools the clients"]),
        ({"method.name": "client2vec", "method.local_weight": "foo"}, ["number", "'strategy'", "'base'"]),
        ({"method.name": "fedavg", "method.index": {"epochs": 2}}, ["Unknown field of [method]", "'index'"]),
        ({"model.hidden": "wide"}, ["model.hidden", "integer"]),
    ],
)
def test_nested_settings_name_themselves(make: Make, changes: dict[str, Any], words: list[str]):
    with refuses(*words):
        make(changes)


def test_a_single_value_is_a_list_of_one(make: Make):
    assert make({"model.hidden": 8}).model == make({"model.hidden": [8]}).model


def test_an_empty_path_is_not_the_current_folder():
    from fedshift.datasets.digits import Digits

    assert Digits(photographs="").with_absolute_paths().photographs == ""
