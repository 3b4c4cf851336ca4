"""Client states: in memory, or on the disk and read when a client takes part.

A file contains one client's state after a round: ``<id>@<position>.safetensors``, where the position is the number of
finished rounds. It never changes: the next round creates another, and the checkpoint writer removes the old file once
no manifest names it. So a round costs what its cohort costs, and a killed run returns to its checkpoint's files.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from fedshift import files
from fedshift.core.messages import metadata, pack, unpack
from fedshift.core.state import ClientState
from fedshift.errors import DamagedError
from fedshift.manifest import FileDigest, read_file, write_file


class ClientStore:
    """Client states by client id, in memory, for clients that have taken part; states are immutable."""

    def __init__(self) -> None:
        self._memory: OrderedDict[int, ClientState] = OrderedDict()

    def begin(self, position: int) -> None:
        """Start a round, after which ``position`` rounds are finished."""

    def get(self, client: int) -> ClientState | None:
        return self._memory.get(client)

    def peek(self, client: int) -> ClientState | None:
        """As :meth:`get`, without effect on which states stay in memory."""
        return self.get(client)

    def put(self, client: int, state: ClientState) -> None:
        self._memory[client] = state

    def ids(self) -> Sequence[int]:
        """The clients that have a state, sorted; reads no state."""
        return sorted(self._memory)

    def items(self) -> Iterator[tuple[int, ClientState]]:
        """Every client with a state, in id order, one at a time, each by :meth:`peek`."""
        for client in self.ids():
            state = self.peek(client)
            assert state is not None
            yield client, state


_FILE = re.compile(r"(\d+)@(\d+)\.safetensors")


class DiskStore(ClientStore):
    """Client states in a folder, the latest used also in memory; new ones are in files that no checkpoint names."""

    def __init__(self, folder: Path, keep: int, device: torch.device) -> None:
        """Create an empty store with at most ``keep`` states in memory; a DiskError if the folder cannot be created."""
        super().__init__()  # least recently used first
        files.make_folder(folder)
        self._folder, self._keep, self._device = folder, keep, device
        self._position = 0
        self._named = -1  # a checkpoint may name files of positions up to here
        self._changed: dict[int, int] = {}  # by client, the position of a state that is in memory only
        self._written: dict[int, str] = {}  # by client, the file with its newest state
        self._digests: dict[str, FileDigest] = {}  # of these files
        self._unsynced: set[str] = set()

    # States -------------------------------------------------------------------------------------

    def get(self, client: int) -> ClientState | None:
        """The state of one client; a DamagedError for a missing or damaged file, a DiskError for a full disk."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client]
        if client not in self._written:
            return None
        state = self._read(client)
        self._cache(client, state)
        return state

    def put(self, client: int, state: ClientState) -> None:
        """Replace the state of one client; a DiskError for a full disk, a ValueError before :meth:`begin`."""
        if self._position <= self._named:
            raise ValueError(f"A checkpoint may name the states of position {self._position}: start the next round.")
        self._changed[client] = self._position
        self._cache(client, state)

    def ids(self) -> Sequence[int]:
        return sorted(self._written.keys() | self._changed.keys())

    def peek(self, client: int) -> ClientState | None:
        if client in self._memory or client not in self._written:
            return self._memory.get(client)
        return self._read(client)

    # Rounds and checkpoints ---------------------------------------------------------------------

    def begin(self, position: int) -> None:
        self._position = position

    def flush(self) -> dict[str, FileDigest]:
        """Write every state to the disk, and return the files that a checkpoint must name; a DiskError if full."""
        for client in sorted(self._changed):
            self._write(client)
        if self._unsynced:
            files.sync(self._folder, sorted(self._unsynced))
        self._unsynced.clear()
        self._named = self._position
        return {name: self._digests[name] for _, name in sorted(self._written.items())}

    def rewind(self, position: int, named: Mapping[str, FileDigest]) -> None:
        """Return to a checkpoint with the named states; a DamagedError for a name of no client's file."""
        self._position = self._named = position
        for emptied in (self._memory, self._changed, self._unsynced, self._written):
            emptied.clear()
        self._digests = dict(named)
        for name in named:
            match = _FILE.fullmatch(name)
            if match is None:
                raise DamagedError(f"'{name}' is not a file of a client's state.")
            self._written[int(match[1])] = name

    # Memory and files ---------------------------------------------------------------------------

    def _cache(self, client: int, state: ClientState) -> None:
        """Keep a state in memory, and evict the least recently used."""
        self._memory[client] = state
        self._memory.move_to_end(client)
        while len(self._memory) > self._keep:
            oldest = next(iter(self._memory))
            if oldest in self._changed:
                self._write(oldest)
            del self._memory[oldest]

    def _write(self, client: int) -> None:
        """Write a state that only memory has, and remove its predecessor if no checkpoint can name it."""
        position, before = self._changed.pop(client), self._written.get(client)
        name = f"{client}@{position}.safetensors"
        self._digests[name] = write_file(self._folder / name, pack_state(self._memory[client], self._device), soon=True)
        self._written[client] = name
        self._unsynced.add(name)
        if before is not None and before != name:
            del self._digests[before]
            if _position(before) > self._named:
                self._unsynced.discard(before)
                files.remove(self._folder / before)

    def _read(self, client: int) -> ClientState:
        name = self._written[client]
        return read_state(self._folder / name, self._digests[name], self._device)


def _position(name: str) -> int:
    return int(name.removesuffix(".safetensors").partition("@")[2])


# A state as a file --------------------------------------------------------------------------------


def pack_state(state: ClientState, device: torch.device) -> bytes:
    """A client's state as a file that :func:`read_state` reads bit for bit.

    The header has strides that are not row by row, and which tensors stay on the CPU: results must not depend on
    whether a state was in memory or on the disk.
    """
    tensors = state.flat()
    strides = {name: list(tensor.stride()) for name, tensor in sorted(tensors.items()) if _permuted(tensor)}
    at_home = [name for name, tensor in sorted(tensors.items()) if tensor.device.type == "cpu" != device.type]
    return pack(tensors, {"layout": json.dumps({"strides": strides, "cpu": at_home})})


def read_state(path: Path, digest: FileDigest | None, device: torch.device) -> ClientState:
    """The inverse of :func:`pack_state`; a DamagedError if the file is missing, or differs from the digest."""
    data = read_file(path, digest)
    try:
        layout = json.loads(metadata(data)["layout"])
        laid = {
            name: _laid(tensor, layout["strides"].get(name)).to("cpu" if name in layout["cpu"] else device)
            for name, tensor in unpack(data).items()
        }
        return ClientState.from_flat(laid)
    except (LookupError, ValueError, RuntimeError, SafetensorError) as error:
        raise DamagedError(f"The client state '{path}' is damaged ({error}).") from error


def _permuted(tensor: Tensor) -> bool:
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride():
        return False
    return tensor.stride() == torch.empty_like(tensor, device="meta").stride()  # safetensors keeps dense strides only


def _laid(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
