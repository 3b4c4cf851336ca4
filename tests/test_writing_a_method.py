"""The code of docs/writing-a-method.md equals the files in examples/, and it runs."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from types import ModuleType

import pytest
import torch
from torch import nn

import fresh
from conftest import CNN_WITH_BN, Make, names_sent, simulate, states
from fedshift import FedAvg
from fedshift.core.contract import Batch, ServerState
from fedshift.core.net import Net, holder
from fedshift.core.tensors import SAMPLES, Replies, Tensors
from fedshift.engines.kernels import Kernels
from fedshift.engines.vectorised import Vectorised
from fedshift.engines.workers import Workers
from fedshift.methods import METHODS
from refusal import refuses

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "writing-a-method.md").read_text(encoding="utf-8")
FILES = {"idea": "short_features", "statistic": "mean_alignment", "plugin": "my_scaffold", "check": "test_my_scaffold"}
PLAIN = {"train.momentum": 0.0}


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The page's files, imported from their folder and removed from the catalogue afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(METHODS, "_listed", dict(METHODS._listed))
    yield {marker: importlib.import_module(name) for marker, name in FILES.items()}
    for name in FILES.values():
        sys.modules.pop(name, None)


def blocks(marker: str) -> list[str]:
    return re.findall(rf"<!-- {marker} -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def source(marker: str) -> str:
    return (ROOT / "examples" / f"{FILES[marker]}.py").read_text(encoding="utf-8")


def test_the_blocks_are_in_the_files():
    methods = [re.sub(r"\n{3,}", "\n\n", indent(block, "    ")) for block in blocks("method")]
    assert all(source(marker) == "".join(blocks(marker)) for marker in ("idea", "statistic"))
    assert source("plugin") == "\n".join([*blocks("plugin"), *methods])
    assert all(block in source("check") for block in blocks("check"))
    assert PAGE.count("```python") == len(
        [*blocks("idea"), *blocks("statistic"), *blocks("plugin"), *methods, *blocks("check")]
    )


def test_its_commands_run(tmp_path: Path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = "".join(re.findall(r"<!-- shell -->\n```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", "").splitlines()
    less = "--rounds 1 --model mlp --set train.steps=1 --set data.images_per_class=10 --set run.engine=sequential"
    lines = [f"{line.replace('--rounds 30 --seed 0,1,2', '')} {less if 'compare' in line else ''}" for line in lines]
    outputs = [fresh.command(*shlex.split(line)[1:], cwd=tmp_path) for line in lines]
    assert [output.returncode for output in outputs] == [0, 0, 0], [output.stderr for output in outputs]
    assert "search: 0.001, 0.01, 0.1" in outputs[0].stdout
    assert "short-features: length" in outputs[1].stdout
    assert "my-scaffold" in outputs[2].stdout


def test_the_first_method_adds_its_penalty(examples: dict[str, ModuleType], make: Make):
    """The mean of ||z||^2 over a batch, times the weight; a weight of 0 gives FedAvg."""
    method = examples["idea"].ShortFeatures(weight=0.5)
    z = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    value = method.terms()["length"].weighted(None, Batch(z, torch.zeros(2, dtype=torch.int64), z), None)
    assert value.item() == 0.5 * (25 + 1) / 2
    methods = (FedAvg(), examples["idea"].ShortFeatures(weight=0.0))
    plain, unweighted = (simulate(make().replace(method=method)).coordinator.state.shared for method in methods)
    assert all(torch.equal(unweighted[name], tensor) for name, tensor in plain.items())


def test_the_statistic_by_hand(examples: dict[str, ModuleType]):
    """Z (1, 0) and (3, 0) have the sum (4, 0) and the mean (2, 0), whose squared distance from (0, 1) is 5.

    Means (2, 0) of 1 sample and (6, 4) of 3 samples have the mean ((2 + 18) / 4, 12 / 4) = (5, 3).
    """
    method = examples["statistic"].MeanAlignment()
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    net = Net({"encoder": nn.Identity(), "head": nn.Identity(), "center": holder({"value": torch.tensor([0.0, 1.0])})})
    batch = Batch(z, torch.zeros(2, dtype=torch.int64), z)
    assert method.distance(net, batch, None).item() == 5
    assert method.sums(net, batch._replace(z=torch.empty(0)), None)["z"].tolist() == [4, 0]
    means = [(1, [2.0, 0.0]), (3, [6.0, 4.0])]
    ups = [Tensors({"mean.value": torch.tensor(mean), SAMPLES: torch.tensor(count)}) for count, mean in means]
    assert method.after_mean(ServerState(), Replies(enumerate(ups)))["center.value"].tolist() == [5, 3]


def test_the_statistic_leaves_the_client_as_one(examples: dict[str, ModuleType], make: Make):
    simulation = simulate(make({"train.rounds": 1}).replace(method=examples["statistic"].MeanAlignment()))
    assert names_sent(simulation, "train", "up") - names_sent(simulation, "train", "down") == {"mean.value"}


def test_its_tests_pass(examples: dict[str, ModuleType], tmp_path: Path):
    checks = [getattr(examples["check"], name) for name in dir(examples["check"]) if name.startswith("test_")]
    assert len(checks) == 3
    for number, check in enumerate(checks):
        folder = tmp_path / str(number)
        check(folder) if check.__code__.co_argcount else check()


@pytest.mark.parametrize("bn", ["shared", "local", "reestimate"])
def test_it_is_sound(examples: dict[str, ModuleType], make: Make, bn: str):
    """Engines agree; c is the mean of all c_k while clients are only absent, and is not where they are late."""
    method = examples["plugin"].MyScaffold(bn=bn)
    changes = {**PLAIN, **CNN_WITH_BN, "train.precision": "float64", "train.rounds": 3, "data.fewer": 2}
    here = make(changes).replace(method=method)
    reference = simulate(here)
    for engine in (Vectorised(), Workers(Kernels(), 2)):
        other = simulate(here, engine=engine)
        engine.close()
        for name, tensor in reference.coordinator.state.tensors.items():
            torch.testing.assert_close(other.coordinator.state.tensors[name], tensor, rtol=1e-9, atol=1e-9)
    up, down = (names_sent(reference, "train", way) for way in ("up", "down"))
    assert {name.partition(".")[0] for name in up} == {"encoder", "head", "change"}
    assert {name.partition(".")[0] for name in down} == {"encoder", "head", "c"}


def test_an_audit_refuses_its_first_change_unless_it_says_what_that_reveals(
    examples: dict[str, ModuleType], make: Make
):
    from fedshift.page import Upload

    class Silent(examples["plugin"].MyScaffold):  # type: ignore[name-defined, misc]  # a class of another file
        """Does not say it."""

        def exchange(self, name, **changes):
            return super().exchange(name, uploads=(Upload.like("change", "c"),))

    experiment = make({**PLAIN, **CNN_WITH_BN, "run.audit": True})
    simulate(experiment.replace(method=examples["plugin"].MyScaffold()))
    with refuses("round 1", "'change.", "'c_k."):
        simulate(experiment.replace(method=Silent()))


def off(make: Make, method: object, **changes: float) -> float:
    """How far c is from the mean of all c_k after some rounds."""
    settings = {**PLAIN, "train.rounds": 6, "train.precision": "float64", "data.domains": 4}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    simulation = simulate(make(settings).replace(method=method))
    kept = [state.tensors for _, state in states(simulation)]
    c = simulation.coordinator.state.down.of("c")
    mean = {name: sum(one[f"c_k.{name}"] for one in kept) / 3 for name in c}
    assert any(float(tensor.abs().max()) > 1e-3 for tensor in c.values())
    return max(float((c[name] - mean[name]).abs().max()) for name in c)


def test_absent_and_late_clients_are_as_the_page_says(examples: dict[str, ModuleType], make: Make):
    method = examples["plugin"].MyScaffold()
    assert off(make, method) < 1e-12
    assert off(make, method, train__participation=0.67) < 1e-12
    assert off(make, method, train__absent=0.4) < 1e-12
    assert off(make, method, train__late=0.4) > 1e-3


@pytest.mark.parametrize("changes", [{"train.momentum": 0.5}, {**PLAIN, "train.optimiser": "adam"}], ids=str)
def test_it_refuses_what_its_equations_do_not_cover(examples: dict[str, ModuleType], make: Make, changes: dict):
    with refuses("train.optimiser = 'sgd'", "train.momentum = 0"):
        make(changes).replace(method=examples["plugin"].MyScaffold()).check()
