"""Who trains: a client's id, name, domain and training samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedshift.clients.samples import Move, Samples


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
