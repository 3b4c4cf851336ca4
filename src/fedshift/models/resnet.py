"""ResNet-10: a residual network of one block a stage, from scratch, for what a small machine can train.

He, Zhang, Ren and Sun, Deep residual learning for image recognition, CVPR 2016, Table 1: the stem of ResNet-18 and its
four stages of basic blocks.

Choices: one block a stage in the place of two, and ``width`` channels in the first stage in the place of 64; a linear
layer to z follows the pooling, as with every backbone here.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.model import Model, Shape
from fedshift.spec import Width, setting

STAGES = 4  # each halves the image after the first, and doubles the channels


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, beside a shortcut that is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = (
            nn.Identity()
            if channels == out
            else nn.Sequential(nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, channels, height, width) to (B, out, height / stride, width / stride), rounded up."""
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet10(Model):
    """ResNet-10 from scratch, narrow by default: 0.3 million weights (He et al., CVPR 2016)."""

    axes: ClassVar[int | None] = 3

    width: Width = setting(16, help="channels of the first stage; each later one has twice as many", source="ours")
    dim: Width = setting(128, help="dimension d of the representation z")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs (B, channels, height, width) to (B, out)."""
        widths = [self.width * 2**stage for stage in range(STAGES)]
        return nn.Sequential(
            nn.Conv2d(shape[0], self.width, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            *(
                Block(before, after, stride=1 if before == after else 2)
                for before, after in zip([self.width, *widths], widths, strict=False)
            ),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], out),
        )
