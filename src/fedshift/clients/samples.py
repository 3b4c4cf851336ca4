"""Samples as views of a shared pool, the clients that train on them, and the environments that score models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

Move = Callable[[Tensor], Tensor]
"""Returns a copy of a pool's tensor, the same copy each time; see :func:`mover`."""


class Pool(NamedTuple):
    """Inputs x (N, ...), uint8 images, int64 tokens or float32, and labels y (N,), int64, that views share.

    ``environment`` (N,), int64, is the training environment of each; None: all share one. ``group`` (N,), int64, is
    equal for samples of one original, such as a patient; None: each is an original.
    """

    x: Tensor
    y: Tensor
    environment: Tensor | None = None
    group: Tensor | None = None


@dataclass(frozen=True, init=False, eq=False)
class Samples:
    """Some or all samples of a pool; ``Samples(x, y)`` is a whole pool.

    Attributes:
        pool: the inputs and labels, shared with other views.
        rows: indices into the pool, (n,), int64, on the pool's device; None: all, in order.
    """

    pool: Pool
    rows: Tensor | None

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        rows: Tensor | None = None,
        environment: Tensor | None = None,
        group: Tensor | None = None,
    ) -> None:
        object.__setattr__(self, "pool", Pool(x, y, environment, group))
        object.__setattr__(self, "rows", rows)

    def __len__(self) -> int:
        return len(self.pool.y if self.rows is None else self.rows)

    def __repr__(self) -> str:
        return f"Samples({len(self)} of shape {tuple(self.pool.x.shape[1:])})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Samples) or not self.shares_pool(other):
            return False
        if self.rows is None or other.rows is None:
            return self.rows is other.rows
        return torch.equal(self.rows, other.rows)

    def __hash__(self) -> int:
        return hash((id(self.pool.x), id(self.pool.y), len(self)))

    @property
    def x(self) -> Tensor:
        """The inputs (n, ...): the pool's tensor if these are all, else gathered each time."""
        return self.pool.x if self.rows is None else self.pool.x[self.rows]

    @property
    def y(self) -> Tensor:
        """The labels (n,), int64, as the inputs."""
        return self.pool.y if self.rows is None else self.pool.y[self.rows]

    @property
    def environment(self) -> Tensor:
        """The index in :attr:`Federation.train_environments`, (n,), int64; 0 if unknown."""
        if self.pool.environment is None:
            return torch.zeros_like(self.y)
        return self.pool.environment if self.rows is None else self.pool.environment[self.rows]

    @property
    def group(self) -> Tensor:
        """The group of each (n,), int64; in a pool without groups, its index there."""
        if self.pool.group is None:
            return torch.arange(len(self), device=self.pool.y.device) if self.rows is None else self.rows
        return self.pool.group if self.rows is None else self.pool.group[self.rows]

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """``x[indices]`` and ``y[indices]`` for indices (B,), int64, or a mask (n,), gathering nothing else."""
        rows = indices if self.rows is None else self.rows[indices]
        if rows.dtype == torch.bool:
            return self.pool.x[rows], self.pool.y[rows]
        return self.pool.x.index_select(0, rows), self.pool.y.index_select(0, rows)  # a fifth of the time of indexing

    def subset(self, indices: Tensor) -> Samples:
        """Some of these samples, as another view of the pool; ``indices`` as for :meth:`batch`."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        rows = indices.to(self.pool.y.device) if self.rows is None else self.rows[indices]
        return self.view_of(rows)

    def view_of(self, rows: Tensor) -> Samples:
        """The samples at some rows of the pool, (n,), int64, also rows outside this view."""
        return Samples(*self.pool[:2], rows, *self.pool[2:])

    def shares_pool(self, other: Samples) -> bool:
        return self.pool.x is other.pool.x and self.pool.y is other.pool.y

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device, to which only these are copied; :meth:`Federation.to` copies pools."""
        if self.pool.x.device == device:
            return self
        environment = None if self.pool.environment is None else self.environment.to(device)
        group = None if self.pool.group is None else self.group.to(device)
        return Samples(self.x.to(device), self.y.to(device), None, environment, group)

    def moved(self, move: Move) -> Samples:
        """The same view of the pool's copy."""
        x, y = move(self.pool.x), move(self.pool.y)
        rows = None if self.rows is None else self.rows.to(x.device)
        environment, group = (None if each is None else move(each) for each in self.pool[2:])
        return Samples(x, y, rows, environment, group)


def joined(parts: Sequence[Samples]) -> Samples:
    """All samples of the parts in order: a view if they share a pool, else a copy."""
    first = parts[0]
    if not all(first.shares_pool(part) for part in parts):
        x, y, environment = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "environment"))
        return Samples(x, y, environment=environment)
    everything = torch.arange(len(first.pool.y), device=first.pool.y.device)
    return first.view_of(torch.cat([everything if part.rows is None else part.rows for part in parts]))


def class_counts(parts: Sequence[Samples], classes: int) -> Tensor:
    """Number of samples of each class in each part, (parts, classes), int64, on the CPU."""
    if not parts:
        return torch.zeros(0, classes, dtype=torch.int64)
    sizes = torch.tensor([len(part) for part in parts])
    shared = all(parts[0].shares_pool(part) for part in parts)
    labels = joined(parts).y if shared else torch.cat([part.y for part in parts])
    cell = torch.arange(len(parts)).repeat_interleave(sizes) * classes + labels.cpu()
    return torch.bincount(cell, minlength=len(parts) * classes).view(len(parts), classes)


def mover(device: torch.device) -> Move:
    """A function that copies each tensor to a device once, and returns the same copy when called again."""
    copies: dict[Tensor, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        if tensor not in copies:
            copies[tensor] = tensor.to(device)
        return copies[tensor]

    return move


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Lazy(Sequence[T]):
    """A sequence whose items are created on each access, by ``make`` from their numbers."""

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
        return Lazy(self.make, tuple(self.numbers[place] for place in places))

    def mapped(self, change: Callable[[T], T]) -> Lazy[T]:
        return Lazy(lambda number: change(self.make(number)), self.numbers)


def lazy(items: Sequence[T]) -> Lazy[T]:
    return items if isinstance(items, Lazy) else Lazy(items.__getitem__, range(len(items)))


def views(whole: Samples, part: Tensor, parts: int) -> Lazy[Samples]:
    """Disjoint parts of a pool, from the number of each sample's part, (N,), int64; -1: in no part."""
    held = (part >= 0).nonzero().flatten()
    rows = held[part[held].argsort(stable=True)]  # the samples of part 0 in order, then of part 1, etc.
    sizes = torch.bincount(part[held], minlength=parts)
    starts: list[int] = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).tolist()
    rows = rows if whole.rows is None else whole.rows[rows]

    def view(number: int) -> Samples:
        return whole.view_of(rows[starts[number] : starts[number + 1]])

    return Lazy(view, range(parts))


@dataclass(frozen=True)
class Client:
    """A participant: its id, by which aggregation is ordered, its name, its home domain's, and its training samples."""

    id: int
    name: str
    domain: str
    train: Samples


Role = Literal["validation", "test"]


@dataclass(frozen=True)
class Environment:
    """Samples on which a model is scored."""

    name: str  # their domain (or shift)
    role: Role  # ``test`` makes the headline; a selection may inspect ``validation``
    client: int | None  # the id of their client; None for a client that never trained
    samples: Samples
    own: bool = True  # whether its client's model is scored; if not, the model of a client that never trained

    @property
    def scored_as(self) -> int | None:
        """The client whose model is scored; None: the model of a client that never trained."""
        return self.client if self.own else None


@dataclass(frozen=True, eq=False)
class Kind:
    """Environments of one role: client numbers, ascending, names, samples, and whether the client's model is scored."""

    role: Role
    clients: Sequence[int]
    names: Sequence[str]
    samples: Sequence[Samples]
    own: bool = True


def environments_of(kinds: Sequence[Kind], unseen: Sequence[Environment] = ()) -> Lazy[Environment]:
    """The environments of client 0, kind after kind, then of client 1, etc.; last, environments without a client."""
    owned = [(client, kind, n) for kind, each in enumerate(kinds) for n, client in enumerate(each.clients)]
    owned.sort()

    def environment(number: int) -> Environment:
        if number >= len(owned):
            return unseen[number - len(owned)]
        client, place, n = owned[number]
        kind = kinds[place]
        return Environment(kind.names[n], kind.role, client, kind.samples[n], kind.own)

    return Lazy(environment, range(len(owned) + len(unseen)))
