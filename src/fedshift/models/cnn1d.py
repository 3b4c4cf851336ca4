"""A small convolutional network for signals."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from fedshift.core.model import Model, Shape
from fedshift.spec import Count, Width, setting


class CNN1d(Model):
    """Convolutions over time (ReLU; a max-pool of 2 between them), their mean over time, and a linear layer to z.

    It is the fully convolutional network of Wang, Yan and Oates ("Time series classification from scratch with deep
    neural networks: a strong baseline", IJCNN 2017), made smaller: global pooling reads signals of any length.

    Choices: the paper's has 128, 256 and 128 channels, kernels of 8, 5 and 3, always batch norm, and no pooling between
    the layers. Edges are padded by zeros.
    """

    axes: ClassVar[int | None] = 2

    channels: tuple[Width, ...] = setting((32, 64, 64), help="channels of the convolutions, one after the other")
    kernel: Count = setting(5, help="steps of time that a convolution looks at")
    batch_norm: bool = setting(False, help="batch norm after each convolution")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Signals (B, channels, time) to (B, out)."""
        layers: list[nn.Module] = []
        channels = shape[0]
        for number, width in enumerate(self.channels):
            if number:
                layers.append(nn.MaxPool1d(2, ceil_mode=True))  # of a single step as well
            layers.append(nn.Conv1d(channels, width, self.kernel, padding=self.kernel // 2))
            layers += [*([nn.BatchNorm1d(width)] if self.batch_norm else []), nn.ReLU()]
            channels = width
        layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, out)]
        return nn.Sequential(*layers)
