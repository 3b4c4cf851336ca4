"""A network cut at one of its layers: what ends there, and what begins there."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn


class Reached(Exception):  # noqa: N818  # no error: how a network is left in its middle
    """A layer is reached, by what enters it."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Ends(nn.Module):
    """What is put before the class of a layer at which a network ends."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Leave with what enters the layer."""
        raise Reached(args[0] if args else next(iter(kwargs.values())))


class Begins(nn.Module):
    """What is put before the class of a layer at which a network begins."""

    given: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer on what was given, whatever enters it."""
        given, self.given = self.given, None
        if args:
            return super().forward(given, *args[1:], **kwargs)
        return super().forward(**(kwargs | {next(iter(kwargs)): given}))


@cache
def with_class(layer: type[nn.Module], how: type[nn.Module]) -> type[nn.Module]:
    """The class of a layer with another before it."""
    return type(layer.__name__, (how, layer), {})


def layers_of(network: nn.Module) -> tuple[str, int]:
    """The list of a network's layers, by name, and how many they are; no name where it has none.

    It is the longest list that is in no other.
    """
    lists = {name: len(layer) for name, layer in network.named_modules() if isinstance(layer, nn.ModuleList)}
    outer = {name: size for name, size in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    longest = max(outer.values(), default=0)
    found = [name for name, size in outer.items() if size == longest]
    return (found[0], longest) if len(found) == 1 else ("", 0)
