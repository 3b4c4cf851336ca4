"""Small convolutional networks: of FedSR's RotatedMNIST experiment, and of FRAug's Digits experiment."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from fedshift.core.model import Model, Shape
from fedshift.errors import FedshiftError
from fedshift.spec import OptionalPixels, Width, setting


class CNN(Model):
    """Two 3x3 convolutions (ReLU, 2x2 max-pool each) and a fully connected layer (FedSR, Sec. 4.2).

    Choices: the paper gives neither channels, padding nor pooling; ours are 32 and 64, none, and 2x2.
    """

    axes: ClassVar[int | None] = 3

    channels: tuple[Width, Width] = setting((32, 64), help="channels of the two convolutions")
    padding: OptionalPixels = setting(0, help="zero padding of the convolutions, in pixels")
    batch_norm: bool = setting(False, help="batch norm after each convolution")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs (B, channels, height, width) to (B, out)."""
        layers: list[nn.Module] = []
        channels, *size = shape
        for width in self.channels:
            layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=self.padding))
            if self.batch_norm:
                layers.append(nn.BatchNorm2d(width))
            # ReLU and max-pool commute; pooling first leaves a quarter of the ReLUs.
            layers += [nn.MaxPool2d(2), nn.ReLU()]
            channels, size = width, [(side + 2 * self.padding - 2) // 2 for side in size]
        if min(size) < 1:
            raise FedshiftError(
                f"Images of {shape[1]}x{shape[2]} are too small for the model 'cnn'; use 10x10 or more."
            )
        layers += [nn.Flatten(), nn.Linear(channels * size[0] * size[1], out)]
        return nn.Sequential(*layers)


class DigitsCNN(Model):
    """The six-layer network of FRAug's Digits experiment (Chen et al., ICCV 2023, Sec. 4.1 and appendix).

    Three 5x5 convolutions (64, 64, 128; batch norm, ReLU; a 3x3 max-pool of stride 2 after the first two), a fully
    connected layer of 2048 and one to z of 512, each with batch norm and ReLU; the head is the sixth layer.

    Choices: convolutions are padded by 2 and pools by 1, as in the public code, so that 32x32 images end at 8x8; a
    distribution of z (2d outputs) has no batch norm and ReLU after its last layer, as half of mu would be cut off.
    """

    axes: ClassVar[int | None] = 3

    channels: tuple[Width, Width, Width] = setting((64, 64, 128), help="channels of the three convolutions")
    hidden: Width = setting(2048, help="width of the first fully connected layer", source="FRAug, appendix")
    dim: Width = setting(512, help="dimension d of the representation z", source="FRAug, appendix")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs (B, channels, height, width) to (B, out)."""
        layers: list[nn.Module] = []
        channels, *size = shape
        for place, width in enumerate(self.channels):
            layers += [nn.Conv2d(channels, width, kernel_size=5, padding=2), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
            if place < 2:
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
                size = [(side + 1) // 2 for side in size]
        layers += [nn.Flatten(), nn.Linear(channels * size[0] * size[1], self.hidden)]
        layers += [nn.BatchNorm1d(self.hidden), nn.ReLU(), nn.Linear(self.hidden, out)]
        if out == self.dim:
            layers += [nn.BatchNorm1d(out), nn.ReLU()]
        return nn.Sequential(*layers)
