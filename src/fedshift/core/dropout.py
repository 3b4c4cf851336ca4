"""Dropout from the run's streams, so that engines agree and a resumed run continues to the same bits.

Each step of an objective that moves a part with dropout receives one drawn number. Whether a value is dropped follows
by integer arithmetic from this number, the layer's place in the net, the layer's calls in this step, and the value's
position: it does not depend on the order of draws, and clients can be stacked. Modules use PyTorch's own layers, which
:func:`from_streams` replaces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedshift.errors import FedshiftError
from fedshift.streams import Draw, Draws

NOISE = "dropout of the net's layers"  # the name is reserved: no page's draws have it
LAYERS: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
BITS = 24


class Dropout(nn.Module):
    """Zeroes values with probability p while training, and divides the others by 1 - p.

    Args:
        p: probability that a value is dropped, in 0..1.
        together: number of trailing dimensions that are dropped together: 2 for the channels of a map. As PyTorch's
            Dropout2d, 2 also takes (B, channels, length).
    """

    def __init__(self, p: float, together: int = 0) -> None:
        super().__init__()
        self.p, self.together = p, together
        self.key: Tensor | None = None  # of the step that is in progress, int64 ()
        self.calls = 0

    def extra_repr(self) -> str:
        return f"p={self.p}, together={self.together}"

    def forward(self, x: Tensor) -> Tensor:
        """Inputs of any shape to the same shape; a FedshiftError in training mode outside of a run's step."""
        if not self.training or self.p == 0:
            return x
        if self.key is None:
            raise FedshiftError(
                "Dropout draws from a run's streams while an objective moves its part; elsewhere, put the "
                "module into evaluation mode: module.eval()"
            )
        self.calls += 1
        shape = x.shape[: max(x.ndim - self.together, 2 if self.together == 2 else 1)]
        places = torch.arange(shape.numel(), device=x.device).view(*shape, *[1] * (x.ndim - len(shape)))
        drawn = _mixed(_mixed(self.key + self.calls) + places) >> (64 - BITS) & (1 << BITS) - 1  # uniform
        kept = (drawn >= round(self.p * 2**BITS)).to(x.dtype)
        dropped: Tensor = x * kept / ((1 - self.p) or 1)  # with p = 1 there is nothing to scale
        return dropped


def _mixed(x: Tensor) -> Tensor:
    x = x * -0x61C8864680B583EB  # 0x9e37... as a signed number; products wrap
    for right, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ (x >> right & (1 << (64 - right)) - 1)) * factor  # >> keeps the sign, which is cut off
    return x ^ (x >> 31 & (1 << 33) - 1)


def from_streams(module: nn.Module, role: str) -> nn.Module:
    """Replace PyTorch's dropout layers in a module; a FedshiftError for other kinds of dropout."""
    layers = {layer: _from_streams(layer, path, role) for path, layer in module.named_modules()}
    for parent in layers:
        for name, layer in list(parent._modules.items()):  # named_children skips repeated modules
            if layer is not None:
                setattr(parent, name, layers[layer])
    return layers[module]


def _from_streams(layer: nn.Module, path: str, role: str) -> nn.Module:
    if not isinstance(layer, _DropoutNd):
        return layer
    if type(layer) in LAYERS:
        return Dropout(layer.p, LAYERS[type(layer)]).train(layer.training)
    if layer.p > 0:
        raise FedshiftError(
            f"Layer '{path}' of the {role} is {type(layer).__name__}, which draws from a global generator, so the run "
            "could not be repeated: use nn.Dropout, or set its probability to 0."
        )
    return layer


def dropout_draws(dropouts: Mapping[str, Sequence[Dropout]], moves: Collection[str]) -> Draws:
    """The draws of a step that moves some parts: one number if any of them has dropout layers."""
    drops = any(dropouts[part] for part in moves if part in dropouts)
    return {NOISE: Draw((), "integers", 2**62)} if drops else {}


def dropping(dropouts: Mapping[str, Sequence[Dropout]], noise: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Set the number, from the noise of a step, by which the layers of a net's parts drop, if there is one."""
    return _dropping(dropouts, noise) if NOISE in noise else nullcontext()


@contextmanager
def _dropping(dropouts: Mapping[str, Sequence[Dropout]], noise: Mapping[str, Tensor]) -> Iterator[None]:
    found = [layer for each in dropouts.values() for layer in each]
    for number, layer in enumerate(found):
        layer.key, layer.calls = _mixed(noise[NOISE] + number), 0
    try:
        yield
    finally:
        for layer in found:
            layer.key = None
