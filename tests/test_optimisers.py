"""Optimisers are torch's, bit for bit, and a process that trains does not load torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedshift.engines.descent import SGD, Adam

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
    for kind in (ours, theirs):
        torch.manual_seed(0)
        weight = torch.randn(3, 4, requires_grad=True)
        optimiser = kind([weight], **settings)
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
