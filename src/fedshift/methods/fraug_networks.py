"""FRAug's generator and RTNet, its class prototypes, and its maximum mean discrepancy (Gretton et al., JMLR 2012)."""

from __future__ import annotations

from typing import NamedTuple

from fedshift.methods.classes import one_hot
from fedshift.methods.generator import Conditional
from fedshift.page import *

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)  # widths of the kernels, in bandwidths


def make_generator(classes: int, dim: int) -> Conditional:
    """g: noise (B, d/2) and classes (B,) to client-agnostic representations (B, d) >= 0."""
    return Conditional(
        classes, nn.Sequential(*_layer(noise_dim(dim) + classes, dim), nn.ReLU(), *_layer(dim, dim), nn.ReLU())
    )


def make_rtnet(classes: int, dim: int) -> Conditional:
    """m: client-agnostic representations (B, d) and classes (B,) to residuals (B, d) of this client."""
    half = noise_dim(dim)
    return Conditional(classes, nn.Sequential(*_layer(dim + classes, half), nn.ReLU(), *_layer(half, dim)))


def initial_rtnet(model: ModelBuilder) -> nn.Module:
    """RTNet with initial values drawn by the model builder."""
    return model.initialised("rtnet", lambda: make_rtnet(model.classes, model.dim))


def noise_dim(dim: int) -> int:
    """Dimension of z: half of the representation's."""
    return max(1, dim // 2)


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs)


class Prototypes(nn.Module):
    """Moving averages of the class means (Eq. 4), not trained.

    Attributes:
        mean: (classes, d); zeros for classes never seen.
        seen: (classes,), bool.
    """

    mean: Tensor
    seen: Tensor

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(classes, dim))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.bool))

    @torch.no_grad()
    def forward(self, u: Tensor, y: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Prototypes (classes, d) and the mask ``seen``; training mode first updates them by u (B, d), y (B,)."""
        if self.training:
            member = one_hot(y, len(self.mean), u)
            count = member.sum(dim=0).unsqueeze(1)
            batch_mean = member.T @ u / count.clamp(min=1)
            moved = torch.where(self.seen.unsqueeze(1), (1 - rate) * self.mean + rate * batch_mean, batch_mean)
            self.mean.copy_(torch.where(count > 0, moved, self.mean))
            self.seen.logical_or_(count.squeeze(1) > 0)
        return self.mean, self.seen


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each softmax in nats: (B, classes) to (B,)."""
    log_probabilities = logits.log_softmax(dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


@torch.no_grad()
def bandwidth(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared distance between any two rows of x (B, d) and y (B, d): twice their total variance, a scalar."""
    spread = 2 * torch.cat([x, y]).var(dim=0).sum()
    return spread.clamp(min=torch.finfo(spread.dtype).eps)  # equal rows have distance 0, not 0/0


def kernel(squared_distance: Tensor, width: Tensor) -> Tensor:
    """Sum of five Gaussian kernels, in (0, 5], of squared distances of any shape."""
    scaled = squared_distance / width
    return torch.stack([(-scaled / factor).exp() for factor in KERNELS]).sum(dim=0)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Biased squared maximum mean discrepancy of x (B, d) and y (B, d), a scalar."""
    width, centre = bandwidth(x, y), torch.cat([x, y]).mean(dim=0).detach()
    x, y = x - centre, y - centre  # so that distances from norms and products lose no digits

    def mean(a: Tensor, b: Tensor) -> Tensor:
        squared = a.square().sum(dim=1).unsqueeze(1) + b.square().sum(dim=1) - 2 * a @ b.T
        return kernel(squared.clamp(min=0), width).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def pairwise_mmd(x: Tensor, y: Tensor, width: Tensor) -> Tensor:
    """MMD of each row of x (C, d) with the same row of y (C, d): 10 - 2k, (C,)."""
    return 2 * len(KERNELS) - 2 * kernel((x - y).square().sum(dim=1), width)


class Synthetic(NamedTuple):
    """Synthetic representations of a step (Eq. 3); without the EMA term the fields of classes are empty.

    Attributes:
        batch: u^ (B, d).
        classes: u^_c (C, d).
        labels: their classes c (C,), int64.
        prototypes: u_c (C, d).
        seen: mask (C,) of the classes with a prototype.
    """

    batch: Tensor
    classes: Tensor
    labels: Tensor
    prototypes: Tensor
    seen: Tensor

    def over_classes(self, values: Tensor) -> Tensor:
        """Sum of values (C,) over the classes with a prototype."""
        return (values * self.seen).sum()
