"""A multi-layer perceptron on flattened inputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from fedshift.catalogue import Count, setting
from fedshift.models.model import Model, Shape


@dataclass(frozen=True, kw_only=True)
class MLP(Model):
    """Fully connected layers with ReLU between them; the last one gives z."""

    hidden: tuple[Count, ...] = setting((390,), help="widths of the hidden layers")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs (B, ...) of any shape to (B, out)."""
        widths = (prod(shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], out))
