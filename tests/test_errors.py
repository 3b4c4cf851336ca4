"""Bad input: one readable message that names the value and the fix, exit code 2, and nothing is lost."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedshift
import fresh
from conftest import TINY, AfterRound, Make, go_on, results, resume, simulate
from fedshift.cli import main
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples
from fedshift.engines.divergence import smaller_rate
from fedshift.errors import DivergedError
from fedshift.runs import runner, scheduling
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation
from fedshift.study.api import load
from fedshift.study.grid import expand, override
from refusal import refuses


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.name": "fedsrr"}, ["method", "'fedsrr'", "Did you mean 'fedsr'?"]),
        ({"method.mu": 0.1}, ["field", "'mu'", "fedavg"]),
        ({"train.round": 1}, ["Did you mean 'rounds'?"]),
        ({"trian.rounds": 1}, ["field of [experiment]", "Did you mean 'train'?"]),
        ({"train.lr": -1}, ["train.lr = -1", "greater than 0"]),
        ({"train.lr": "fast"}, ["train.lr = 'fast'", "number"]),
        ({"train.unit": "rounds"}, ["train.unit = 'rounds'", "'steps' or 'epochs'"]),
        ({"protocol.hold_out": "bright"}, ["domain to hold out 'bright'", "dark, gray, light"]),
        ({"train": 5}, ["train = 5", "[train]"]),
        ({"method": {"name": "fedsr", "preset": "pasc"}}, ["preset 'pasc'", "Did you mean 'pacs'?"]),
        ({"method.name": ["fedavg", "fedavg"]}, ["each once"]),
        ({"name": "../up"}, ["name = '../up'", "no slash"]),
        ({"train.lr": float("inf")}, ["train.lr = inf", "finite"]),
        ({"seed": True}, ["seed = True", "integer"]),
        ({"protocol": {}}, ["leave-one-domain-out' needs hold_out"]),
        ({"seed": []}, ["seed is an empty list"]),
        ({"model.name": "cnn", "data.name": "folder"}, ["data set 'folder' needs path", "--set data.path="]),
        ({"method.name": "client2vec", "method.index": "file"}, ["--set method.index.path="]),
        ({"method.name": "client2vec", "method.base": {"name": "fedavg", "mu": 1.0}}, ["[method.base]", "'mu'"]),
        ({"method.name": "client2vec", "method.base": "centralised"}, ["'centralised'", "share an encoder"]),
    ],
)
def test_the_message_names_the_value_and_the_fix(
    tiny_document: dict[str, Any], changes: dict[str, Any], words: list[str]
):
    with refuses(*words) as caught:
        for experiment in expand(override(tiny_document, changes)):
            Simulation(experiment)
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_not_finite_names_its_place_and_keeps_the_checkpoint(make: Make):
    def poison(position: int) -> None:
        if position == 4:
            simulation.site.federated = with_inputs(simulation.federated, 1, lambda x: x * float("nan"))

    experiment = make({"train.rounds": 6, "run.checkpoint_every": 3})
    simulation = Simulation(experiment)
    folder = Run.create(experiment, scheduling.run_path(experiment))
    (error,) = runner.run_together(
        [(simulation, folder)], simulation.choice(lambda text: None), AfterRound(poison)
    ).values()
    assert re.search(r"client 'gray', round 5, phase 'train', step 1.*train.lr=0.01", str(error))
    resume(folder)  # the data are sound again, and the checkpoint of round 3 was kept
    assert folder.finished


def test_a_run_folder_is_never_overwritten(make: Make):
    experiment = make()
    folder = runner.start(experiment, Progress())
    before = (folder.path / "weights.safetensors").read_bytes()
    with refuses("exists", "finished", "fedshift report"):
        runner.start(experiment, Progress())
    assert (folder.path / "weights.safetensors").read_bytes() == before


def with_inputs(federation: FederatedData, client: int, change: Callable[[Tensor], Tensor]) -> FederatedData:
    """The federation with other inputs of one client."""
    clients = list(federation.clients)
    train = clients[client].train
    clients[client] = replace(clients[client], train=Samples(change(train.x), train.y))
    return replace(federation, clients=tuple(clients))


def test_a_traceback_is_printed_where_it_is_asked_for():
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

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # which main() wraps
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in ("Error: ", "train.batch", "run.together", "fedshift resume"))


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch):
    def fail(arguments: list[str]) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with pytest.raises(RuntimeError, match="shapes"):
        main.main()


def test_an_error_in_a_loss_says_where_it_happened(make: Make):
    class Broken(fedshift.FedAvg):
        """Divides by zero."""

        def risk(self, net, batch, context):
            raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError) as caught:
        simulate(make().replace(method=Broken()))
    assert caught.value.__notes__ == [
        "This happened at client 'dark', round 1, phase 'train', step 1, objective 'train'."
    ]


CUTS: dict[str, Callable[[list[str]], list[str]]] = {
    "a line is missing": lambda lines: lines[:1] + lines[2:],
    "lines changed places": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a number was changed": lambda lines: [*lines[:-1], re.sub(r'"accuracy": [0-9.]+', '"accuracy": 0.5', lines[-1])],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("finished", [True, False])
def test_records_that_are_not_those_that_were_made(make: Make, cut: str, finished: bool):
    """They are not reported, and the run is made again."""
    folder = runner.start(make({"train.rounds": 4}), Progress())
    before, file = results(folder), folder.path / "records.jsonl"
    if not finished:
        (folder.path / "summary.json").unlink()
    file.write_text("".join(CUTS[cut](file.read_text().splitlines(keepends=True))))
    folder = Run.open(folder.path)
    with refuses("records.jsonl", "`fedshift resume"):
        load(folder.path)
    notes: list[str] = []
    progress = Progress()
    progress.note = notes.append  # type: ignore[method-assign]  # a test's own
    resume(folder, progress)
    assert "repeated from its first round" in notes[0]
    assert (results(folder), folder.finished) == (before, True)
    assert load(folder.path).runs[0].summary["last"]["position"] == 4


def test_an_experiment_that_was_changed_after_its_run_began(make: Make):
    """Its folder is named after another one; [run] alone may be changed, which decides nothing."""
    folder = runner.start(make(), Progress())
    text = folder.experiment_file.read_text()
    folder.experiment_file.write_text(text.replace("checkpoint_every = 10", "checkpoint_every = 7"))
    assert Run(folder.path).table["run"]["checkpoint_every"] == 7
    folder.experiment_file.write_text(text.replace("lr = 0.1", "lr = 0.2"))
    for ask in (lambda: load(folder.path), Run(folder.path).resumable_experiment):
        with refuses("experiment.toml", "another experiment", "Undo"):
            ask()


def test_a_blow_up_in_the_last_step_is_seen(make: Make):
    """One step from a sound loss to weights that are not finite any more."""
    simulation = Simulation(make({"train.steps": 1, "train.rounds": 1, "train.lr": 1000.0}))
    simulation.site.federated = with_inputs(simulation.federated, 0, lambda x: x * 1e36)
    with refuses("not finite", "'dark'", "--set train.lr", error=DivergedError):
        go_on(simulation)


def test_one_bad_run_of_a_grid_does_not_keep_the_others_from_theirs(make: Make, tmp_path: Path):
    """The second held-out domain does not exist: the first run's result is there, and the error names the second."""
    document = override(TINY, {"run.out": str(tmp_path), "protocol.hold_out": ["light", "lihgt"]})
    comparison = fedshift.compare(document, progress=Progress())
    assert len(comparison.runs) == 1
    (message,) = comparison.failed
    assert "lihgt" in message
    assert "Did you mean 'light'" in message


# Why a loss is not finite ------------------------------------------------------------------------------


class _Logarithm(nn.Module):
    """Gives NaN from the first step on."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 100).log()


def _why_diverged(x: Any, **requested: Any) -> str:
    y = np.arange(80) % 2
    data = pd.DataFrame(x, columns=["age", "iron"])
    sites = {"a": (data[:40], y[:40]), "b": (data[40:], y[40:])}
    settings = {"run.engine": "sequential", **requested.pop("settings", {})}
    requested = {"data": sites, "method": "fedavg", "model": "mlp", "rounds": 3, "settings": settings, **requested}
    with pytest.raises(DivergedError) as caught:
        fedshift.compare(progress=Progress(), **requested)
    return str(caught.value)


def test_why_a_loss_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A column, a network that gives no number, or the rate: no other is suggested, and none above 0.1."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(80, 2))
    column = _why_diverged(x * [1, 1e38])
    assert "the column 'iron' has inputs as large as" in column
    assert "--set data.exclude=iron" in column
    network = _why_diverged(x, model=_Logarithm)
    assert "step 1," in network
    assert "before any step was taken" in network
    assert "train.lr" not in column + network
    assert _why_diverged(x, settings={"train.lr": 900.0}).endswith("--set train.lr=0.1")


@pytest.mark.parametrize(("lr", "said"), [(0.5, "train.lr=0.05"), (4.0, "train.lr=0.1"), (1e-6, "is small already")])
def test_the_rate_that_is_suggested(make: Make, lr: float, said: str):
    assert said in smaller_rate(Simulation(make({"train.lr": lr})).setup)


def test_a_column_of_prepared_rows_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In rows that no client trains on: of b alone, which is held out. Numbers come before categories in inputs."""
    monkeypatch.chdir(tmp_path)
    lines = ["sex,age,iron,site,label"]
    for row in range(80):
        iron = "1e38" if row == 79 else str(row % 7 / 1000)
        lines.append(f"{'fm'[row % 2]},{row % 9},{iron},{'abc'[row % 3]},{'xy'[row % 5 // 3]}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = {"name": "table", "path": "t.csv", "domain": "site", "statistics": "pooled"}
    with refuses("'b'", "the column 'iron' has inputs as large as", "data.exclude=iron", error=DivergedError):
        fedshift.compare(
            hold_out="b", method="fedavg", model="mlp", rounds=1, progress=Progress(), settings={"data": data}
        )
