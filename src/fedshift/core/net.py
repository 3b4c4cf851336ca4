"""The parts of a model, as an objective sees them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Net:
    """Named parts whose tensors are those of the client (or the server) at work.

    ``net.encoder(x)`` runs a part; ``net.parameters()`` lists trainable tensors by full name, such as
    ``encoder.conv1.weight``. An engine decides what stands behind the names: resident modules, or
    slices of a stack of clients.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = dict(parts)

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

    def parameters(self, among: Container[str] | None = None) -> Iterator[tuple[str, nn.Parameter]]:
        """Trainable parameters with their full names; only those ``among`` the given names, if any are."""
        for part, module in self.parts.items():
            for name, parameter in module.named_parameters(prefix=part):
                if parameter.requires_grad and (among is None or name in among):
                    yield name, parameter


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
