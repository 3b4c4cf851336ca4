"""What every contestant works on: data, network and schedule of three federations, made from a fixed seed.

The children of the benchmarks import this in environments of their own, so it needs torch alone (and transformers for
ResNet-18).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LR, MOMENTUM, SEED = 0.01, 0.9, 0
SCORED = 16


@dataclass(frozen=True)
class Workload:
    """A federation and what a round of FedAvg does with it.

    Attributes:
        name: what the command line calls it.
        title: what the table calls it.
        shape: one input's shape.
        classes: how many classes there are.
        clients: how many clients there are.
        cohort: how many of them take part in a round.
        batch: samples in a batch.
        steps: local steps a client takes in a round.
        samples: samples of each client.
        warm_up: rounds before anything is timed, after which everybody's loss is compared.
        fedshift: the model's table in fedshift's experiment.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    cohort: int
    batch: int
    steps: int
    samples: int
    warm_up: int
    fedshift: dict[str, Any]

    @property
    def steps_a_round(self) -> int:
        """Local steps of the whole cohort."""
        return self.cohort * self.steps

    @property
    def participation(self) -> float:
        """The part of the clients that takes part in a round."""
        return self.cohort / self.clients

    def model(self) -> nn.Module:
        """The network as a notebook would write it; the same initial values each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return _MODELS[self.name](self)

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs (clients, samples, *shape), float32, and labels (clients, samples), int64; made once a process."""
        return _data(self.shape, self.classes, self.clients, self.samples)

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Mean cross-entropy in nats on the first samples of every client, with batch norm's own statistics of them."""
        x, y = (tensor[:, :SCORED].flatten(0, 1) for tensor in self.data())
        return float(F.cross_entropy(model.train()(x), y))

    def loaded(self, weights: Sequence[Tensor]) -> nn.Module:
        """The network with parameters given in its own order.

        Raises:
            ValueError: there are more or fewer of them, or one has another shape.
        """
        model = self.model()
        with torch.no_grad():
            for parameter, given in zip(model.parameters(), weights, strict=True):
                if parameter.shape != given.shape:
                    raise ValueError(f"a parameter has shape {tuple(given.shape)}, not {tuple(parameter.shape)}")
                parameter.copy_(given)
        return model


@lru_cache(maxsize=1)
def _data(shape: tuple[int, ...], classes: int, clients: int, samples: int) -> tuple[Tensor, Tensor]:
    """Class patterns under noise, so that training has something to learn; labels are evenly spread."""
    generator = torch.Generator().manual_seed(SEED)
    pattern = torch.randn(classes, *shape, generator=generator)
    y = (torch.arange(clients * samples) % classes).view(clients, samples)
    x = torch.randn(clients, samples, *shape, generator=generator)
    for client in range(clients):
        x[client] += 0.5 * pattern[y[client]]
    return x, y


def order(samples: int, needed: int) -> Tensor:
    """Indices of a client's next samples: its samples in random order, again and again."""
    epochs = -(-needed // samples)
    return torch.cat([torch.randperm(samples) for _ in range(epochs)])[:needed]


def _mlp(workload: Workload) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(392, 390), nn.ReLU(), nn.Linear(390, workload.classes))


def _cnn(workload: Workload) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 5 * 5, 64), nn.Linear(64, workload.classes)),
    )


class _Pooled(nn.Module):
    """A backbone of transformers' and a linear layer on its pooled features."""

    def __init__(self, backbone: nn.Module, out: int) -> None:
        super().__init__()
        self.backbone, self.projection = backbone, nn.Linear(512, out)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, height, width) to (B, out)."""
        return self.projection(self.backbone(x).pooler_output.flatten(1))


def _resnet18(workload: Workload) -> nn.Module:
    from transformers import ResNetConfig, ResNetModel  # noqa: PLC0415  # this workload alone needs it

    config = ResNetConfig(
        num_channels=3,
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
    )
    return nn.Sequential(_Pooled(ResNetModel(config), 512), nn.Linear(512, workload.classes))


def _table(workload: Workload) -> nn.Module:
    return nn.Sequential(nn.Linear(25, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, workload.classes))


_MODELS = {"mlp": _mlp, "cnn": _cnn, "resnet18": _resnet18, "table": _table}
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="mlp",
            title="MLP 392-390-2: 80 clients, 8 a round, batch 200, 10 steps",
            shape=(2, 14, 14),
            classes=2,
            clients=80,
            cohort=8,
            batch=200,
            steps=10,
            samples=600,
            warm_up=5,
            fedshift={"name": "mlp", "hidden": [], "dim": 390, "final_relu": True},
        ),
        Workload(
            name="cnn",
            title="CNN 32-64-64: 5 clients, batch 64, 5 steps",
            shape=(1, 28, 28),
            classes=10,
            clients=5,
            cohort=5,
            batch=64,
            steps=5,
            samples=1000,
            warm_up=5,
            fedshift={"name": "cnn", "dim": 64},
        ),
        Workload(
            name="resnet18",
            title="ResNet-18 at 64 px: 6 clients, batch 32, 5 steps",
            shape=(3, 64, 64),
            classes=7,
            clients=6,
            cohort=6,
            batch=32,
            steps=5,
            samples=320,
            warm_up=1,
            fedshift={"name": "resnet18", "dim": 512},
        ),
        Workload(
            name="table",
            title="Rows of 25 numbers, MLP 25-128-64-2: 4 clients, batch 32, 20 steps",
            shape=(25,),
            classes=2,
            clients=4,
            cohort=4,
            batch=32,
            steps=20,
            samples=320,
            warm_up=5,
            fedshift={"name": "mlp", "hidden": [128], "dim": 64, "final_relu": True},
        ),
    )
}
