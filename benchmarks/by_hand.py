"""A client's steps as in a notebook, and their count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workloads import LR, MOMENTUM, Workload, order


@dataclass
class Count:
    """What was done so far; fedshift's engines tell steps only."""

    steps: int = 0
    samples: int | None = 0

    def batch(self, y: Tensor) -> None:
        """Another step was taken on a batch with these labels (B,)."""
        self.steps += 1
        self.samples = (self.samples or 0) + len(y)


def train(model: nn.Module, x: Tensor, y: Tensor, work: Workload, count: Count) -> None:
    """A client's local steps on its samples (n, ...)."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    indices = order(len(y), work.steps * work.batch)
    for step in range(work.steps):
        batch = indices[step * work.batch : (step + 1) * work.batch]
        optimiser.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
        count.batch(batch)
