"""What models are scored on: samples with a name, a role, and the client they belong to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fedshift.federation.samples import Move, Samples
from fedshift.federation.tables import Table

Role = Literal["validation", "test"]


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
class OfOneClient:
    """Environments of which those of any client are client 0's."""

    table: Table[Environment]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Environment:
        environment = self.table[number]
        return environment if environment.client is None else replace(environment, client=0)

    def moved(self, move: Move) -> OfOneClient:
        """The same with copies of their tensors."""
        return OfOneClient(self.table.moved(move))
