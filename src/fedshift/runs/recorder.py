"""Writes a run's folder, also in a federation: records, selected weights, times, checkpoints, completion."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedshift import files, memory
from fedshift.core.messages import pack_in_pieces
from fedshift.manifest import FileDigest, GrowingFile, check_file, read_file, write_file
from fedshift.rounds.coordinator import Coordinator
from fedshift.rounds.ledger import Ledger
from fedshift.rounds.site import Site
from fedshift.rounds.store import DiskStore
from fedshift.runs.checkpoint import (
    COUNTED,
    Checkpoint,
    Summary,
    Weights,
    check_same_layout,
    current_weights,
    manifest_name,
    pack_server,
    read_checkpoint,
    saved_positions,
    selected_name,
    tensors_name,
    unpack_server,
)
from fedshift.runs.locks import check_locked
from fedshift.runs.origin import CLIENTS, RECORDS, SUMMARY
from fedshift.runs.run import DATA_FACTS, MESSAGES, TIMINGS, WEIGHTS, Run
from fedshift.runs.schema import Blueprint, Record, Timed, read_records
from fedshift.runs.selection import end_early, endings, source_validation, summary

# What belongs to a checkpoint, or was left by a kill in a write; manifests first, so that none lacks what it names.
OF_CHECKPOINTS = (
    *("manifest-*.json", "checkpoint@*.safetensors", "selected@*.safetensors", f"{CLIENTS}/*@*.safetensors"),
    *(".*.new", f"{CLIENTS}/.*.new"),
)


class Recorder:
    """Writes a run's folder as its host advances the run.

    Attributes:
        saved: the checkpoints on the disk, by position
        notes: what a reader of the next line of times must know
    """

    def __init__(self, folder: Run, coordinator: Coordinator, read: Collection[str], site: Site | None = None) -> None:
        """Nothing is read or written before :meth:`begin`.

        ``read`` are the parts that a prediction reads; ``site`` has all clients, whose states lie in the folder (None:
        client states stay at their sites).
        """
        self.folder, self.coordinator = folder, coordinator
        self._run, self._read, self._site = folder.identity.fingerprint, read, site
        self._store: DiskStore | None = None
        if site is not None:
            keep = max(1, round(coordinator.setup.train.participation * len(coordinator.names)))
            site.store = self._store = DiskStore(folder.path / CLIENTS, keep, coordinator.setup.device)
        self.records: list[Record] = []
        self._log, self._times = GrowingFile(folder.path / RECORDS), GrowingFile(folder.path / TIMINGS)
        self._picked: Record | None = None  # the record that source validation picks
        self._selected: dict[str, FileDigest] = {}  # the file with its weights
        self.saved: dict[int, Checkpoint] = {}  # those on the disk
        self.notes: list[str] = []
        self._since, self._seconds, self._together = 0, 0.0, 1

    @property
    def position(self) -> int:
        return self.coordinator.position

    # Going back -----------------------------------------------------------------------------------

    def begin(self, blueprint: Blueprint, position: int | None = None, keep: Iterable[int] = ()) -> None:
        """Go back to a checkpoint, or start.

        ``position`` is the checkpoint's (0: start; None: the newest, if there is one); checkpoints of the positions in
        ``keep`` stay. Raises a DamagedError if a file that the checkpoint names is damaged, missing or another run's.
        """
        path = self.folder.path
        position = max(saved_positions(path), default=0) if position is None else position
        wanted = {position, *keep} - ({0} - saved_positions(path))
        kept = {each: read_checkpoint(path, self._run, each) for each in wanted}
        self._remove_all_but(kept)
        saved = kept.get(position)
        named = saved.files if saved else {}
        if saved:
            name = tensors_name(position)
            server = unpack_server(read_file(path / name, named.get(name)), self.coordinator.setup.device)
            saved.restore(self.coordinator, server)
        self.records = read_records(self.folder.path / RECORDS, self._log.go_back(named.get(RECORDS)))
        self._times.go_back(named.get(TIMINGS))
        self._picked, self._selected = source_validation(self.records) if self.records else None, {}
        if self._picked:
            name = selected_name(self._picked["position"])
            check_file(path / name, named.get(name))
            self._selected = {name: named[name]}
        if saved:
            check_file(path / DATA_FACTS, named.get(DATA_FACTS))
        self._blueprint = named.get(DATA_FACTS) or self._write(DATA_FACTS, blueprint.model_dump(exclude_none=True))
        self._rewind_store(position, named)
        self._since = position

    def _rewind_store(self, position: int, named: Mapping[str, FileDigest]) -> None:
        if self._store is None or self._site is None:
            return
        below = f"{CLIENTS}/"
        self._store.rewind(
            position, {name.removeprefix(below): each for name, each in named.items() if name.startswith(below)}
        )
        for client, state in self._store.items():
            check_same_layout(self._site.initial, state.tensors, f"state of client '{self.coordinator.names[client]}'")

    def _remove_all_but(self, kept: Mapping[int, Checkpoint]) -> None:
        """Remove every checkpoint file that these do not name, and temporary files of interrupted writes."""
        path = self.folder.path
        named = {name for saved in kept.values() for name in saved.files} | set(map(manifest_name, kept))
        for pattern in OF_CHECKPOINTS:
            for file in sorted(path.glob(pattern)):
                if file.relative_to(path).as_posix() not in named:
                    files.remove(file)
        self.saved = dict(kept)

    # Rounds ---------------------------------------------------------------------------------------

    def count(self, seconds: float, engine: str, together: int = 1) -> None:
        """Add the time of a finished round: seconds on the clock, of ``together`` runs that advanced in that time."""
        if together != self._together:
            self.write_times(engine, before=1)
            self._together = together
        self._seconds += seconds

    def write_times(self, engine: str, evaluation: float = 0.0, before: int = 0) -> None:
        """Write the times of the rounds since the last line, except the last ``before``."""
        position = self.position - before
        if position > self._since:
            timed = Timed(
                start=self._since,
                stop=position,
                seconds=max(0.0, round(self._seconds, 3)),  # a clock may jump back
                evaluation=max(0.0, round(evaluation * self._together, 3)),  # which is not shared
                together=self._together,
                engine=engine,
                memory=memory.peak(self.coordinator.setup.device),
                notes=self.notes,
            )
            self._times.append(timed.model_dump_json())
            self.notes = []
        self._since, self._seconds = position, 0.0

    def record(self, record: Record, weights: Weights | None = None) -> None:
        """Add the record of the last round; it may end its stage, and its weights may be selected.

        ``weights`` are the scored weights; None: the run's current weights.
        """
        patient = self.coordinator.setup.train.patience != "off"
        if patient and (ended := end_early(self.coordinator, [*self.records, record])):
            record["ended"] = ended
        self._log.append(json.dumps(record))
        self.records.append(record)
        # Of all earlier records only their best can still be selected.
        if source_validation([*filter(None, [self._picked]), record]) is record:
            weights = weights or current_weights(self.coordinator, self._read, self._site)
            before, name = self._selected, selected_name(record["position"])
            self._selected = {name: write_file(self.folder.path / name, pack_in_pieces(*weights))}
            self._picked = record
            self._remove(before.keys() - self._selected.keys())

    # Checkpoints ----------------------------------------------------------------------------------

    def save(self, engine: Mapping[str, Any], together: Iterable[str], host: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint; earlier checkpoints stay until :meth:`keep_only`.

        ``engine`` is the engine as a table, ``together`` the runs that advance together, and ``host`` what else the
        host needs to continue, as JSON. Raises a DiskError if the disk is full, for example (the earlier checkpoint is
        kept), and a LockedError if another process has taken the folder over.
        """
        path, position = self.folder.path, self.position
        check_locked(path)
        tensors = tensors_name(position)
        named = {tensors: write_file(path / tensors, pack_server(self.coordinator.state))}
        if self._store is not None:
            named |= {f"{CLIENTS}/{name}": entry for name, entry in self._store.flush().items()}
        self.saved[position] = Checkpoint(
            run=self._run,
            files=named | self._files(),
            **{name: getattr(self.coordinator, name) for name in COUNTED},
            ledger=Ledger(self.coordinator.ledger.entries).entries,
            engine=dict(engine),
            together=list(together),
            host=dict(host or {}),
        )
        self.saved[position].write(path / manifest_name(position))

    def amend(self, position: int, host: Mapping[str, Any], recorded: bool = False) -> None:
        """Replace the host's part of a checkpoint, as in :meth:`save`.

        ``recorded``: add the records and selected weights since then. Raises a DiskError if it could not be written;
        the checkpoint is then unchanged.
        """
        before = self.saved[position]
        named = before.files
        if recorded:
            named = {name: entry for name, entry in named.items() if not name.startswith("selected@")} | self._files()
        self.saved[position] = before.model_copy(update={"host": dict(host), "files": named})
        self.saved[position].write(self.folder.path / manifest_name(position))
        self._remove(before.files)

    def keep_only(self, *positions: int) -> None:
        """Remove the checkpoints of other positions, and files that only they name."""
        gone = {position: self.saved.pop(position) for position in self.saved.keys() - set(positions)}
        for position in sorted(gone):
            files.remove(self.folder.path / manifest_name(position))
        for saved in gone.values():
            self._remove(saved.files)

    def _remove(self, names: Iterable[str]) -> None:
        named = {name for saved in self.saved.values() for name in saved.files}
        for name in sorted({*names} - named):
            files.remove(self.folder.path / name)

    def finish(self, notes: list[str]) -> None:
        """Write the final tensors, the message table, and last the summary, which lists all files of the run."""
        coordinator, path = self.coordinator, self.folder.path
        weights = current_weights(coordinator, self._read, self._site, final=True)
        named = {
            WEIGHTS: write_file(path / WEIGHTS, pack_in_pieces(*weights)),
            MESSAGES: self._write(MESSAGES, coordinator.ledger.declaration()),
        }
        done = Summary(
            run=self._run,
            files=named | self._files(),
            selected=summary(self.records) if self.records else {},  # a federation may have scored nothing
            notes=notes,
            ended=endings(self.records),
        )
        done.write(path / SUMMARY)

    def _files(self) -> dict[str, FileDigest]:
        return {
            DATA_FACTS: self._blueprint,
            RECORDS: self._log.entry,
            TIMINGS: self._times.entry,
            **self._selected,
        }

    def _write(self, name: str, table: Mapping[str, Any]) -> FileDigest:
        return write_file(self.folder.path / name, (json.dumps(table, indent=2) + "\n").encode())
