"""Who holds which samples: the clients that train, and the environments on which models are scored.

A federation keeps one copy of its samples: :class:`Samples` are views of a pool that all share. Clients and
environments are made when they are asked for, from tables of a few numbers each, so that ten thousand of them cost
hardly more than a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar, overload

import torch
from torch import Tensor

from fedshift.data.inputs import Inputs
from fedshift.errors import FedshiftError

Role = Literal["validation", "test"]
Move = Callable[[Tensor], Tensor]
"""Answers a tensor's copy on some device, the same one each time; see :func:`mover`."""


class Pool(NamedTuple):
    """Inputs x (N, ...), uint8 images, int64 tokens or float32, and labels y (N,), int64, that views share."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, init=False, eq=False)
class Samples:
    """Samples of a pool, some or all; those of ``Samples(x, y)`` are a whole pool.

    Attributes:
        pool: the inputs and labels among which they are, shared with other views.
        rows: where in the pool they are, (n,), int64, on the pool's device; None: all, in order.
    """

    pool: Pool
    rows: Tensor | None

    def __init__(self, x: Tensor, y: Tensor, rows: Tensor | None = None) -> None:
        object.__setattr__(self, "pool", Pool(x, y))
        object.__setattr__(self, "rows", rows)

    def __len__(self) -> int:
        return len(self.pool.y if self.rows is None else self.rows)

    def __eq__(self, other: object) -> bool:
        """The same rows of the same pool."""
        if not isinstance(other, Samples) or not self.shares_pool(other):
            return False
        if self.rows is None or other.rows is None:
            return self.rows is other.rows
        return torch.equal(self.rows, other.rows)

    def __hash__(self) -> int:
        return hash((id(self.pool.x), id(self.pool.y), len(self)))

    @property
    def x(self) -> Tensor:
        """The inputs (n, ...): the pool's own tensor if these are all, else gathered anew each time."""
        return self.pool.x if self.rows is None else self.pool.x[self.rows]

    @property
    def y(self) -> Tensor:
        """The labels (n,), int64, as the inputs."""
        return self.pool.y if self.rows is None else self.pool.y[self.rows]

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """``x[indices]`` and ``y[indices]``, gathered without the other samples.

        Args:
            indices: places from 0 to n - 1, (B,), int64, or a mask (n,); on the CPU or the pool's device.
        """
        rows = indices if self.rows is None else self.rows[indices]
        if rows.dtype == torch.bool:
            return self.pool.x[rows], self.pool.y[rows]
        return self.pool.x.index_select(0, rows), self.pool.y.index_select(0, rows)  # a fifth of the time of indexing

    def subset(self, indices: Tensor) -> Samples:
        """Some of these samples, as another view of the pool; ``indices`` as for :meth:`batch`."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        rows = indices.to(self.pool.y.device) if self.rows is None else self.rows[indices]
        return Samples(*self.pool, rows)

    def shares_pool(self, other: Samples) -> bool:
        """Whether both are views of one pool."""
        return self.pool.x is other.pool.x and self.pool.y is other.pool.y

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device, to which these alone are copied; :meth:`Federation.to` copies pools."""
        if self.pool.x.device == device:
            return self
        return Samples(self.x.to(device), self.y.to(device))

    def moved(self, move: Move) -> Samples:
        """The same view of the pool's copy."""
        return Samples(move(self.pool.x), move(self.pool.y), None if self.rows is None else move(self.rows))


@dataclass(frozen=True)
class Client:
    """One participant: its id, by which merges are ordered, its name, its domain's, and its training samples."""

    id: int
    name: str
    domain: str
    train: Samples

    def moved(self, move: Move) -> Client:
        """The same client with a view of the pool's copy."""
        return replace(self, train=self.train.moved(move))


@dataclass(frozen=True)
class Environment:
    """Samples on which a model is scored.

    Attributes:
        name: the domain (or shift) they come from.
        role: ``test`` makes the headline; ``validation`` is what a selection may look at.
        client: the id of the client they belong to; None for a client that never trained.
        samples: the inputs and labels.
    """

    name: str
    role: Role
    client: int | None
    samples: Samples

    def moved(self, move: Move) -> Environment:
        """The same environment with a view of the pool's copy."""
        return replace(self, samples=self.samples.moved(move))


# Tables, from which items are made ---------------------------------------------------------------


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


@dataclass(frozen=True, eq=False)
class ClientTable:
    """Clients by id: each one's name, domain and training samples."""

    names: tuple[str, ...]
    domains: tuple[str, ...]
    train: Table[Samples]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Client:
        return Client(number, self.names[number], self.domains[number], self.train[number])

    def moved(self, move: Move) -> ClientTable:
        """The same clients with views of the pool's copy."""
        return replace(self, train=self.train.moved(move))


@dataclass(frozen=True, eq=False)
class Kind:
    """One environment of every client: its role, and by the client's id its name and samples."""

    role: Role
    names: tuple[str, ...]
    samples: Table[Samples]


@dataclass(frozen=True, eq=False)
class EnvironmentTable:
    """The environments of client 0, one of each kind, then those of client 1, and so on; last, those of no client."""

    kinds: tuple[Kind, ...]
    unseen: tuple[Environment, ...] = ()

    def __len__(self) -> int:
        return sum(len(kind.names) for kind in self.kinds) + len(self.unseen)

    def __getitem__(self, number: int) -> Environment:
        client, place = divmod(number, len(self.kinds))
        kind = self.kinds[place]
        if client >= len(kind.names):
            return self.unseen[number - len(self)]
        return Environment(kind.names[client], kind.role, client, kind.samples[client])

    def moved(self, move: Move) -> EnvironmentTable:
        """The same environments with views of the pool's copy."""
        kinds = tuple(replace(kind, samples=kind.samples.moved(move)) for kind in self.kinds)
        return EnvironmentTable(kinds, tuple(environment.moved(move) for environment in self.unseen))


@dataclass(frozen=True, eq=False)
class _OfOneClient:
    """Environments of which those of any client are client 0's."""

    table: Table[Environment]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Environment:
        environment = self.table[number]
        return environment if environment.client is None else replace(environment, client=0)

    def moved(self, move: Move) -> _OfOneClient:
        return _OfOneClient(self.table.moved(move))


# The federation ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """Clients, environments, the classes' names, and how samples become inputs of a network.

    Attributes:
        clients: who trains, in id order; a tuple, or made when they are asked for.
        environments: what is scored; several clients may have one of the same name.
        classes: the classes' names.
        inputs: how samples become inputs.
        notes: what a reader of the results must know of how the data were divided.
    """

    clients: Sequence[Client]
    environments: Sequence[Environment]
    classes: tuple[str, ...]
    inputs: Inputs
    notes: tuple[str, ...] = ()

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each client among the clients, by id; ids are in order."""
        return dict(sorted((client.id, place) for place, client in enumerate(self.clients)))

    @property
    def ids(self) -> Sequence[int]:
        """The clients' ids, in order."""
        return tuple(self.places)

    def client(self, id: int) -> Client:
        """The client of an id."""
        return self.clients[self.places[id]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.clients[0].train.pool.x.shape[1:])

    def checked(self) -> Federation:
        """The same federation without the empty environments of single clients, which a note then tells of.

        Raises:
            FedshiftError: a client has nothing to train on, or nobody has a sample of some environment.
        """
        for client in self.clients:
            if not len(client.train):
                raise FedshiftError(
                    f"Client '{client.name}' has no training image: give it more images, or divide the domains among "
                    "fewer clients (partition.clients, partition.min_samples)."
                )
        scored: list[int] = []
        left: dict[tuple[str, str], bool] = {}  # whether anybody has a sample of it
        for place, environment in enumerate(self.environments):
            key, some = (environment.role, environment.name), len(environment.samples) > 0
            left[key] = left.get(key, False) or some
            if some:
                scored.append(place)
        for (role, name), some in left.items():
            if not some:
                raise FedshiftError(
                    f"No {role} image of '{name}' is left to score: give it more images, or "
                    "hold out a larger part (protocol.validation, protocol.test), or divide the domains among fewer "
                    "clients (partition.clients)."
                )
        dropped = len(self.environments) - len(scored)
        if not dropped:
            return self
        note = (
            f"{dropped} of {len(self.environments)} environments of single clients hold no image and are not scored; "
            "means over clients are over the others."
        )
        return replace(self, environments=_lazy(self.environments).among(scored), notes=(*self.notes, note))

    def pooled(self) -> Federation:
        """The same samples with a single client that holds all training data."""
        together = joined([client.train for client in self.clients])
        environments = _lazy(self.environments)
        return replace(
            self,
            clients=(Client(0, "all", "all", together),),
            environments=Lazy(_OfOneClient(environments.table), environments.numbers),
        )

    def to(self, device: torch.device) -> Federation:
        """The same federation on a device, to which every pool is copied once, and of which views go on sharing it."""
        move = mover(device)
        return replace(self, clients=_lazy(self.clients).moved(move), environments=_lazy(self.environments).moved(move))


def joined(parts: Sequence[Samples]) -> Samples:
    """All samples of the parts, one part after another: a view if they share a pool, else a copy."""
    first = parts[0]
    if not all(first.shares_pool(part) for part in parts):
        return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    everything = torch.arange(len(first.pool.y), device=first.pool.y.device)
    return Samples(*first.pool, torch.cat([everything if part.rows is None else part.rows for part in parts]))


def mover(device: torch.device) -> Move:
    """A function that copies each tensor to a device once, and answers the same copy when it is asked again."""
    copies: dict[Tensor, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        if tensor not in copies:
            copies[tensor] = tensor.to(device)
        return copies[tensor]

    return move


def _lazy(items: Sequence[M]) -> Lazy[M]:
    return items if isinstance(items, Lazy) else Lazy.over(Items(tuple(items)))
