"""Optimisers are torch's, bit for bit; gradients are clipped as torch does, also beside a method's own limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, first_messages, simulate
from fedshift.core.training import Train
from fedshift.engines.descent import SGD, Adam
from fedshift.engines.engine import Engine
from fedshift.engines.merging import kind
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.feddyn import FedDyn
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from quadratics import OnQuadratics, at_rest, on_quadratics
from refusal import refuses
from test_engines import assert_agree

TRAINS = """
import sys
from conftest import TINY, simulate
from fedshift.study.grid import expand, override

for experiment in expand(override(TINY, {"train.optimiser": ["sgd", "adam"]})):
    simulate(experiment)
print(*sorted({"torch._dynamo", "sympy"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "foreach": True}),
        (Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
        (Adam, torch.optim.Adam, {"lr": 0.1, "fused": True}),
    ],
)
def test_five_steps_are_those_of_torch(
    ours: type[torch.optim.Optimizer], theirs: type[torch.optim.Optimizer], settings: dict[str, Any]
):
    ends = []
    for made in (ours, theirs):
        torch.manual_seed(0)
        weight = torch.randn(3, 4, requires_grad=True)
        optimiser = made([weight], **settings)
        for _ in range(5):
            weight.grad = None
            (weight.sin() * torch.randn(3, 4)).sum().backward()
            optimiser.step()
        ends.append((weight.detach(), optimiser.state_dict()["state"][0]))
    (one, kept), (other, expected) = ends
    assert torch.equal(one, other)
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())


def test_training_loads_no_compiler():
    done = subprocess.run(
        [sys.executable, "-c", TRAINS], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


__all__ = ["on_quadratics"]  # a fixture

ENGINES = [Sequential, Vectorised]
ONE = {"train.rounds": 1, "train.steps": 1, "train.lr": 0.1}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_clients_gradient_is_clipped_by_its_own_norm(on_quadratics: OnQuadratics, engine: type[Engine]):
    """At w = 0 the gradients are a_k (0 - b_k) = (-1, 4).

    With a limit of 2 the first is as it is and the second 4 * 2 / (4 + 1e-6), nearly 2, so that the clients end at
    0.1 and -0.2 (nearly), in the mean -0.05. Without it they end at 0.1 and -0.4, in the mean -0.15.
    """
    free = on_quadratics.run(FedAvg(), ONE, engine=engine())
    clipped = on_quadratics.run(FedAvg(), {**ONE, "train.clip": 2.0}, engine=engine())
    assert at_rest(free) == pytest.approx(-0.15, abs=1e-12)
    assert at_rest(clipped) == pytest.approx((0.1 - 0.1 * 4 * 2 / (4 + 1e-6)) / 2, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("own", "of_train", "norm"), [(0.5, 2.0, 0.5), (2.0, 0.5, 0.5)])
def test_with_a_methods_own_limit_both_hold(
    on_quadratics: OnQuadratics, engine: type[Engine], own: float, of_train: float, norm: float
):
    """FedDyn's first step from w = w_t = 0 with g_k = 0 is of F_k alone, with the gradients (-1, 4)."""
    method = FedDyn(alpha=1.0, max_norm=own)
    simulation = on_quadratics.run(method, {**ONE, "train.clip": of_train}, engine=engine())
    ups = [1.0 * min(1.0, norm / (1 + 1e-6)), -4.0 * min(1.0, norm / (4 + 1e-6))]
    mean = 0.1 * sum(ups) / 2
    assert at_rest(simulation) == pytest.approx(2 * mean, abs=1e-12)  # h = -alpha mean, and w = mean - h / alpha


def test_it_is_what_torch_does(make: Make):
    """One step of plain SGD from the first Down, by torch's clip_grad_norm_ over all parameters."""
    changes = {**ONE, **CNN_WITH_BN, "train.momentum": 0.0, "train.clip": 0.05, "train.precision": "float64"}
    moved = first_messages(make(changes))
    free = first_messages(make(changes | {"train.clip": "off"}))
    down = moved["train", "down"]
    names = [name for name in down if down[name].is_floating_point() and "running" not in name]
    parameters = [nn.Parameter(down[name].clone()) for name in names]
    for parameter, name in zip(parameters, names, strict=True):
        parameter.grad = (down[name] - free["train", "up"][name]) / 0.1
    nn.utils.clip_grad_norm_(parameters, 0.05)
    torch.optim.SGD(parameters, 0.1).step()
    for parameter, name in zip(parameters, names, strict=True):
        torch.testing.assert_close(moved["train", "up"][name], parameter.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "fraug", "fedcir"])
def test_engines_agree(make: Make, method: str):
    changes = {"method.name": method, "train.clip": 0.1, "train.precision": "float64", **CNN_WITH_BN}
    one, other = (simulate(make(changes), 2, engine()) for engine in ENGINES)
    assert_agree(one, other)


def test_runs_with_and_without_share_a_stack(make: Make):
    """Each lane has its own limit, which is infinite where it has none."""
    experiments = [make({"train.clip": clip, "train.precision": "float64"}) for clip in ("off", 0.05)]
    runs = [Simulation(experiment) for experiment in experiments]
    assert kind(runs[0].setup) == kind(runs[1].setup)
    assert advance(runs, Vectorised()) == {}
    for run, experiment in zip(runs, experiments, strict=True):
        assert_agree(simulate(experiment, 1), run)


def test_what_cannot_be_clipped_is_refused(make: Make):
    with refuses("train.clip = 0", "'off'"):
        Train(clip=0)
    with refuses("train.clip = 1", "method.variate = 'steps'", "train.clip = 'off'"):
        make({"method": {"name": "scaffold", "variate": "steps"}, "train.momentum": 0.0, "train.clip": 1.0}).check()
