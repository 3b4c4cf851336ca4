"""How a part's modules are prepared to run fast on this machine.

:class:`Kernels` changes how the same float32 arithmetic is carried out, and results by rounding only. Precision changes
results, so it belongs to the experiment:

* ``float32``: as the model is.
* ``float64``: every floating tensor of the part is float64. Inputs and noise must be, too.
* ``bfloat16``: weights, optimiser, batch-norm statistics, losses and messages stay float32; inside a part's forward
  products and convolutions are taken in bfloat16 (mixed precision, Micikevicius et al., ICLR 2018; losses need not be
  scaled, as bfloat16 has float32's exponents).

*Choices*: a module is prepared by giving it another class, not another method: a class holds on to no module, so that
copies, pickles, ``functional_call`` and the names of tensors are those of any module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Multiplications from which oneDNN is faster, its calls costing 15 microseconds more: forward and backward of one layer
# on one thread take 89 against 72 microseconds at 1.0 million (16x256x256) and 299 against 457 at 10 (128x784x100).
SMALLEST_PRODUCT = 2**21


# Fewer rows or columns make it a product with a few vectors, which MKL takes as fast or faster.
NARROWEST_PRODUCT = 8


class OneDNNLinear(nn.Linear):
    """A linear layer whose products oneDNN takes where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Features (..., in) to (..., out)."""
        return onednn_linear(input, self.weight, self.bias)


@cache
def onednn_available() -> bool:
    """Whether this build of PyTorch can multiply by oneDNN, and say whether a transform such as vmap is at work."""
    try:
        _multiply(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
        _transformed()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What ``F.linear`` gives: x weight' + bias (..., out) from x (..., in), weight (out, in) and bias (out,).

    By oneDNN where that is faster, and by ``F.linear`` otherwise: also under ``torch.compile`` and transforms of
    ``torch.func``.
    Can be differentiated any number of times; needs :func:`onednn_available`.
    """
    if not _worthwhile(x, weight):
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    product: Callable[..., Tensor] = _Linear.apply if torch.is_grad_enabled() else _multiply
    y = product(rows, weight, bias)
    return y if x.dim() == 2 else y.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    """The product of rows (n, in) with weights (out, in), and its gradients, which are such products themselves."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Rows (n, in) to (n, out)."""
        rows_move, weight_moves, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if weight_moves else None, weight if rows_move else None)
        return _multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """From the gradient (n, out) those of rows, weight and bias that are needed."""
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


# No public way to oneDNN is as fast: tensors in its own layout and 1x1 convolutions lose more to copies than the
# product gains, and a rule for vmap, in the place of asking for transforms, makes a layer 140 microseconds slower.


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of rows (n, in) and weights (out, in) by oneDNN, without gradients."""
    # A bias with gaps would be read as if it had none.
    bias = None if bias is None else bias.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    return product


def _transformed() -> bool:
    """Whether a transform of torch.func (vmap, grad, ...) is at work, for which oneDNN's product has no rule."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


Precision = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True)
class Kernels:
    """How the same arithmetic is carried out.

    Attributes:
        channels_last: whether convolutions store weights, and so take and give images, with channels innermost.
        linear: what multiplies in linear layers: PyTorch's choice, or oneDNN for float32 on a CPU.
    """

    channels_last: bool = False
    linear: Literal["native", "onednn"] = "native"


def prepare(module: nn.Module, kernels: Kernels, precision: Precision) -> None:
    """Make one part's top-level module run with these kernels in this precision, in place.

    Precision may be asked for again; float64 stays. Buffers may be replaced by others, so collect tensors afterwards.
    """
    module.__class__ = _plain(type(module))
    if precision == "float64":
        module.double()
    onednn = kernels.linear == "onednn" and precision == "float32" and onednn_available()
    for layer in module.modules():
        if kernels.channels_last and isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            # Where a weight has one channel, both layouts are contiguous, but a convolution asks strides.
            weight = layer.weight.data
            layer.weight.data = torch.empty_like(weight, memory_format=torch.channels_last).copy_(weight)
        elif onednn and type(layer) is nn.Linear:
            layer.__class__ = OneDNNLinear
    if precision == "bfloat16":
        module.__class__ = _in_bfloat16(type(module))  # type: ignore[arg-type]  # classes are hashable


# bfloat16 -----------------------------------------------------------------------------------------


class _InBfloat16(nn.Module):
    """What :func:`_in_bfloat16` puts before a module's class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward under autocast; bfloat16 outputs come back as float32."""
        tensor = next(chain(self.parameters(), self.buffers()), None)
        with torch.autocast(tensor.device.type if tensor is not None else "cpu", torch.bfloat16):
            result = super().forward(*args, **kwargs)
        return _in_float32(result)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and pickled by way of the plain class, as this one has no name to be found by."""
        reduced = super().__reduce_ex__(protocol)
        assert isinstance(reduced, tuple)
        return (_empty_in_bfloat16, (_plain(type(self)),), *reduced[2:])


@cache
def _in_bfloat16(plain: type[nn.Module]) -> type[nn.Module]:
    """The class of modules of the plain class that run in bfloat16."""
    return type(f"{plain.__name__}InBfloat16", (_InBfloat16, plain), {})


def _plain(cls: type[nn.Module]) -> type[nn.Module]:
    """The class before :func:`_in_bfloat16`; any other class is itself."""
    return cls.__bases__[1] if issubclass(cls, _InBfloat16) else cls


def _empty_in_bfloat16(plain: type[nn.Module]) -> nn.Module:
    cls = _in_bfloat16(plain)  # type: ignore[arg-type]  # classes are hashable
    return cls.__new__(cls)


def _in_float32(value: Any) -> Any:
    """The same with float32 for every bfloat16 tensor in it, also within tuples and lists."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype is torch.bfloat16 else value
    return type(value)(map(_in_float32, value)) if type(value) in (tuple, list) else value
