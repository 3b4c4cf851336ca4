"""Items that are made when they are asked for, so that ten thousand cost hardly more than a hundred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import torch
from torch import Tensor

from fedshift.clients.samples import Samples

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Lazy(Sequence[T]):
    """What a tuple is, but for the items, which are made each time they are asked for.

    Attributes:
        make: an item by its number.
        numbers: the items' numbers.
    """

    make: Callable[[int], T]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Lazy[T]: ...
    def __getitem__(self, index: int | slice) -> T | Lazy[T]:
        if isinstance(index, slice):
            return Lazy(self.make, self.numbers[index])
        return self.make(self.numbers[index])

    def among(self, places: Iterable[int]) -> Lazy[T]:
        """The items at some places."""
        return Lazy(self.make, tuple(self.numbers[place] for place in places))

    def mapped(self, change: Callable[[T], T]) -> Lazy[T]:
        """What a function makes of the items."""
        return Lazy(lambda number: change(self.make(number)), self.numbers)


def lazy(items: Sequence[T]) -> Lazy[T]:
    """Items as a lazy sequence."""
    return items if isinstance(items, Lazy) else Lazy(items.__getitem__, range(len(items)))


def views(whole: Samples, part: Tensor, parts: int) -> Lazy[Samples]:
    """Disjoint parts of a pool.

    Args:
        whole: the pool.
        part: the number of each sample's part, (N,), int64; -1: it is in none.
        parts: how many parts there are.
    """
    held = (part >= 0).nonzero().flatten()
    rows = held[part[held].argsort(stable=True)]  # those of part 0 in order, then those of part 1, and so on
    sizes = torch.bincount(part[held], minlength=parts)
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])

    def view(number: int) -> Samples:
        start, stop = starts[number : number + 2].tolist()
        return whole.subset(rows[start:stop])

    return Lazy(view, range(parts))
