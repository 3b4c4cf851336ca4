"""Who trains: a client's id, name, domain and training samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedshift.federation.samples import Move, Samples
from fedshift.federation.tables import Table


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
