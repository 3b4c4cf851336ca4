"""Maximum mean discrepancy between two batches of representations (Gretton et al., JMLR 2012), as FRAug takes it."""

from __future__ import annotations

import torch
from torch import Tensor

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)  # widths of the kernels, in bandwidths


@torch.no_grad()
def bandwidth(x: Tensor, y: Tensor) -> Tensor:
    """The mean squared distance between any two of the rows of x (B, d) and y (B, d), as a scalar.

    It is the sum over ordered pairs over n^2 - n with n = 2B, which is twice the total variance.
    """
    spread = 2 * torch.cat([x, y]).var(dim=0).sum()
    return spread.clamp(min=torch.finfo(spread.dtype).eps)  # all rows equal: distances are 0, not 0/0


def kernel(squared_distance: Tensor, width: Tensor) -> Tensor:
    """The sum of five Gaussian kernels, in (0, 5], of squared distances of any shape."""
    scaled = squared_distance / width
    return torch.stack([(-scaled / factor).exp() for factor in KERNELS]).sum(dim=0)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of x (B, d) and y (B, d), biased (Gretton et al., JMLR 2012)."""
    width = bandwidth(x, y)

    def mean(a: Tensor, b: Tensor) -> Tensor:
        return kernel((a.unsqueeze(1) - b.unsqueeze(0)).square().sum(dim=2), width).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def mmd_of_each(x: Tensor, y: Tensor, width: Tensor) -> Tensor:
    """The MMD of each row of x (C, d) with the same row of y (C, d): 10 - 2k, of shape (C,)."""
    return 2 * len(KERNELS) - 2 * kernel((x - y).square().sum(dim=1), width)
