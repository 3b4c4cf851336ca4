"""How a part's modules are prepared to run fast on this machine.

:class:`Kernels` changes how the same float32 arithmetic is run, and results by rounding only. Precision changes
results, so it belongs to the experiment: ``float64`` converts every floating tensor of the part; in ``bfloat16``
weights, optimiser, batch-norm statistics, losses and messages stay float32, and products and convolutions in a forward
run in bfloat16 (Micikevicius et al., ICLR 2018; losses need no scaling, as bfloat16 has float32's exponents).

*Choices*: a module is prepared by changing its class, not a method, so that copies, pickles, ``functional_call`` and
the names of tensors still work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedshift.engines.onednn import OneDNNLinear, onednn_available

Precision = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True)
class Kernels:
    """How the same arithmetic is run."""

    channels_last: bool = False  # whether convolutions store weights, and so map images, with channels innermost
    # what multiplies in linear layers: PyTorch's choice, or oneDNN for float32 on a CPU
    linear: Literal["native", "onednn"] = "native"


def prepare(module: nn.Module, kernels: Kernels, precision: Precision) -> None:
    """Make one part's top-level module run with these kernels in this precision, in place.

    Precision may be requested again; float64 stays. Buffers may be replaced, so collect tensors afterwards.
    """
    module.__class__ = _plain(type(module))
    if precision == "float64":
        module.double()
    onednn = kernels.linear == "onednn" and precision == "float32" and onednn_available()
    for layer in module.modules():
        if kernels.channels_last and isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            # Where a weight has one channel, both layouts are contiguous, but a convolution needs strides.
            weight = layer.weight.data
            layer.weight.data = torch.empty_like(weight, memory_format=torch.channels_last).copy_(weight)
        elif onednn and type(layer) is nn.Linear:
            layer.__class__ = OneDNNLinear
    if precision == "bfloat16":
        module.__class__ = _in_bfloat16(type(module))  # type: ignore[arg-type]  # classes are hashable


# bfloat16 -----------------------------------------------------------------------------------------


class _InBfloat16(nn.Module):
    """A mixin before a module's class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward under autocast; bfloat16 outputs return as float32."""
        tensor = next(chain(self.parameters(), self.buffers()), None)
        with torch.autocast(tensor.device.type if tensor is not None else "cpu", torch.bfloat16):
            result = super().forward(*args, **kwargs)
        return _in_float32(result)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        assert isinstance(reduced, tuple)
        return (_empty_in_bfloat16, (_plain(type(self)),), *reduced[2:])


@cache
def _in_bfloat16(plain: type[nn.Module]) -> type[nn.Module]:
    return type(f"{plain.__name__}InBfloat16", (_InBfloat16, plain), {})


def _plain(cls: type[nn.Module]) -> type[nn.Module]:
    return cls.__bases__[1] if issubclass(cls, _InBfloat16) else cls


def _empty_in_bfloat16(plain: type[nn.Module]) -> nn.Module:
    cls = _in_bfloat16(plain)  # type: ignore[arg-type]  # classes are hashable
    return cls.__new__(cls)


def _in_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype is torch.bfloat16 else value
    return type(value)(map(_in_float32, value)) if type(value) in (tuple, list) else value
