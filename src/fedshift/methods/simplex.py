"""Quadratic programmes on the simplex, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedshift.errors import needs


def non_negative_least_squares() -> Callable[..., Any]:
    """SciPy's solver.

    Raises:
        FedshiftError: SciPy is not installed.
    """
    with needs("scipy", "The method FedPAC"):
        from scipy.optimize import nnls
    solver: Callable[..., Any] = nnls
    return solver


def simplex_minimum(root: Tensor) -> Tensor:
    """The weights a that minimise ||Ra||^2 with a >= 0 and sum a = 1; one of them where several do.

    The least squares problem min ||Ru||^2 + (1 - sum u)^2 over u >= 0 has its minimum where u = s a: its value for
    the best s is q / (1 + q), with q = ||Ra||^2, which grows with q. So a = u / sum u, and Lawson's and Hanson's active
    sets (Solving least squares problems, 1974, Ch. 23) find u in a finite number of steps.

    Args:
        root: R, (rows, n), n >= 1.

    Returns:
        The weights (n,), float64, on the CPU.
    """
    root = root.double().cpu()
    scale = root.norm(dim=0).max().clamp(min=torch.finfo(root.dtype).tiny)  # beside the row of ones no unit may matter
    system = torch.cat([root / scale, torch.ones(1, root.shape[1], dtype=root.dtype)])
    target = torch.zeros(len(system), dtype=root.dtype)
    target[-1] = 1
    u = torch.from_numpy(non_negative_least_squares()(system.numpy(), target.numpy())[0])
    return u / u.sum()
