"""The parts of a model, as an objective sees them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm


class Net:
    """Named parts whose tensors are those of the client (or the server) at work.

    ``net.encoder(x)`` runs a part; ``net.parameters()`` lists trainable tensors by full name, such as
    ``encoder.conv1.weight``. An engine decides what stands behind the names: resident modules, or
    slices of a stack of clients.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = dict(parts)
        # Asked now: while clients are stacked, a tensor at work does not say that it is trained.
        self.trainable = frozenset(
            f"{part}.{name}"
            for part, module in parts.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        )

    def __getattr__(self, name: str) -> nn.Module:
        try:
            return self.__dict__["parts"][name]  # type: ignore[no-any-return]  # __dict__ holds Any
        except KeyError:
            raise AttributeError(f"The net has no part '{name}'; its parts are {list(self.parts)}") from None

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and buffer, with its full name."""
        for part, module in self.parts.items():
            for name, tensor in module.state_dict(keep_vars=True).items():
                yield f"{part}.{name}", tensor

    def frozen(self, part: str, tensors: Mapping[str, Tensor], x: Tensor) -> Any:
        """Run a part on x with other tensors (by full name), in evaluation mode and without gradient.

        Tensors that are not given are those at work.
        """
        module = self.parts[part]
        was_training = module.training
        given = {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
        module.eval()
        with torch.no_grad():
            result = functional_call(module, given, (x,))
        module.train(was_training)
        return result

    def remembering(self, part: str) -> Net:
        """The same net, except that a part called again on the same tensor gives its answer again.

        A method on top of another can then read the representation without a second pass, which would
        count twice in batch-norm statistics.
        """
        return _RememberingNet(self, part)

    def parameters(self, among: Container[str] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Trainable parameters with their full names; only those ``among`` the given names, if any are."""
        for part, module in self.parts.items():
            for name, parameter in module.named_parameters(prefix=part):
                if name in self.trainable and (among is None or name in among):
                    yield name, parameter


class _RememberingNet(Net):
    """A net of which one part answers the same tensor from memory; parameters and tensors are the part's own."""

    def __init__(self, net: Net, part: str) -> None:
        self.parts, self.trainable = net.parts, net.trainable
        self._remembered = part
        self._last: tuple[Tensor, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return self._answer if name == self._remembered else super().__getattr__(name)

    def remembering(self, part: str) -> Net:
        """A net that remembers one more part; the same net for the part that it remembers."""
        return self if part == self._remembered else super().remembering(part)

    def _answer(self, x: Tensor) -> Any:
        if self._last is None or self._last[0] is not x:
            self._last = (x, self.parts[self._remembered](x))
        return self._last[1]


def mirror(modules: Mapping[str, nn.Module]) -> nn.ModuleDict:
    """A tensor of zeros for every trainable parameter, under the same full names; it is never run.

    For what a method keeps beside each weight: momentum, gradients, corrections.
    """
    copy = nn.ModuleDict({name: deepcopy(module) for name, module in modules.items()})
    for module in copy.modules():
        module._buffers.clear()
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False  # there is nothing to reset or measure again
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    return copy.requires_grad_(False)


def batch_norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The batch-norm layers inside a module, with their names."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            yield name, layer


def batch_norm_tensors(module: nn.Module) -> frozenset[str]:
    """Names, inside the module, of every batch-norm parameter and buffer."""
    return frozenset(
        f"{layer_name}.{name}" if layer_name else name
        for layer_name, layer in batch_norms(module)
        for name in layer.state_dict()
    )
