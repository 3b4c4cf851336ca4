"""The clients' index as a result of its own: a vector for every client, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

    @property
    def summary(self) -> tuple[str, ...]:
        """What was made, what clients sent for it, and how alike they are."""
        from fedshift.methods.client2vec.heat_maps import cosines  # with matplotlib

        sent = [message["up"] for message in self.messages.values()]
        return (
            f"{len(self.clients)} clients of {len(set(self.domains))} domains, {self.feature.shape[1]} features; "
            f"clients sent {sum(up['bytes'] for up in sent)} bytes in {sum(up['messages'] for up in sent)} messages.",
            cosines(self),
        )

    def write(self, folder: Path) -> list[Path]:
        """Write ``index.parquet``, ``similarity.png`` and ``messages.json`` into a folder, and return their paths.

        Raises:
            FedshiftError: a file cannot be written, or pyarrow is not installed.
        """
        from fedshift.methods.client2vec.heat_maps import write_index

        return write_index(self, folder)

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
