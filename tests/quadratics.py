"""Clients whose objectives are quadratics of one number w, for any method of the catalogue as it is.

Client k has F_k(w) = a_k/2 (w - b_k)^2. All its samples are x = s_k with the label y_k; the model is w x, and the loss
is (w x - y)^2 / 2, so that a_k = s_k^2 and b_k = y_k / s_k. Batches are all the same, so nothing is random but what a
method draws itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import Make, simulate, states
from fedshift.clients.domains import DomainData
from fedshift.core.method import Method
from fedshift.core.model import Model, ModelBuilder
from fedshift.datasets.dataset import Dataset
from fedshift.engines.engine import Engine
from fedshift.experiments import Experiment
from fedshift.runs.simulation import Simulation
from fedshift.spec import setting
from fedshift.streams import Streams

W = "head.w"  # the number, by its full name


class Slope(nn.Module):
    """w x, with w = 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


class Plain(Model):
    """z = x."""

    def encoder(self, shape: tuple[int, ...], out: int) -> nn.Module:
        return nn.Flatten()


class Quadratics(Dataset):
    """A domain, and so a client, for each quadratic; its samples are equal."""

    slopes: tuple[float, ...] = setting((1.0, -2.0), help="x of each client")
    labels: tuple[int, ...] = setting((1, 2), help="y of each client")
    counts: tuple[int, ...] = setting((10, 10), help="samples of each client")

    def domain_names(self) -> tuple[str, ...]:
        return tuple(f"client {number}" for number in range(len(self.slopes)))

    def load(self, streams: Streams) -> DomainData:
        domain = torch.arange(len(self.slopes)).repeat_interleave(torch.tensor(self.counts))
        x, y = torch.tensor(self.slopes)[domain, None], torch.tensor(self.labels)[domain]
        classes = tuple(f"class {number}" for number in range(max(self.labels) + 1))
        return DomainData(x, y, domain, self.domain_names(), classes, torch.arange(len(y)))


@dataclass(frozen=True)
class FederatedData:
    """The quadratics of some clients, with curvatures a and optima b, in closed form."""

    a: Tensor
    b: Tensor

    def optimum(self, decay: float = 0.0) -> float:
        """Where the mean of F_k with decay/2 w^2 is least."""
        return float((self.a * self.b).mean() / (self.a.mean() + decay))

    def rest(self, steps: int, lr: float) -> float:
        """Where rounds of FedAvg end: steps of gradient descent lead from w to b_k + (1 - lr a_k)^steps (w - b_k)."""
        left = 1 - (1 - lr * self.a) ** steps
        return float((left * self.b).sum() / left.sum())


def quadratics(data: Quadratics) -> FederatedData:
    """What the clients' objectives are."""
    s, y = torch.tensor(data.slopes, dtype=torch.float64), torch.tensor(data.labels, dtype=torch.float64)
    return FederatedData(s.square(), y / s)


def squared(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """(x - y)^2 / 2 in the place of the cross-entropy, for outputs x (B, 1) and labels y (B,)."""
    losses = (x[:, 0] - y).square() / 2
    return losses.mean() if reduction == "mean" else losses.sum()


DATA = Quadratics()
APART = Quadratics(slopes=(1.0, -2.0), labels=(3, 2))  # a = (1, 4), b = (3, -1)
PLAIN = {"train.momentum": 0.0, "train.lr": 0.1}


@dataclass(frozen=True)
class OnQuadratics:
    """Runs methods on quadratics; see the fixture ``on_quadratics``."""

    make: Make

    def experiment(self, method: Method, changes: Mapping[str, Any], data: Quadratics = DATA) -> Experiment:
        """Full batches by plain SGD in float64; every client takes part, unless changes differ."""
        plain = {"train.batch": 1000, "train.momentum": 0.0, "train.precision": "float64", "train.steps": 10}
        (protocol, model) = {"name": "in-domain"}, Plain(dim=1)
        experiment = self.make({**plain, "protocol": protocol, **changes})
        return experiment.replace(data=data, model=model, method=method)

    def run(
        self, method: Method, changes: Mapping[str, Any], data: Quadratics = DATA, engine: Engine | None = None
    ) -> Simulation:
        """All rounds of such an experiment."""
        return simulate(self.experiment(method, changes, data), engine=engine)


@pytest.fixture
def on_quadratics(make: Make, monkeypatch: pytest.MonkeyPatch) -> OnQuadratics:
    """Heads are one number, and the cross-entropy is the squared loss, while a test runs."""
    monkeypatch.setattr(F, "cross_entropy", squared)
    monkeypatch.setattr(ModelBuilder, "head", lambda self, role="head", features=None: Slope())
    return OnQuadratics(make)


def at_rest(simulation: Simulation) -> float:
    """The global model's number."""
    return simulation.coordinator.state.shared[W].item()


def own(simulation: Simulation, name: str = f"personal_{W}") -> list[float]:
    """The clients' own numbers."""
    return [state.tensors[name].item() for _, state in states(simulation)]
