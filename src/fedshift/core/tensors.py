"""Named tensors and the replies of a cohort, with the arithmetic in which pages write their equations.

Names are full names, a part's name and a tensor's within it: ``encoder.conv1.weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import overload

import torch
from torch import Tensor

from fedshift.errors import FedshiftError

MOST_SHOWN = 4  # tensors that a repr lists
VALUE = "value"  # the tensor of a part that is a single tensor
SAMPLES = "samples"  # in a reply: the client's number of training samples


class Tensors(Mapping[str, Tensor]):
    """An immutable mapping from names to tensors, with arithmetic.

    ``a - b`` of two mappings has the names that both have, in the order of ``a``; with a number or a tensor the
    operation applies to every tensor. ``a | b`` has the names of both, and b's tensors where both have a name. The
    tensor of a part that is a single tensor is found by the part's name.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._tensors = dict(tensors or {})

    def __getitem__(self, name: str) -> Tensor:
        found = self._tensors.get(name)
        if found is None:
            found = self._tensors.get(full_name(name))
        if found is None:
            names = [*self.of(part_of(name))] or dict.fromkeys(map(part_of, self))
            raise KeyError(f"no tensor '{name}'; known: {', '.join(names) or 'none'}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or full_name(str(name)) in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in self.items()]
        more = [f"and {len(shapes) - MOST_SHOWN} more"] if len(shapes) > MOST_SHOWN else []
        return f"{type(self).__name__}({', '.join([*shapes[:MOST_SHOWN], *more])})"

    # Names --------------------------------------------------------------------------------------

    def of(self, part: str) -> Tensors:
        """The tensors of a part, by their names within it."""
        start = f"{part}."
        return Tensors({name.removeprefix(start): tensor for name, tensor in self.items() if name.startswith(start)})

    def under(self, part: str) -> Tensors:
        """The same tensors, named as a part's; the inverse of :meth:`of`."""
        return Tensors({f"{part}.{name}": tensor for name, tensor in self.items()})

    def of_parts(self, parts: Iterable[str]) -> Tensors:
        """The tensors of some parts, by their full names."""
        among = frozenset(parts)
        return Tensors({name: tensor for name, tensor in self.items() if part_of(name) in among})

    def only(self, names: Iterable[str]) -> Tensors:
        """The tensors with these names, if present, in the mapping's order."""
        among = frozenset(names)
        return Tensors({name: tensor for name, tensor in self.items() if name in among})

    def __or__(self, other: Mapping[str, Tensor]) -> Tensors:
        return Tensors({**self, **other})

    def __ror__(self, other: Mapping[str, Tensor]) -> Tensors:
        return Tensors({**other, **self})

    # Arithmetic ---------------------------------------------------------------------------------

    def map(self, function: Callable[[Tensor], Tensor]) -> Tensors:
        return Tensors({name: function(tensor) for name, tensor in self.items()})

    def _with(self, other: Mapping[str, Tensor] | Tensor | float, function: Callable[..., Tensor]) -> Tensors:
        if isinstance(other, Mapping):
            both = {name: function(tensor, other[name]) for name, tensor in self.items() if name in other}
            return Tensors(both)
        return self.map(lambda tensor: function(tensor, other))

    def __add__(self, other: Mapping[str, Tensor] | Tensor | float) -> Tensors:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Mapping[str, Tensor] | Tensor | float) -> Tensors:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Mapping[str, Tensor] | Tensor | float) -> Tensors:
        return self._with(other, lambda a, b: a * b)

    def __rmul__(self, other: Tensor | float) -> Tensors:
        return self._with(other, lambda a, b: b * a)

    def __truediv__(self, other: Mapping[str, Tensor] | Tensor | float) -> Tensors:
        return self._with(other, lambda a, b: a / b)

    def __neg__(self) -> Tensors:
        return self.map(lambda tensor: -tensor)

    def sum(self) -> Tensor:
        """The sum over all elements of all tensors, of shape (); 0 if empty."""
        return torch.stack([tensor.sum() for tensor in self.values()]).sum() if self else torch.zeros(())

    def squared_norm(self) -> Tensor:
        """The sum of all squares, of shape ()."""
        return self.map(torch.square).sum()


class Replies(Sequence[tuple[int, Tensors]]):
    """The replies of an exchange's clients, in id order."""

    def __init__(self, replies: Iterable[tuple[int, Tensors]] = (), weights: Sequence[float] | None = None) -> None:
        given = list(replies)
        self.clients = [client for client, _ in given]  #: their ids, repeated as often as they were sampled
        self.ups = [up for _, up in given]  #: the clients' uploads
        #: weights of a mean, not normalised: numbers of samples where replies contain them, else 1
        self.weights = list(weights) if weights is not None else [_count(up) for up in self.ups]

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"Replies({counted(self, 'client')}, each {self.ups[0]!r})" if self.clients else "Replies()"

    @overload
    def __getitem__(self, place: int) -> tuple[int, Tensors]: ...
    @overload
    def __getitem__(self, place: slice) -> list[tuple[int, Tensors]]: ...
    def __getitem__(self, place: int | slice) -> tuple[int, Tensors] | list[tuple[int, Tensors]]:
        return list(zip(self.clients, self.ups, strict=True))[place]

    def weighted(self, weights: Sequence[float]) -> Replies:
        """The same replies with other weights."""
        return Replies(self, weights)

    def mean(self, names: Iterable[str] | None = None) -> Tensors:
        """The weighted mean of the tensors in every reply, of all names or of those given that replies contain."""
        wanted = [name for name in (self.ups[0] if names is None else names) if name in self.ups[0] and name != SAMPLES]
        return weighted_mean(self.ups, wanted, self.weights)


def _count(up: Mapping[str, Tensor]) -> float:
    return float(up[SAMPLES]) if SAMPLES in up else 1.0


def weighted_mean(
    messages: Sequence[Mapping[str, Tensor]], names: Iterable[str], weights: Sequence[float] | None = None
) -> Tensors:
    """The mean of the named tensors over messages, weighted or plain, with one message in memory at a time.

    Floating tensors are summed in the given order; whole-number buffers (batch counts) take the rounded mean. Weights
    that sum to 0 are a FedshiftError.
    """
    names, weights = list(names), [1.0] * len(messages) if weights is None else weights
    total = sum(weights)
    if messages and total == 0:
        raise FedshiftError(
            f"The weights {', '.join(f'{weight:g}' for weight in weights[:MOST_SHOWN])} of {len(weights)} messages sum "
            "to 0: give at least one a weight above 0, such as its number of training samples."
        )
    sums: list[Tensor] = []
    for message, weight in zip(messages, weights, strict=True):
        given = [message[name] for name in names]
        tensors = [tensor if tensor.is_floating_point() else tensor.cpu().double() for tensor in given]
        if sums:
            torch._foreach_add_(sums, tensors, alpha=weight / total)
        elif tensors:
            sums = [*torch._foreach_mul(tensors, weight / total)]
    return Tensors(
        {
            name: value if messages[0][name].is_floating_point() else value.round().to(messages[0][name])
            for name, value in zip(names, sums, strict=True)
        }
    )


def counted(things: Sized, name: str) -> str:
    """A number of things as text, such as "2 clients"."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def full_name(name: str) -> str:
    """The full name of a part's single tensor; full names stay unchanged."""
    return name if "." in name else f"{name}.{VALUE}"


def part_of(name: str) -> str:
    return name.partition(".")[0]
