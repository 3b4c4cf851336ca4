"""What a run is between two rounds, in one file that is replaced atomically.

The clients' states lie in files of their own (:mod:`fedshift.site.store`), of which a checkpoint names the versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift.coordinator.coordinator import Coordinator
from fedshift.coordinator.ledger import Ledger
from fedshift.core.contract import ServerState
from fedshift.core.sealed import sealed, unsealed
from fedshift.core.state import flat_optimisers, optimisers_from_flat
from fedshift.core.tensors import Tensors
from fedshift.files import write

_COUNTED = ("position", "bytes_down", "bytes_up", "bytes_telemetry", "missing")


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        experiment: the experiment's fingerprint.
        position: how many rounds are done, over all stages.
        bytes_down: bytes sent to clients so far.
        bytes_up: bytes sent by clients so far.
        bytes_telemetry: bytes of telemetry so far.
        missing: who did not answer since the last record.
        ledger: every kind of message that crossed the wire so far, as :meth:`Ledger.table` says it.
        server: the server's state.
        clients: which version of its state each client has that took part: the position that wrote it.
    """

    experiment: str
    position: int
    bytes_down: int
    bytes_up: int
    bytes_telemetry: int
    missing: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    server: ServerState
    clients: Mapping[int, int]

    @classmethod
    def of(cls, experiment: str, coordinator: Coordinator, clients: Mapping[int, int]) -> Checkpoint:
        """A coordinator as it is now, and the versions of its clients' states."""
        counted = {name: getattr(coordinator, name) for name in _COUNTED}
        ledger = coordinator.ledger.table()
        return cls(experiment=experiment, server=coordinator.state, clients=clients, ledger=ledger, **counted)

    def restore(self, coordinator: Coordinator) -> None:
        """Make a coordinator what it was."""
        for name in _COUNTED:
            setattr(coordinator, name, getattr(self, name))
        coordinator.ledger = Ledger.from_table(self.ledger)
        coordinator.state = replace(self.server, clients=coordinator.state.clients)

    def save(self, path: Path) -> None:
        """Write it atomically; when this returns it is on the disk.

        Raises:
            FedshiftError: the disk is full, say; the checkpoint before is kept.
        """
        tensors: dict[str, Tensor] = {}
        for scope in ("shared", "down", "server"):
            tensors |= {f"{scope}//{name}": tensor for name, tensor in getattr(self.server, scope).items()}
        tensors |= {f"optimisers//{name}": tensor for name, tensor in flat_optimisers(self.server.optimisers).items()}
        # Two rows of whole numbers: 10,000 clients take 160 kB.
        versions = sorted(self.clients.items())
        tensors["clients//versions"] = torch.tensor(versions, dtype=torch.int64).reshape(-1, 2).T
        write(path, sealed(tensors, {name: getattr(self, name) for name in ("experiment", "ledger", *_COUNTED)}))

    @classmethod
    def load(cls, path: Path, experiment: str, device: torch.device) -> Checkpoint:
        """Read one back onto a device, bit for bit.

        Raises:
            FedshiftError: it is truncated, or belongs to another experiment.
        """
        fix = "Remove it, and `fedshift resume` starts the run again from its first round."
        tensors, about = unsealed(path, experiment, "checkpoint", fix)
        ids, positions = tensors.pop("clients//versions").tolist()
        scopes: dict[str, dict[str, Tensor]] = {"shared": {}, "down": {}, "server": {}, "optimisers": {}}
        for key, tensor in tensors.items():
            scope, _, name = key.partition("//")
            scopes[scope][name] = tensor.to(device)
        optimisers = optimisers_from_flat(scopes.pop("optimisers"))
        shared, down, server = (Tensors(scopes[scope]) for scope in ("shared", "down", "server"))
        state = ServerState(shared, down, server, optimisers)
        return cls(server=state, clients=dict(zip(ids, positions, strict=True)), **about)
