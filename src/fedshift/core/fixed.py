"""Fixed tensors: those of a network that are never trained, and so no part's own.

They are in no ``state_dict``: a run neither sends, merges, stacks nor saves them. All copies of a module share their
memory, so that a large network on which small adapters are trained is held once, however many clients there are.

*Choices*: fixed batch norms are in evaluation mode, whatever is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import deepcopy
from typing import Any, Self

from torch import Tensor, nn

from fedshift.core.net import BATCH_NORMS


class Fixing(nn.Module):
    """A module some of whose tensors are fixed; its copies share these."""

    def fix(self, trained: Collection[str]) -> None:
        """Fix all parameters but those named, and the buffers of layers none of whose own parameters is trained."""
        for path, layer in self.named_modules():
            own = {name: parameter for name, parameter in layer._parameters.items() if parameter is not None}
            kept = [name for name in own if f"{path}.{name}".removeprefix(".") in trained]
            for name in own.keys() - set(kept):
                delattr(layer, name)
                layer.register_buffer(name, own[name].detach(), persistent=False)
            if not kept and isinstance(layer, BATCH_NORMS):
                layer.track_running_stats = False  # those that it has are read all the same
            if not kept:
                layer._non_persistent_buffers_set.update(layer._buffers)
        self.train(self.training)

    def fixed(self) -> Iterator[Tensor]:
        """Every fixed tensor."""
        for layer in self.modules():
            for name, buffer in layer._buffers.items():
                if buffer is not None and name in layer._non_persistent_buffers_set:
                    yield buffer

    def train(self, mode: bool = True) -> Self:
        """As any module, but for batch norms that are fixed."""
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, BATCH_NORMS) and not layer.state_dict():
                layer.training = False
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made: Self = copied(self, self.fixed(), memo)
        return made


Module = Any


def copied(module: Module, shared: Iterator[Tensor], memo: dict[int, Any] | None = None) -> Module:
    """A deep copy of a module, whose tensors among ``shared`` are other views of the same memory."""
    memo = {} if memo is None else memo
    for tensor in shared:
        view = tensor.detach()
        memo[id(tensor)] = nn.Parameter(view, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else view
    made = module.__class__.__new__(module.__class__)
    memo[id(module)] = made
    made.__dict__.update(deepcopy(module.__dict__, memo))
    return made
