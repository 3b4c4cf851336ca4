"""A multi-layer perceptron on flattened inputs."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn

from fedshift.core.model import Model, Shape
from fedshift.errors import FedshiftError
from fedshift.spec import Width, setting


class FlatNumbers(nn.Flatten):
    """Inputs of any shape as vectors."""

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) to (B, features).

        Raises:
            FedshiftError: they are token ids.
        """
        if not x.is_floating_point():
            raise FedshiftError("The model 'mlp' reads numbers, not token ids; try 'lstm', or give float32.")
        return super().forward(x)


class MLP(Model):
    """Fully connected layers with ReLU between them; the last one gives z.

    With ``hidden = []``, ``dim = 390`` and ``final_relu``, encoder and head together are FedPIN's network: one hidden
    layer of 390.
    """

    hidden: tuple[Width, ...] = setting((390,), help="widths of the hidden layers")
    final_relu: bool = setting(
        False, help="ReLU on z as well; a probabilistic encoder's mu and sigma both go through it"
    )
    batch_norm: bool = setting(False, help="batch norm before each ReLU")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs (B, ...) of any shape to (B, out)."""
        widths = (prod(shape), *self.hidden, out)
        layers: list[nn.Module] = [FlatNumbers()]
        for number, (before, after) in enumerate(pairwise(widths)):
            layers.append(nn.Linear(before, after))
            if self.final_relu or number < len(self.hidden):
                layers += [*([nn.BatchNorm1d(after)] if self.batch_norm else []), nn.ReLU()]
        return nn.Sequential(*layers)
