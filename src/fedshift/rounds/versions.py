"""Versions of client states at a site with a remote coordinator, one per exchange.

A killed coordinator resumes from its last checkpoint and repeats orders; a killed site restarts with the same order. So
a site keeps, for every client, the newest state that such a checkpoint may assume and all later ones, and starts each
order from the state before it. The manifest is rewritten with each state, and lists no other file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from fedshift import files
from fedshift.core.state import ClientState
from fedshift.manifest import FileDigest, Manifest
from fedshift.rounds.store import ClientStore, pack_state, read_state

MANIFEST = "manifest.json"
ASIDE = "aside"  # folder of replaced states; nothing removes them
_FILE = re.compile(r"(\d+)@(\d+)-(\d+)\.safetensors")
Version = tuple[int, int]
"""The number of finished rounds after the round that created a state, and its exchange's index in that round."""


class Versions(ClientStore):
    """Client states in a folder, by the exchange that created them, all on the disk."""

    def __init__(self, folder: Path, run: str, device: torch.device) -> None:
        """Read the manifest of a folder, which is created if missing; a DamagedError if damaged, or another run's."""
        super().__init__()
        files.make_folder(folder)
        self._folder, self._device = folder, device
        there = (folder / MANIFEST).exists()
        self._manifest = Manifest.read(folder / MANIFEST, run) if there else Manifest(run=run, files={})
        self._version: Version = (0, 0)

    def versions(self) -> dict[int, list[Version]]:
        """The exchanges that created each client's states, sorted."""
        found: dict[int, list[Version]] = defaultdict(list)
        for match in filter(None, map(_FILE.fullmatch, self._manifest.files)):
            found[int(match[1])].append((int(match[2]), int(match[3])))
        return {client: sorted(versions) for client, versions in sorted(found.items())}

    def prune(self, position: int) -> None:
        """Remove states that no checkpoint of a position, or of a later one, can need."""
        needless = [
            _name(client, version)
            for client, versions in self.versions().items()
            for version in versions
            if version < _newest(versions, position)
        ]
        if needless:
            self._renew({name: each for name, each in self._manifest.files.items() if name not in needless})
            for name in needless:
                files.remove(self._folder / name)

    def at(self, position: int, place: int) -> None:
        """Start the exchange ``place`` of the round after which ``position`` rounds are finished.

        States are from before it, and its states replace an earlier attempt's.
        """
        self._version = (position, place)

    # As a store of clients' states ----------------------------------------------------------------

    def begin(self, position: int) -> None:
        """Start a round; see :meth:`at` for its exchanges."""
        self.at(position, 0)

    def get(self, client: int) -> ClientState | None:
        """The newest state of one client from before the exchange; a DamagedError for a damaged file."""
        before = self._before(client)
        return self._read(_name(client, before[-1])) if before else None

    def left(self, client: int) -> ClientState | None:
        """The state that the exchange has left of one client, if any; a DamagedError for a damaged file."""
        name = _name(client, self._version)
        return self._read(name) if name in self._manifest.files else None

    def put(self, client: int, state: ClientState) -> None:
        """Store the state that the exchange leaves; an earlier attempt's different state moves to the folder ASIDE."""
        name, data = _name(client, self._version), pack_state(state, self._device)
        written = FileDigest.of(data)
        if self._manifest.files.get(name) == written:
            return
        self.set_aside(client)
        files.write(self._folder / name, data)
        self._renew({**self._manifest.files, name: written})

    def set_aside(self, client: int) -> None:
        """Move the state that the exchange has left to the folder :data:`ASIDE`, so that nothing starts from it."""
        name = _name(client, self._version)
        if name not in self._manifest.files:
            return
        self._renew({other: each for other, each in self._manifest.files.items() if other != name})
        aside, path = self._folder / ASIDE, self._folder / name
        files.make_folder(aside)
        path.rename(aside / f"{path.stem}.{sum(1 for _ in aside.iterdir())}{path.suffix}")

    def ids(self) -> Sequence[int]:
        """The clients that have a state from before the exchange, sorted."""
        return [client for client in self.versions() if self._before(client)]

    def _before(self, client: int) -> list[Version]:
        return [version for version in self.versions().get(client, []) if version < self._version]

    def _read(self, name: str) -> ClientState:
        return read_state(self._folder / name, self._manifest.files[name], self._device)

    def _renew(self, named: dict[str, FileDigest]) -> None:
        self._manifest = self._manifest.model_copy(update={"files": named})
        self._manifest.write(self._folder / MANIFEST)


def _name(client: int, version: Version) -> str:
    return f"{client}@{version[0]}-{version[1]}.safetensors"


def _newest(versions: Sequence[Version], position: int) -> Version:
    return max((each for each in versions if each[0] <= position), default=versions[0])
