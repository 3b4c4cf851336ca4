"""What the tests share: a tiny federation and short ways to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedshift.core.contract import Context, Replies
from fedshift.experiment import Experiment, load_plugins
from fedshift.grid import expand, override
from fedshift.runs.progress import Progress
from fedshift.runs.simulation import Simulation

load_plugins([str(Path(__file__).parent / "tiny.py")])

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {"name": "tiny"},
    "protocol": {"name": "leave-one-domain-out", "hold_out": "light"},
    "model": {"name": "mlp", "dim": 4, "hidden": [8]},
    "method": {"name": "fedavg"},
    "train": {"rounds": 2, "steps": 2, "batch": 4, "lr": 0.1},
    "evaluate": {"every": 1},
    "run": {"device": "cpu"},
}
CNN_WITH_BN = {"model.name": "cnn", "model.batch_norm": True, "model.channels": [2, 3], "model.dim": 4}

Make = Callable[..., Experiment]


@pytest.fixture
def tiny_document(tmp_path: Path) -> dict[str, Any]:
    """The tiny experiment as a table, its runs below a temporary folder."""
    return override(TINY, {"run.out": str(tmp_path / "runs")})


@pytest.fixture
def make(tiny_document: dict[str, Any]) -> Make:
    """A function that makes one tiny experiment, with dotted changes."""

    def build(changes: dict[str, Any] | None = None) -> Experiment:
        (experiment,) = expand(override(tiny_document, changes or {}))
        return experiment

    return build


def at(
    round: int = 1,
    rounds: int = 1,
    step: int = 0,
    received: Mapping[str, Tensor] | None = None,
    noise: Mapping[str, Tensor] | None = None,
    client: int = 0,
    counts: Sequence[int] = (),
    replies: Replies = (),
) -> Context:
    """What an objective may know, for a test that calls its loss by hand."""
    return Context(
        round, rounds, step, received or {}, noise or {}, torch.tensor(client), torch.tensor(counts), replies
    )


def simulate(experiment: Experiment, rounds: int | None = None) -> Simulation:
    """Carry out a run's rounds in memory."""
    simulation = Simulation(experiment)
    for moment in simulation.moments()[:rounds]:
        simulation.advance(moment, Progress())
    return simulation
