"""What a run is between two rounds, in one file that is replaced atomically.

The clients' states lie in files of their own (:mod:`fedshift.site.store`), of which a checkpoint names the versions.

A checkpoint is written beside the one before, as the *next*, and takes its place by :func:`commit`. So runs that
advance together are saved together: all write their next one before any commits it, and after a crash at any moment
there is a position that all of them can go back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from fedshift import files
from fedshift.coordinator.coordinator import Coordinator
from fedshift.coordinator.ledger import Ledger
from fedshift.coordinator.schedule import Schedule
from fedshift.core import sealed
from fedshift.core.contract import ServerState
from fedshift.core.state import flat_optimisers, optimisers_from_flat
from fedshift.core.tensors import Tensors
from fedshift.errors import DamagedError
from fedshift.settings.spec import RunName

CURRENT = "checkpoint.safetensors"
NEXT = "checkpoint.next.safetensors"
_COUNTED = ("position", "missing", "ended")
_SCOPES = ("shared", "down", "server")


class About(sealed.About):
    """What a checkpoint says beside its tensors; see :class:`Checkpoint` and :class:`Execution`."""

    position: NonNegativeInt
    missing: list[dict[str, Any]]
    ended: dict[str, NonNegativeInt]
    records: str
    ledger: list[dict[str, Any]]
    engine: dict[str, Any]
    together: list[RunName]

    @property
    def execution(self) -> Execution:
        """How the run was carried out."""
        return Execution(self.engine, tuple(self.together))


@dataclass(frozen=True)
class Execution:
    """How a run is carried out, which decides its last bits; a run that goes on is carried out in the same way.

    Attributes:
        engine: which engine, as a table.
        together: the runs that advance together, this one among them, in order.
    """

    engine: Mapping[str, Any]
    together: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        experiment: the experiment's fingerprint.
        position: how many rounds are done, over all stages.
        missing: who did not answer since the last record.
        ended: the last rounds of stages that ended early, by name.
        records: a digest of all records so far.
        execution: how the run is carried out.
        ledger: every kind of message that crossed the wire so far, as :meth:`Ledger.table` says it.
        server: the server's state.
        clients: which version of its state each client has that took part: the position that wrote it.
    """

    experiment: str
    position: int
    missing: list[dict[str, Any]]
    ended: dict[str, int]
    records: str
    execution: Execution
    ledger: list[dict[str, Any]]
    server: ServerState
    clients: Mapping[int, int]

    @classmethod
    def of(
        cls, experiment: str, coordinator: Coordinator, clients: Mapping[int, int], records: str, execution: Execution
    ) -> Checkpoint:
        """A coordinator as it is now, the versions of its clients' states, and what was recorded."""
        counted = {name: copy(getattr(coordinator, name)) for name in _COUNTED}
        return cls(
            experiment=experiment,
            server=coordinator.state,
            clients=clients,
            records=records,
            execution=execution,
            ledger=coordinator.ledger.table(),
            **counted,
        )

    def restore(self, coordinator: Coordinator) -> None:
        """Make a coordinator what it was.

        Raises:
            DamagedError: it is no checkpoint of such a coordinator.
        """
        schedule = Schedule(coordinator.setup.stages, self.ended)
        if self.position > len(schedule):
            raise DamagedError(f"The checkpoint is of round {self.position}, but the run has {len(schedule)} rounds.")
        for scope in _SCOPES:
            check_alike(getattr(coordinator.state, scope), getattr(self.server, scope), "checkpoint")
        unknown = self.clients.keys() - coordinator.names.keys()
        if unknown:
            raise DamagedError(f"The checkpoint names client {min(unknown)}, which the run does not have.")
        for name in _COUNTED:
            setattr(coordinator, name, copy(getattr(self, name)))
        try:
            coordinator.ledger = Ledger.from_table(self.ledger)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise DamagedError(f"The checkpoint's ledger of messages is none ({error}).") from error
        last = schedule[self.position - 1].number if self.position else 0
        coordinator.state = replace(self.server, clients=coordinator.state.clients, round=last)

    def save(self, path: Path) -> None:
        """Write it atomically; when this returns it is on the disk.

        Raises:
            FedshiftError: the disk is full, say; what was there before is kept.
        """
        tensors: dict[str, Tensor] = {}
        for scope in _SCOPES:
            tensors |= {f"{scope}//{name}": tensor for name, tensor in getattr(self.server, scope).items()}
        tensors |= {f"optimisers//{name}": tensor for name, tensor in flat_optimisers(self.server.optimisers).items()}
        # Two rows of whole numbers: 10,000 clients take 160 kB.
        versions = sorted(self.clients.items())
        tensors["clients//versions"] = torch.tensor(versions, dtype=torch.int64).reshape(-1, 2).T
        same = {name: getattr(self, name) for name in ("experiment", *_COUNTED, "records", "ledger")}
        about = About(**same, engine=dict(self.execution.engine), together=list(self.execution.together))
        files.write(path, sealed.sealed(tensors, about))

    @classmethod
    def load(cls, path: Path, experiment: str, device: torch.device) -> Checkpoint:
        """Read one back onto a device, bit for bit.

        Raises:
            DamagedError: it is truncated, say, or belongs to another experiment.
        """
        tensors, about = sealed.unsealed(path, experiment, "checkpoint", About)
        scopes: dict[str, dict[str, Tensor]] = {scope: {} for scope in (*_SCOPES, "optimisers", "clients")}
        try:
            for key, tensor in tensors.items():
                scope, _, name = key.partition("//")
                scopes[scope][name] = tensor
            ids, positions = scopes.pop("clients")["versions"].tolist()
            optimisers = optimisers_from_flat(
                {name: tensor.to(device) for name, tensor in scopes.pop("optimisers").items()}
            )
        except (LookupError, ValueError, TypeError) as error:
            raise DamagedError(f"The checkpoint '{path}' lacks a tensor, or has one that is none of it.") from error
        shared, down, server = (Tensors({n: t.to(device) for n, t in scopes[name].items()}) for name in _SCOPES)
        return cls(
            server=ServerState(shared, down, server, optimisers),
            clients=dict(zip(ids, positions, strict=True)),
            execution=about.execution,
            **{name: getattr(about, name) for name in ("experiment", *_COUNTED, "records", "ledger")},
        )


def check_alike(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str) -> None:
    """Raise a DamagedError unless tensors have the names, types and shapes of others."""
    if different := sorted(wanted.keys() ^ found.keys()):
        problem = "lacks" if different[0] in wanted else "holds"
        raise DamagedError(f"The {what} {problem} the tensor '{different[0]}'.")
    for name, tensor in wanted.items():
        if (tensor.dtype, tensor.shape) != (found[name].dtype, found[name].shape):
            raise DamagedError(
                f"The {what} has '{name}' as {found[name].dtype} {list(found[name].shape)} in the place of "
                f"{tensor.dtype} {list(tensor.shape)}."
            )


# The checkpoints of a run folder ------------------------------------------------------------------


def saved(folder: Path) -> dict[int, tuple[Path, About]]:
    """What the checkpoints of a run folder say of themselves, by position: none, one, or the next one as well.

    Raises:
        DamagedError: one cannot be read.
    """
    found = {}
    for name in (CURRENT, NEXT):
        if (folder / name).exists():
            try:
                about = sealed.said(folder / name, "checkpoint", About)
            except DamagedError:
                if (folder / name).exists():
                    raise
                continue  # whoever carries the run out has committed it meanwhile
            found[about.position] = (folder / name, about)
    return found


def commit(folder: Path) -> None:
    """Put the next checkpoint in the place of the one before.

    Raises:
        FedshiftError: it could not be done; both are there.
    """
    files.rename(folder / NEXT, folder / CURRENT)
