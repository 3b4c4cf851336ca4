"""A run's state between two rounds: a manifest, the server's tensors, and the files that the manifest names.

``manifest-<position>.json`` is written last, so it stands for a whole checkpoint. Runs that advance together, and a
coordinator that may go back, keep an older checkpoint as long as it may be needed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import Field, NonNegativeInt
from safetensors import SafetensorError
from torch import Tensor

from fedshift.core.contract import ServerState
from fedshift.core.messages import pack, unpack
from fedshift.core.state import flat_optimisers, optimisers_from_flat
from fedshift.core.tensors import Tensors, part_of
from fedshift.errors import DamagedError, FedshiftError
from fedshift.manifest import Manifest
from fedshift.rounds.coordinator import Coordinator, schedule_of
from fedshift.rounds.ledger import Entry, Ledger
from fedshift.rounds.site import Site
from fedshift.written import RunName

if TYPE_CHECKING:
    from torch import Tensor


COUNTED = ("position", "missing", "ended")
_SCOPES = ("shared", "down", "server")
_NAME = re.compile(r"manifest-(\d+)\.json")


class Checkpoint(Manifest):
    """The manifest of a run between two rounds."""

    position: NonNegativeInt  # rounds done, over all stages
    missing: list[dict[str, Any]]  # clients that did not answer since the last record
    ended: dict[str, NonNegativeInt]  # the last rounds of stages that ended early, by name
    ledger: list[Entry]  # every kind of message so far
    engine: dict[str, Any]  # the engine of the run, which decides its last bits
    # the runs that advance together, this run included, in order; their order decides last bits as well
    together: list[RunName]
    host: dict[str, Any] = Field(default_factory=dict)  # what else the run's host needs to continue

    @property
    def messages(self) -> dict[str, Any]:
        return Ledger(self.ledger).declaration()

    def restore(self, coordinator: Coordinator, server: ServerState) -> None:
        schedule = schedule_of(coordinator.setup.stages, self.ended)
        if self.position > len(schedule):
            raise DamagedError(f"The checkpoint is of round {self.position}, but the run has {len(schedule)} rounds.")
        for scope in _SCOPES:
            check_same_layout(getattr(coordinator.state, scope), getattr(server, scope), "checkpoint")
        for name in COUNTED:
            setattr(coordinator, name, copy(getattr(self, name)))
        coordinator.ledger = Ledger(self.ledger)
        last = schedule[self.position - 1].number if self.position else 0
        coordinator.state = replace(server, clients=coordinator.state.clients, round=last)


class Summary(Manifest):
    """summary.json: a finished run, for readers; the choice of each selection rule, and notes.

    ``selected`` has by rule: the round, its means over test and validation, and whether it uses the test data.
    """

    selected: dict[str, dict[str, Any]]
    notes: list[str]
    ended: dict[str, str] = Field(default_factory=dict)


def manifest_name(position: int) -> str:
    return f"manifest-{position}.json"


def tensors_name(position: int) -> str:
    return f"checkpoint@{position}.safetensors"


def saved_positions(folder: Path) -> set[int]:
    matches = map(_NAME.fullmatch, (path.name for path in folder.glob("manifest-*.json")))
    return {int(match[1]) for match in matches if match}


def read_checkpoint(folder: Path, run: str, position: int) -> Checkpoint:
    path = folder / manifest_name(position)
    found = Checkpoint.read(path, run)
    if found.position != position:
        raise DamagedError(f"'{path}' is the checkpoint of round {found.position} under another name.")
    return found


def common_position(folders: list[Path]) -> int:
    """The newest position of which all runs have a checkpoint; 0 without any."""
    return max(set[int].intersection(*({0, *saved_positions(folder)} for folder in folders)), default=0)


def pack_server(state: ServerState) -> bytes:
    """The server's tensors as a file, which :func:`unpack_server` reads back bit for bit."""
    tensors: dict[str, Tensor] = {}
    for scope in _SCOPES:
        tensors |= {f"{scope}//{name}": tensor for name, tensor in getattr(state, scope).items()}
    return pack(tensors | {f"optimisers//{name}": each for name, each in flat_optimisers(state.optimisers).items()})


def unpack_server(data: bytes, device: torch.device) -> ServerState:
    scopes: dict[str, dict[str, Tensor]] = {scope: {} for scope in (*_SCOPES, "optimisers")}
    try:
        for key, tensor in unpack(data).items():
            scope, _, name = key.partition("//")
            scopes[scope][name] = tensor.to(device)
        optimisers = optimisers_from_flat(scopes.pop("optimisers"))
    except (LookupError, ValueError, SafetensorError) as error:
        raise DamagedError(f"The checkpoint lacks a tensor, or has an unknown tensor ({error}).") from error
    shared, down, server = (Tensors(scopes[name]) for name in _SCOPES)
    return ServerState(shared, down, server, optimisers)


def check_same_layout(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str) -> None:
    """Raise a DamagedError unless tensors have the expected names, types and shapes."""
    if different := sorted(expected.keys() ^ found.keys()):
        problem = "lacks" if different[0] in expected else "holds"
        raise DamagedError(f"The {what} {problem} the tensor '{different[0]}'.")
    for name, tensor in expected.items():
        if (tensor.dtype, tensor.shape) != (found[name].dtype, found[name].shape):
            raise DamagedError(
                f"The {what} has '{name}' as {found[name].dtype} {list(found[name].shape)} instead of "
                f"{tensor.dtype} {list(tensor.shape)}."
            )


class Weights(NamedTuple):
    """Named tensors that need not be in memory together.

    ``likes`` has a tensor of the same type and shape for each name.
    """

    likes: Mapping[str, Tensor]
    tensors: Iterable[Tensor]


def current_weights(
    coordinator: Coordinator, read: Collection[str], site: Site | None = None, final: bool = False
) -> Weights:
    """The tensors that a prediction reads, at the end of a round.

    Args:
        coordinator: has the shared tensors.
        read: the parts that a prediction reads.
        site: has the clients' tensors, each under ``client.<id>.``; None: they stay at their sites.
        final: include every shared tensor, and all that clients keep or receive individually.
    """
    state, initial = coordinator.state, {} if site is None else site.initial
    everybodys = (state.shared | state.down).of_parts(read) | (state.shared if final else {})
    # In order of their names, which a checkpoint does not keep as they were.
    sent = dict(sorted(everybodys.items()))
    private = {name: like for name, like in sorted(initial.items()) if final or part_of(name) in read}
    last = coordinator.schedule[coordinator.position - 1].stage.training
    individual = {
        f"client.{client}.{name}": tensor
        for client in coordinator.names
        for name, tensor in coordinator.own(last, client).items()
        if final or part_of(name) in read
    }
    if site is None or not private:
        return Weights(sent | individual, chain(sent.values(), individual.values()))
    trained = [client for client in site.store.ids() if site.has_trained(client)]
    likes = sent | {f"client.{client}.{name}": like for client in trained for name, like in private.items()}
    states = (state for _, state in site.store.items() if state.trained)  # one client in memory at a time
    kept = (state.tensors[name] for state in states for name in private)
    return Weights(likes | individual, chain(sent.values(), kept, individual.values()))


def selected_name(position: int) -> str:
    return f"selected@{position}.safetensors"


class WeightsFile(Mapping[str, "Tensor"]):
    """The tensors of a safetensors file, each read on request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as file:
            self._names = dict.fromkeys(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        with self._opened() as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor.clone()  # into memory that torch aligns, as unpack does

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _opened(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self._path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise FedshiftError(f"'{self._path}' cannot be read ({error}). Restore it.") from error
