"""The parts of a model, as an objective sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedshift.core.dropout import Dropout
from fedshift.core.tensors import VALUE, Tensors

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class Net:
    """Named parts whose tensors are those in use, of a client or of the server.

    ``net.encoder(x)`` or ``net["encoder"](x)`` runs a part; ``net.weights`` are the trainable tensors by full name,
    such as ``encoder.conv1.weight``. Behind the names an engine puts resident modules, or slices of a stack of clients.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = dict(parts)
        # Read now: while clients are stacked, a tensor in use does not show that it is trained.
        self.trainable = frozenset(
            f"{part}.{name}"
            for part, module in parts.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        )
        self.dropouts = {
            part: [layer for layer in module.modules() if isinstance(layer, Dropout) and layer.p > 0]
            for part, module in parts.items()
        }

    def __repr__(self) -> str:
        return f"Net({', '.join(self.parts)})"

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        try:
            return self.__dict__["parts"][name]  # type: ignore[no-any-return]  # __dict__ contains Any
        except KeyError:
            raise AttributeError(f"The net has no part '{name}'; its parts are {list(self.parts)}") from None

    def __getitem__(self, part: str) -> Callable[..., Tensor]:
        return self.__getattr__(part)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and buffer, with its full name."""
        for part, module in self.parts.items():
            for name, tensor in module.state_dict(keep_vars=True).items():
                yield f"{part}.{name}", tensor

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Trainable parameters with their full names."""
        for part, module in self.parts.items():
            for name, parameter in module.named_parameters(prefix=part):
                if name in self.trainable:
                    yield name, parameter

    @property
    def weights(self) -> Tensors:
        """The trainable parameters in use, by full name."""
        return Tensors(dict(self.parameters()))

    def of(self, part: str) -> Tensors:
        """The tensors of a part, trained or not, buffers too, by their names within it."""
        return Tensors(self.parts[part].state_dict(keep_vars=True))

    def value(self, part: str) -> Tensor:
        """The tensor of a part that is a single tensor; see :meth:`fedshift.core.contract.Part.state`."""
        return self.of(part)[VALUE]

    def gradient(self, function: Callable[[Net], Tensor]) -> Tensors:
        """The gradient of a scalar function of the net with respect to :attr:`weights`; 0 where it reads none.

        By ``torch.func`` rather than ``torch.autograd``, so that clients can be stacked.
        """
        whole = Whole(self.parts)

        def of_weights(weights: dict[str, Tensor]) -> Tensor:
            value: Tensor = functional_call(whole, weights, (function, self))
            return value

        return Tensors(grad(of_weights)(dict(self.parameters())))

    def call(self, part: str, tensors: Tensors, *inputs: Tensor) -> Tensor:
        """Run a part with other tensors, by their names within it, through which gradients flow; its mode stays."""
        result: Tensor = functional_call(self.parts[part], dict(tensors), inputs)
        return result

    def frozen(self, part: str, tensors: Tensors, *inputs: Tensor) -> Tensor:
        """As :meth:`call`, in evaluation mode and without gradient."""
        module = self.parts[part]
        was_training = module.training
        module.eval()
        with torch.no_grad():
            result = self.call(part, tensors, *inputs)
        module.train(was_training)
        return result


class Whole(nn.ModuleDict):
    """All parts as one module, so that one call can replace tensors of every part."""

    def forward(self, function: Callable[..., Any], *inputs: Any) -> Any:
        return function(*inputs)


class _Noting(Net):
    """A net that records which parts are run."""

    def __init__(self, net: Net) -> None:
        self.parts, self.trainable, self.dropouts = net.parts, net.trainable, net.dropouts
        self.seen = set[str]()

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        part = super().__getattr__(name)
        self.seen.add(name)
        return part

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        self.seen.update(self.parts)
        return super().parameters()

    def of(self, part: str) -> Tensors:
        self.seen.add(part)
        return super().of(part)

    def call(self, part: str, tensors: Tensors, *inputs: Tensor) -> Tensor:
        self.seen.add(part)
        return super().call(part, tensors, *inputs)


@torch.no_grad()
def parts_read(net: Net, predict: Callable[[Net], object]) -> frozenset[str]:
    noting = _Noting(net)
    predict(noting)
    return frozenset(noting.seen)


def holder(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Copies of tensors under the same full names, as an untrained module that stores a method's momentum or counts."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        place = root
        for word in path:
            if word not in dict(place.named_children()):
                place.add_module(word, nn.Module())
            place = place.get_submodule(word)
        place.register_buffer(last, tensor.detach().clone())
    return root


def batch_norms(module: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    """The batch-norm layers inside a module, with their names; a frozen layer has no tensors."""
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_NORMS) and layer.state_dict():
            yield name, layer


def batch_norm_tensors(module: nn.Module) -> frozenset[str]:
    """The names, inside the module, of every batch-norm parameter and buffer."""
    return frozenset(
        f"{layer_name}.{name}" if layer_name else name
        for layer_name, layer in batch_norms(module)
        for name in layer.state_dict()
    )
