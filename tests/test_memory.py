"""How much memory was used and is free, by the machine and a container's limit, and what is refused for lack of it."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import Make
from fedshift import memory
from fedshift.core.model import COPIES, Model, ModelBuilder, Shape
from fedshift.models.small import MLP
from fedshift.runs.events import Progress
from fedshift.runs.runner import start
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams
from refusal import refuses

GB = 10**9


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 GB without control groups, whose files a test may add to."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "MOUNT", tmp_path / "sys")
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    7812500 kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "groups", "free"),
    [
        ("", {}, 8 * GB),
        ("0::/job", {"job": (2 * GB, GB, GB // 2)}, 3 * GB // 2),  # cached files do not count
        ("0::/all/job", {"all": (GB, 0, 0), "all/job": ("max", 0, 0)}, GB),
        ("0::/../outside", {".": (GB, 0, 0)}, GB),  # a container sees its own group at the root
    ],
)
def test_the_machine_and_the_groups_above_limit(system: Path, cgroup: str, groups: dict[str, Any], free: int):
    (system / "cgroup").write_text(f"{cgroup}\n")
    for name, (most, used, cached) in groups.items():
        folder = system / "sys" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in (("max", most), ("current", used), ("stat", f"inactive_file {cached}")):
            (folder / f"memory.{file}").write_text(f"{text}\n")
    assert memory.available() == free


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="this system has no such limit")
def test_the_limit_of_a_process_counts(system: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "PAGES", system / "statm")
    (system / "statm").write_text("10 5 5 0 0 0 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (GB, GB))
    assert memory.available() == GB - 10 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.available() == 8 * GB


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_peak_is_that_of_the_largest_process_and_is_recorded(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of this process 300 KiB and of its workers 500 and 400: 500 KiB. The kernel's own counts rise with a tensor."""
    device = torch.device("cpu")
    before = memory.peak(device)
    held = torch.ones(before // 4 + 2**20)  # as many bytes as were ever in use, and 4 MiB
    assert memory.peak(device) > before
    del held
    for process, peak in {"self": 300, "7": 500, "8": 400}.items():
        (tmp_path / process).mkdir()
        (tmp_path / process / "status").write_text(f"Name:\tpython\nVmHWM:\t     {peak} kB\nVmRSS:\t 9 kB\n")
    monkeypatch.setattr(memory, "PROCESSES", tmp_path)
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [SimpleNamespace(pid=7), SimpleNamespace(pid=8)])
    assert memory.peak(device) == 500 * 1024
    assert start(make(), Progress()).times.memory == 500 * 1024


@pytest.mark.parametrize("text", ["", "MemAvailable: x kB\n"])
def test_where_it_is_unknown_nothing_is_refused(system: Path, text: str):
    (system / "meminfo").write_text(text)
    (system / "cgroup").write_text(text)
    assert memory.available() is None
    memory.check(10**18, "A model", "Make it smaller.")


def test_what_cannot_fit_is_refused_with_sizes_and_the_fix(system: Path):
    memory.check(8 * GB, "A model", "Make it smaller.")
    with refuses("A model takes 8 GB", "only 8 GB", "Make it smaller."):
        memory.check(8 * GB + 1, "A model", "Make it smaller.")


def builder(model: Model) -> ModelBuilder:
    return ModelBuilder(model, (3, 8, 8), 4, Streams(0), 2)


def test_a_model_that_cannot_fit_is_refused_before_it_is_made(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with refuses("encoder", "MLP", "memory is free", "model.dim"):
        Simulation(make({"model.hidden": [10**4], "model.dim": 65536}))


@given(dim=st.integers(1, 64), hidden=st.lists(st.integers(1, 64), max_size=3))
def test_exactly_what_fits_is_made(dim: int, hidden: list[int]):
    """The bytes that are requested are those of the tensors, that many times, whatever the network's widths."""
    model = MLP(dim=dim, hidden=tuple(hidden))
    needed = COPIES * sum(tensor.nbytes for tensor in builder(model).encoder().state_dict().values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: needed)
        builder(model).encoder()
        patch.setattr(memory, "available", lambda: needed - 1)
        with refuses("memory is free", "model.dim"):
            builder(model).encoder()


@pytest.mark.parametrize(
    ("name", "samples"), [("train.batch", 27), ("evaluate.batch", 30)], ids=["a training batch", "an evaluation batch"]
)
def test_a_batch_that_cannot_fit_is_refused_with_its_setting(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, samples: int
):
    """A batch has no more samples than there are to draw from, whatever is requested."""
    monkeypatch.setattr(memory, "available", lambda: samples * 400 - 1)
    with refuses(f"{samples} samples", "(1, 10, 10)", f"Lower {name}"):
        Simulation(make({"train.batch": 1, "evaluate.batch": 1, name: 2**20}))


class Odd(Model):
    """A plugin's model, which requests its own weight a question that has no answer without memory."""

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        layer = nn.Linear(shape[0] * shape[1] * shape[2], out)
        self.__dict__["largest"] = float(layer.weight.abs().max())
        return nn.Sequential(nn.Flatten(), layer)


def test_a_module_that_cannot_be_asked_is_made_as_ever():
    odd = Odd(dim=4)
    assert builder(odd).encoder()[1].weight.abs().max() == odd.__dict__["largest"]  # type: ignore[index]


def test_asking_changes_no_initial_value_and_no_generator(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_rng_state()
    made = builder(MLP(dim=4)).encoder().state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(ModelBuilder, "_check_fits", lambda self, role, build: None)
    unasked = builder(MLP(dim=4)).encoder().state_dict()
    assert all(torch.equal(made[name], unasked[name]) for name in unasked)
