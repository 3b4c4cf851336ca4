"""Linear layers that multiply by oneDNN: on AMD processors MKL, which ``nn.Linear`` uses, is limited to AVX2.

Twice as fast as MKL on an AMD EPYC with AVX-512, slower on Intel's (benchmarks/onednn.py); ``auto`` times both. Without
PyTorch's two private functions, each called by one function at the end, layers stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Multiplications from which oneDNN is faster; its calls cost 15 microseconds more: forward and backward of one layer
# on one thread take 89 against 72 microseconds at 1.0 million (16x256x256) and 299 against 457 at 10 (128x784x100).
SMALLEST_PRODUCT = 2**21
# With fewer rows or columns MKL is at least as fast.
NARROWEST_PRODUCT = 8


class OneDNNLinear(nn.Linear):
    """A linear layer that multiplies by oneDNN where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        return onednn_linear(input, self.weight, self.bias)


@cache
def onednn_available() -> bool:
    """Whether this build of PyTorch can multiply by oneDNN, and detect transforms such as vmap."""
    try:
        _multiply(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
        _transformed()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``: x weight' + bias (..., out) of x (..., in), weight (out, in) and bias (out,), by oneDNN if faster.

    Under ``torch.compile`` and transforms of ``torch.func`` it calls ``F.linear``. Differentiable any number of times;
    needs :func:`onednn_available`.
    """
    if not _worthwhile(x, weight):
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    product: Callable[..., Tensor] = _Linear.apply if torch.is_grad_enabled() else _multiply
    y = product(rows, weight, bias)
    return y if x.dim() == 2 else y.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    """The product of rows (n, in) with weights (out, in); its gradients are such products themselves."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows_move, weight_moves, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if weight_moves else None, weight if rows_move else None)
        return _multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The needed gradients of rows, weight and bias, from the gradient (n, out)."""
        rows, weight = ctx.saved_tensors
        return (
            None if weight is None else onednn_linear(gradient, weight.t()),
            None if rows is None else onednn_linear(gradient.t(), rows.t()),
            gradient.sum(dim=0) if ctx.needs_input_grad[2] else None,
        )


def _worthwhile(x: Tensor, weight: Tensor) -> bool:
    outputs, inputs = weight.shape
    return (
        not torch.compiler.is_compiling()  # the compiler takes this product with packed weights only
        and x.numel() * outputs >= SMALLEST_PRODUCT
        and min(inputs, outputs, x.numel() // inputs) >= NARROWEST_PRODUCT
        and x.dim() >= 2
        and x.shape[-1] == inputs
        and x.dtype is weight.dtype is torch.float32
        and x.is_cpu
        and not _transformed()
    )


# No public interface to oneDNN is as fast: tensors in its layout and 1x1 convolutions lose more to copies than the
# product gains, and a rule for vmap, instead of testing for transforms, makes a layer 140 microseconds slower.


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # A strided bias would be read as contiguous.
    bias = None if bias is None else bias.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    return product


def _transformed() -> bool:
    active: bool = torch._C._are_functorch_transforms_active()
    return active
