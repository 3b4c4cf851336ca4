"""The Compact Convolutional Transformer CCT-7/3x1 (Hassani et al., arXiv:2104.05704).

A 3x3 convolution, ReLU and a 3x3 max-pool of stride 2 turn an image into tokens; positions are added; seven transformer
layers follow; the tokens are pooled by a softmax over a learned score of each.

Choices: a linear layer to z follows the pooling, as with every backbone here, and the head is separate. The paper's
dropout, attention dropout and stochastic depth are omitted. As in the authors' code, a layer's second residual starts
after its second normalisation, queries, keys and values have no bias, linear layers start from a truncated normal of
deviation 0.02, the convolution from He's normal, and learned positions from a truncated normal of deviation 0.2.
Attention is written as plain products: the fused kernels' gradients may differ from run to run on a GPU, and clients
cannot be stacked over them under vmap. It stores heads x tokens x tokens weights per image and layer, 16 MiB at 64x64.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Le
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.model import Model, Shape
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Layers, Width, setting

Positions = Literal["learnable", "sinusoidal"]


class Attention(nn.Module):
    """Self-attention of several heads: softmax(QK'/sqrt(width/heads)) V, and a linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, n, width) to (B, n, width)."""
        batch, tokens, width = x.shape
        # (B, n, 3 width) -> three of (B, heads, n, width / heads)
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q * (width // self.heads) ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        projected: Tensor = self.projection((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return projected


class Layer(nn.Module):
    """Attention and a feed-forward part, each after a normalisation and with a residual."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.attention(self.norm1(x)))
        fed: Tensor = x + self.feed_forward(x)
        return fed


class CompactTransformer(nn.Module):
    """Tokens by a convolution, transformer layers, sequence pooling and a linear layer."""

    def __init__(
        self, shape: Shape, out: int, layers: int, heads: int, width: int, hidden: int, positions: Positions
    ) -> None:
        super().__init__()
        channels, *size = shape
        rows, columns = ((side + 1) // 2 for side in size)
        self.convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        if positions == "learnable":
            self.positions = nn.Parameter(torch.zeros(rows * columns, width))
        else:
            self.register_buffer("positions", sinusoids(rows * columns, width), persistent=False)
        self.layers = nn.Sequential(*(Layer(width, heads, hidden) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)
        self.projection = nn.Linear(width, out)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, channels, height, width) to (B, out)."""
        tokens = self.pool(F.relu(self.convolution(x))).flatten(2).transpose(1, 2)
        tokens = self.norm(self.layers(tokens + self.positions))
        weights = self.score(tokens).softmax(dim=1)
        pooled: Tensor = self.projection((weights * tokens).sum(dim=1))
        return pooled

    def _initialise(self) -> None:
        nn.init.kaiming_normal_(self.convolution.weight)
        if isinstance(self.positions, nn.Parameter):
            nn.init.trunc_normal_(self.positions, std=0.2)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def sinusoids(tokens: int, width: int) -> Tensor:
    """Fixed positions (tokens, width): sin(p / 10000^(2i/width)) and its cosine in turn (Vaswani et al., 2017)."""
    place = torch.arange(tokens).unsqueeze(1)
    angle = place / 10000 ** (2 * (torch.arange(width) // 2) / width)
    return torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos())


class CCT7(Model):
    """CCT-7/3x1 from scratch: a small transformer on tokens of a convolution (Hassani et al., 2021)."""

    axes: ClassVar[int | None] = 3

    layers: Layers = setting(7, help="transformer layers", source="Hassani et al., 2021")
    heads: Width = setting(4, help="attention heads", source="Hassani et al., 2021")
    width: Width = setting(256, help="width of a token, a multiple of the heads", source="Hassani et al., 2021")
    ratio: Annotated[Count, Le(256)] = setting(
        2, help="hidden width of the feed-forward part, in widths", source="Hassani et al., 2021"
    )
    positions: Positions = setting(
        "learnable", help="positions that are trained, or fixed sines and cosines", source="Hassani et al., 2021"
    )
    dim: Width = setting(256, help="dimension d of the representation z")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        if self.width % self.heads:
            raise FedshiftError(
                f"model.width = {self.width} is not a multiple of model.heads = {self.heads}: --set model.heads=1"
            )
        return CompactTransformer(
            shape, out, self.layers, self.heads, self.width, self.ratio * self.width, self.positions
        )
