"""Small networks from scratch: for images, signals, numbers and text.

*ResNet-10* is a residual network of one block a stage (He, Zhang, Ren and Sun, Deep residual learning for image
recognition, CVPR 2016, Table 1: the stem of ResNet-18 and its four stages of basic blocks). Choices: one block a stage
instead of two, and ``width`` channels in the first stage instead of 64; a linear layer to z follows the pooling, as
with every backbone here. Convolutions have biases where nothing is normalised.

*The LSTM* reads characters (LEAF, Caldas et al., 2018): they are embedded, two LSTM layers read them in order, and the
text is represented by the last hidden state of the upper layer. Choices: LEAF classifies from that state; here a linear
layer takes it to z, so that z has the dimension that a method requires. The vocabulary's size is a setting, as a
network does not know which tokens occur; unused tokens cost a row of the embedding each.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Annotated, ClassVar

import torch
from annotated_types import Le
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.model import Model, Shape
from fedshift.errors import FedshiftError
from fedshift.models.norms import Norm, Normed
from fedshift.spec import Count, OptionalPixels, OptionalWidth, Width, setting

STAGES = 4  # of a ResNet: each halves the image after the first, and doubles the channels


class CNN(Normed):
    """Two 3x3 convolutions (ReLU, 2x2 max-pool each) and a fully connected layer (FedSR, Sec. 4.2).

    Choices: the paper gives neither channels, padding nor pooling; ours are 32 and 64, none, and 2x2.
    """

    axes: ClassVar[int | None] = 3

    channels: tuple[Width, Width] = setting((32, 64), help="channels of the two convolutions")
    padding: OptionalPixels = setting(0, help="zero padding of the convolutions, in pixels")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        layers: list[nn.Module] = []
        channels, *size = shape
        for width in self.channels:
            layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=self.padding))
            # ReLU and max-pool commute; pooling first leaves a quarter of the ReLUs.
            layers += [*self.normalisation(width, 2), nn.MaxPool2d(2), nn.ReLU()]
            channels, size = width, [(side + 2 * self.padding - 2) // 2 for side in size]
        if min(size) < 1:
            raise FedshiftError(
                f"Images of {shape[1]}x{shape[2]} are too small for the model 'cnn'; use 10x10 or more."
            )
        layers += [nn.Flatten(), nn.Linear(channels * size[0] * size[1], out)]
        return nn.Sequential(*layers)


class DigitsCNN(Normed):
    """The six-layer network of FRAug's Digits experiment (Chen et al., ICCV 2023, Sec. 4.1 and appendix).

    Three 5x5 convolutions (64, 64, 128; batch norm, ReLU; a 3x3 max-pool of stride 2 after the first two), a fully
    connected layer of 2048 and one to z of 512, each with batch norm and ReLU; the head is the sixth layer.

    Choices: convolutions are padded by 2 and pools by 1, as in the public code, so that 32x32 images end at 8x8; a
    distribution of z (2d outputs) has no batch norm and ReLU after its last layer, as half of mu would be cut off.
    """

    axes: ClassVar[int | None] = 3

    channels: tuple[Width, Width, Width] = setting((64, 64, 128), help="channels of the three convolutions")
    hidden: Width = setting(2048, help="width of the first fully connected layer", source="FRAug, appendix")
    norm: Norm = setting("batch", help="what normalises features: batch norm, group norm, or nothing", source="FRAug")
    dim: Width = setting(512, help="dimension d of the representation z", source="FRAug, appendix")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        layers: list[nn.Module] = []
        channels, *size = shape
        for place, width in enumerate(self.channels):
            convolution = nn.Conv2d(channels, width, kernel_size=5, padding=2)
            layers += [convolution, *self.normalisation(width, 2), nn.ReLU()]
            channels = width
            if place < 2:
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
                size = [(side + 1) // 2 for side in size]
        layers += [nn.Flatten(), nn.Linear(channels * size[0] * size[1], self.hidden)]
        layers += [*self.normalisation(self.hidden, 0), nn.ReLU(), nn.Linear(self.hidden, out)]
        if out == self.dim:
            layers += [*self.normalisation(out, 0), nn.ReLU()]
        return nn.Sequential(*layers)


class CNN1d(Normed):
    """Convolutions over time (ReLU; a max-pool of 2 between them), their mean over time, and a linear layer to z.

    The fully convolutional network of Wang, Yan and Oates ("Time series classification from scratch with deep neural
    networks: a strong baseline", IJCNN 2017), but smaller: global pooling reads signals of any length.

    Choices: the paper's has 128, 256 and 128 channels, kernels of 8, 5 and 3, always batch norm, and no pooling between
    the layers. Edges are padded by zeros.
    """

    axes: ClassVar[int | None] = 2

    channels: tuple[Width, ...] = setting((32, 64, 64), help="channels of the convolutions, in order")
    kernel: Count = setting(5, help="steps of time that a convolution covers")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        layers: list[nn.Module] = []
        channels = shape[0]
        for number, width in enumerate(self.channels):
            if number:
                layers.append(nn.MaxPool1d(2, ceil_mode=True))  # of a single step as well
            layers.append(nn.Conv1d(channels, width, self.kernel, padding=self.kernel // 2))
            layers += [*self.normalisation(width, 1), nn.ReLU()]
            channels = width
        layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, out)]
        return nn.Sequential(*layers)


class Block(nn.Module):
    """Two normalised 3x3 convolutions with a shortcut, a 1x1 convolution where the shape changes."""

    def __init__(self, model: Normed, channels: int, out: int, stride: int) -> None:
        super().__init__()
        bias = model.norm == "none"
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, kernel_size=3, stride=stride, padding=1, bias=bias),
            *model.normalisation(out, 2),
            nn.ReLU(),
            nn.Conv2d(out, out, kernel_size=3, padding=1, bias=bias),
            *model.normalisation(out, 2),
        )
        self.shortcut = (
            nn.Identity()
            if channels == out
            else nn.Sequential(
                nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=bias), *model.normalisation(out, 2)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet10(Normed):
    """ResNet-10 from scratch, narrow by default: 0.3 million weights (He et al., CVPR 2016)."""

    axes: ClassVar[int | None] = 3

    width: Width = setting(16, help="channels of the first stage; each later stage has twice as many", source="ours")
    norm: Norm = setting(
        "batch", help="what normalises features: batch norm, group norm, or nothing", source="He et al."
    )
    dim: Width = setting(128, help="dimension d of the representation z")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        widths = [self.width * 2**stage for stage in range(STAGES)]
        return nn.Sequential(
            nn.Conv2d(shape[0], self.width, kernel_size=7, stride=2, padding=3, bias=self.norm == "none"),
            *self.normalisation(self.width, 2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            *(
                Block(self, before, after, stride=1 if before == after else 2)
                for before, after in zip([self.width, *widths], widths, strict=False)
            ),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], out),
        )


class FlatNumbers(nn.Flatten):
    """Flattens inputs of any shape to vectors."""

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) to (B, features); raises a FedshiftError for token ids."""
        if not x.is_floating_point():
            raise FedshiftError("This model reads numbers, not token ids; try 'lstm', or give float32.")
        return super().forward(x)


class MLP(Normed):
    """Fully connected layers with ReLU between them; the last one gives z.

    ``hidden = []``, ``dim = 390`` and ``final_relu`` give FedPIN's network: one hidden layer of 390 and the head.
    """

    hidden: tuple[Width, ...] = setting((390,), help="widths of the hidden layers")
    final_relu: bool = setting(
        False, help="ReLU on z as well; a probabilistic encoder's mu and sigma both go through it"
    )

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        widths = (prod(shape), *self.hidden, out)
        layers: list[nn.Module] = [FlatNumbers()]
        for number, (before, after) in enumerate(pairwise(widths)):
            layers.append(nn.Linear(before, after))
            if self.final_relu or number < len(self.hidden):
                layers += [*self.normalisation(after, 0), nn.ReLU()]
        return nn.Sequential(*layers)


class Features(Normed):
    """No network: z is the sample's normalised numbers, and only a linear head is trained.

    For frozen features (``data.frozen``) and tables. Where a method, or ``dim``, requires another number of features, a
    linear layer follows.
    """

    norm: Norm = setting("batch", help="what normalises features: batch norm, group norm, or nothing")
    dim: OptionalWidth = setting(
        0, help="dimension d of the representation z, by a linear layer if need be; 0: as many as a sample has"
    )

    def dim_for(self, shape: Shape) -> int:
        return self.dim or prod(shape)

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        features = prod(shape)
        projection = [] if out == features else [nn.Linear(features, out)]
        return nn.Sequential(FlatNumbers(), *self.normalisation(features, 0), *projection)


class LastState(nn.Module):
    """An embedding, LSTM layers, and a linear layer on the last hidden state."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, out: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.projection = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (B, length) in 0..vocabulary - 1 to (B, out); raises a FedshiftError for anything else."""
        if x.is_floating_point():
            raise FedshiftError("The model 'lstm' reads token ids, not features; try 'mlp'.")
        tracing = torch.compiler.is_compiling()  # where values are not known yet
        if not tracing and (largest := int(x.max()) if x.numel() else 0) >= self.vocabulary:
            raise FedshiftError(
                f"The text has the token {largest}, but model.vocabulary = {self.vocabulary}: "
                f"--set model.vocabulary={largest + 1} or more"
            )
        states, _ = self.lstm(self.embedding(x))
        z: Tensor = self.projection(states[:, -1])
        return z


class LSTM(Model):
    """LEAF's stacked LSTM for next-character prediction."""

    axes: ClassVar[int | None] = 1

    dim: Width = setting(256, help="dimension d of the representation z")
    vocabulary: Annotated[Count, Le(1_114_112)] = setting(
        128, help="how many tokens there are; the text must use fewer"
    )
    embedding: Width = setting(8, help="width of a character's embedding", source="LEAF")
    hidden: Width = setting(256, help="width of each LSTM layer", source="LEAF")
    layers: Annotated[Count, Le(32)] = setting(2, help="LSTM layers", source="LEAF")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        return LastState(self.vocabulary, self.embedding, self.hidden, self.layers, out)
