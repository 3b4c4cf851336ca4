"""What models are scored on: samples with a name, a role, and the client they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedshift.clients.samples import Move, Samples
from fedshift.clients.tables import Lazy

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
    samples: Sequence[Samples]


def environments_of(kinds: Sequence[Kind], unseen: Sequence[Environment] = ()) -> Lazy[Environment]:
    """The environments of client 0, one of each kind, then those of client 1, and so on; last, those of no client."""
    held = sum(len(kind.names) for kind in kinds)

    def environment(number: int) -> Environment:
        if number >= held:
            return unseen[number - held]
        client, place = divmod(number, len(kinds))
        kind = kinds[place]
        return Environment(kind.names[client], kind.role, client, kind.samples[client])

    return Lazy(environment, range(held + len(unseen)))
