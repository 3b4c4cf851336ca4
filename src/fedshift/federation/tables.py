"""Tables from which items are made when they are asked for, so that ten thousand cost hardly more than a hundred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar, overload

import torch
from torch import Tensor

from fedshift.federation.samples import Move, Samples


class _Movable(Protocol):
    def moved(self, move: Move, /) -> Self: ...


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M", bound=_Movable)


class Table(Protocol[T_co]):
    """Numbered items, each made when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> T_co:
        """Item ``number``, from 0 to the length - 1."""

    def moved(self, move: Move, /) -> Table[T_co]:
        """The same table with copies of its tensors."""


@dataclass(frozen=True, eq=False)
class Lazy(Sequence[T]):
    """What a tuple is, but for the items, which are made each time they are asked for.

    Attributes:
        table: what makes them.
        numbers: the items' numbers in the table.
    """

    table: Table[T]
    numbers: Sequence[int]

    @classmethod
    def over(cls, table: Table[T]) -> Lazy[T]:
        """All of a table, in order."""
        return cls(table, range(len(table)))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Lazy[T]: ...
    def __getitem__(self, index: int | slice) -> T | Lazy[T]:
        if isinstance(index, slice):
            return Lazy(self.table, self.numbers[index])
        return self.table[self.numbers[index]]

    def among(self, places: Iterable[int]) -> Lazy[T]:
        """The items at some places."""
        return Lazy(self.table, tuple(self.numbers[place] for place in places))

    def moved(self, move: Move) -> Lazy[T]:
        """The same items with copies of their tensors."""
        return Lazy(self.table.moved(move), self.numbers)


@dataclass(frozen=True, eq=False)
class Items(Generic[M]):
    """A table of items that are there already."""

    items: tuple[M, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> M:
        return self.items[number]

    def moved(self, move: Move) -> Items[M]:
        """Every item moved."""
        return Items(tuple(item.moved(move) for item in self.items))


@dataclass(frozen=True, eq=False)
class Views:
    """Disjoint parts of a pool.

    Attributes:
        whole: the pool.
        rows: the rows of part 0 in order, then those of part 1, and so on, (R,), int64.
        starts: where each part's rows begin, and where the last one's end, (parts + 1,), int64; stays on the CPU.
    """

    whole: Samples
    rows: Tensor
    starts: Tensor

    @classmethod
    def of(cls, whole: Samples, part: Tensor, parts: int) -> Views:
        """The parts of a pool by the part's number of each sample, (N,), int64; -1: in none."""
        held = (part >= 0).nonzero().flatten()
        part = part[held]
        sizes = torch.bincount(part, minlength=parts)
        return cls(whole, held[part.argsort(stable=True)], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> Samples:
        start, stop = self.starts[number : number + 2].tolist()
        return self.whole.subset(self.rows[start:stop])

    def moved(self, move: Move) -> Views:
        """The same parts of the pool's copy."""
        return Views(self.whole.moved(move), move(self.rows), self.starts)


def lazy(items: Sequence[M]) -> Lazy[M]:
    """Items as a lazy sequence."""
    return items if isinstance(items, Lazy) else Lazy.over(Items(tuple(items)))
