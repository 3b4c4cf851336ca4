"""The states of a site's clients when the coordinator is elsewhere: each as several exchanges left it.

A coordinator that was killed goes on from its last checkpoint, and asks again for rounds that the site has already
worked in; and a process at the site that was killed at work is started again with the same order. So a site keeps, of
every client, the newest state that such a checkpoint may know and all after it, and begins each order with what was
there before it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from fedshift import files
from fedshift.core.state import ClientState
from fedshift.site.memory import ClientStore
from fedshift.site.store import packed, unpacked

_FILE = re.compile(r"(\d+)@(\d+)-(\d+)\.safetensors")
ASIDE = "aside"  # holds states that others have taken the place of; nothing removes them
Version = tuple[int, int]
"""How many rounds are done after the one that left a state, and the place of its exchange in that round."""


class Versions(ClientStore):
    """Client states in a folder, by what left them; every one is on the disk at once."""

    def __init__(self, folder: Path, experiment: str, device: torch.device) -> None:
        """Look at what the folder holds; it is made if there is none.

        Args:
            folder: where the files lie.
            experiment: what the files belong to.
            device: where the tensors of states that are read belong.

        Raises:
            DiskError: the folder cannot be made.
        """
        files.make_folder(folder)
        self._folder, self._experiment, self._device = folder, experiment, device
        self._version: Version = (0, 0)

    def versions(self) -> dict[int, list[Version]]:
        """What left each client's states, sorted."""
        found: dict[int, list[Version]] = defaultdict(list)
        for path in self._folder.iterdir():
            if match := _FILE.fullmatch(path.name):
                found[int(match[1])].append((int(match[2]), int(match[3])))
        return {client: sorted(versions) for client, versions in sorted(found.items())}

    def prune(self, position: int) -> None:
        """Remove what no checkpoint of a position, or of a later one, can need."""
        for client, versions in self.versions().items():
            newest = _newest(versions, position)
            for version in versions:
                if version < newest:
                    files.remove(self._path(client, version))

    def at(self, position: int, place: int) -> None:
        """An exchange begins: states are those from before it, and what it leaves takes the place of an earlier try.

        Args:
            position: how many rounds are done after its round.
            place: its place in the round.
        """
        self._version = (position, place)

    # As a store of clients' states ----------------------------------------------------------------

    def begin(self, position: int) -> None:
        """A round begins; see :meth:`at`, which tells its exchanges apart."""
        self.at(position, 0)

    def get(self, client: int) -> ClientState | None:
        """The newest state of one client from before the exchange.

        Raises:
            DamagedError: its file is damaged.
        """
        before = self._before(client)
        return self._read(client, before[-1]) if before else None

    def left(self, client: int) -> ClientState | None:
        """The state of one client as the exchange has left it, if it has.

        Raises:
            DamagedError: its file is damaged.
        """
        return self._read(client, self._version) if self._path(client, self._version).exists() else None

    def _read(self, client: int, version: Version) -> ClientState:
        return unpacked(self._path(client, version), self._experiment, client, version[0], self._device)

    def put(self, client: int, state: ClientState) -> None:
        """Keep the state of one client as the exchange leaves it; what earlier ones left stays.

        Where an earlier try has left another state, that is moved to the folder :data:`ASIDE`.

        Raises:
            DiskError: it could not be written.
        """
        data = packed(state, self._experiment, client, self._version[0], self._device)
        path = self._path(client, self._version)
        if path.exists() and path.read_bytes() != data:
            self._move_aside(path)
        files.write(path, data)

    def set_aside(self, client: int) -> None:
        """Move the state that the exchange has left to the folder :data:`ASIDE`, so that nothing begins with it."""
        if (path := self._path(client, self._version)).exists():
            self._move_aside(path)

    def _move_aside(self, path: Path) -> None:
        aside = self._folder / ASIDE
        files.make_folder(aside)
        path.rename(aside / f"{path.stem}.{sum(1 for _ in aside.iterdir())}{path.suffix}")

    def ids(self) -> Sequence[int]:
        """The clients that have a state from before the exchange, sorted."""
        return [client for client in self.versions() if client in self]

    def __contains__(self, client: int) -> bool:
        """Whether a client has a state from before the exchange."""
        return bool(self._before(client))

    def _before(self, client: int) -> list[Version]:
        return [version for version in self.versions().get(client, []) if version < self._version]

    def _path(self, client: int, version: Version) -> Path:
        return self._folder / f"{client}@{version[0]}-{version[1]}.safetensors"


def _newest(versions: Sequence[Version], position: int) -> Version:
    """The newest of some versions that is not after a position; the first where all are."""
    return max((each for each in versions if each[0] <= position), default=versions[0])
