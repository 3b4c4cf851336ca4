"""The clients' index as a result of its own: a vector for every client, before any training."""

from __future__ import annotations

from typing import Any

from fedshift.methods.client2vec.client2vec import Client2Vec
from fedshift.methods.client2vec.index import FEATURE, LABEL, notes_on
from fedshift.page import *


@dataclass(frozen=True)
class Index:
    """A vector for every client of a federation, in the order of their ids.

    Attributes:
        clients: their names.
        domains: the domain of each.
        samples: how many training samples each has.
        feature: feature vectors (K, d).
        label: label vectors (K, d), or None for an index of one part.
        messages: what crossed the wire to make it, by exchange and direction: tensors, clients, rounds and bytes.
    """

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    samples: tuple[int, ...]
    feature: Tensor
    label: Tensor | None
    messages: dict[str, Any]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: that it does not separate the clients, if so."""
        return notes_on(self.feature)

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {tuple(self.label.shape)}"
        return f"Index(clients: {len(self.clients)}, feature {tuple(self.feature.shape)}{label})"

    @classmethod
    def of(cls, federated: FederatedData, state: ServerState, messages: dict[str, Any]) -> Index:
        """What the stages before training left on the server."""
        clients = federated.clients
        return cls(
            tuple(client.name for client in clients),
            tuple(client.domain for client in clients),
            tuple(len(client.train) for client in clients),
            state.tensors[FEATURE].cpu(),
            state.tensors[LABEL].cpu() if LABEL in state.tensors else None,
            messages,
        )


def check_makes_index(method: Method, name: str) -> None:
    """Raise an error if a method, of that name, makes no index of clients."""
    if not isinstance(method, Client2Vec):
        raise FedshiftError(f"The method '{name}' makes no index of clients: --set method.name=client2vec")
