"""A run is a folder: what was asked for, what happened, and all that is needed to go on."""

from __future__ import annotations

import json
import os
import platform
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout
from torch import Tensor

from fedshift import files
from fedshift.core.messages import pack_in_pieces
from fedshift.errors import FedshiftError
from fedshift.settings.content import digest
from fedshift.settings.experiment import Experiment, check_tables

Record = dict[str, Any]
TIMED = frozenset({"from", "to", "seconds", "evaluation", "together", "engine"})  # what a line of times holds


@dataclass(frozen=True)
class Times:
    """What a run took, repeated rounds after a crash included.

    Attributes:
        training: seconds of rounds.
        evaluation: seconds of scoring models.
        engines: what carried it out, in the order they come; several where it was resumed with another.
    """

    training: float
    evaluation: float
    engines: tuple[str, ...]


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    experiment.toml is the resolved experiment; records.jsonl has one line for each evaluation and never
    a time, so that equal runs have equal records; timings.jsonl has the times; messages.json says what crossed
    the wire; federation.json what modules are made from; summary.json is written last.
    """

    path: Path

    @property
    def experiment_file(self) -> Path:
        """The resolved experiment."""
        return self.path / "experiment.toml"

    @property
    def checkpoint_file(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoint.safetensors"

    @property
    def weights_file(self) -> Path:
        """The final tensors: what is sent by name, each client's under ``client.<id>.``."""
        return self.path / "weights.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run was carried to its end."""
        return (self.path / "summary.json").is_file()

    @classmethod
    def create(cls, experiment: Experiment, path: Path) -> RunFolder:
        """Make the folder of a new run.

        Raises:
            FedshiftError: it exists; nothing is ever overwritten.
        """
        folder = cls(path)
        if path.is_dir() and _begun(path):
            state = "is finished" if folder.finished else "has begun"
            fix = "fedshift report" if folder.finished else "fedshift resume"
            raise FedshiftError(
                f"The run folder '{path}' exists and is not overwritten; its run {state}. "
                f"Use `{fix} {path}`, or another --set name=... or run.out=..."
            )
        files.make_folder(path)
        files.write(path / "environment.json", json.dumps(environment(), indent=2))
        files.write(folder.experiment_file, tomli_w.dumps(experiment.table()))
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run folder that is there.

        Raises:
            FedshiftError: it is no run folder.
        """
        folder = cls(path)
        if not folder.experiment_file.is_file():
            raise FedshiftError(f"'{path}' is no run folder: it has no experiment.toml.")
        return folder

    def table(self) -> dict[str, Any]:
        """The resolved experiment as a table."""
        try:
            table = tomllib.loads(self.experiment_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FedshiftError(f"'{self.experiment_file}' cannot be read ({error}).") from error
        check_tables(table)
        if self.finished and self.read_json("summary.json").get("experiment") != digest(self.experiment_file):
            raise FedshiftError(
                f"'{self.experiment_file}' was changed after the run ended, so it does not say what ran. Restore it."
            )
        return table

    def experiment(self) -> Experiment:
        """The resolved experiment."""
        return Experiment.from_table(self.table())

    def records(self) -> list[Record]:
        """Every whole record; the last line may have been cut off by a crash."""
        path = self.path / "records.jsonl"
        if not path.is_file():
            return []
        try:
            *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
            records = [json.loads(line) for line in lines]
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FedshiftError(f"'{path}' holds a line that is no JSON ({error}). Restore the file.") from error
        if not all(isinstance(record, dict) and "position" in record for record in records):
            raise FedshiftError(f"'{path}' holds a line that is no record. Restore the file.")
        return records

    def record(self, record: Record) -> None:
        """Add a record."""
        files.append(self.path / "records.jsonl", json.dumps(record))

    def rewind(self, position: int, scored: Iterable[int]) -> None:
        """Drop the records of rounds after a checkpoint, which will be made again, and half-written files.

        Args:
            position: the checkpoint's.
            scored: the positions up to it that have records.

        Raises:
            FedshiftError: a record of before the checkpoint is missing.
        """
        held = {record["position"] for record in self.records()}
        missing = [due for due in scored if due not in held]
        if missing:
            raise FedshiftError(
                f"'{self.path / 'records.jsonl'}' lacks the record of round {missing[0]}, which the checkpoint of "
                f"round {position} comes after. Restore the file, or remove the checkpoint to start the run again."
            )
        for leftover in self.path.glob(".*.new"):
            leftover.unlink()
        kept = [record for record in self.records() if record["position"] <= position]
        files.write(self.path / "records.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    def timing(self, timing: Record) -> None:
        """Add what a stretch of rounds took.

        Args:
            timing: ``from`` and ``to``, the rounds done before and after; ``seconds`` of training and of ``evaluation``
                on the clock; how many runs went on ``together`` in that time (1: alone); the ``engine``, in words; and
                ``notes``, what the engine said meanwhile, such as that a worker process died.
        """
        files.append(self.path / "timings.jsonl", json.dumps(timing))

    def times(self) -> Times:
        """What its rounds and evaluations took; the time that several runs share is divided equally among them.

        A line that a crash cut short is left out, and so is one without all of :data:`TIMED`.
        """
        path = self.path / "timings.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        timed = [timing for timing in map(_timing, lines) if timing is not None]
        return Times(
            training=sum(timing["seconds"] / timing["together"] for timing in timed),
            evaluation=sum(timing["evaluation"] / timing["together"] for timing in timed),
            engines=tuple(dict.fromkeys(timing["engine"] for timing in timed)),
        )

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        files.write(self.path / name, json.dumps(value, indent=2) + "\n")

    def write_weights(self, likes: Mapping[str, Tensor], tensors: Iterable[Tensor]) -> None:
        """Write the final tensors one by one; ``likes`` has their names, types and shapes."""
        files.write(self.weights_file, pack_in_pieces(likes, tensors))

    def read_json(self, name: str) -> Any:
        """Read a JSON file, or None where there is none yet."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FedshiftError(f"'{path}' is no JSON ({error}). Restore the file.") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the same run.

        Raises:
            FedshiftError: one is running it now.
        """
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise FedshiftError(f"Another process is running '{self.path}'; wait for it.") from None
        except OSError as error:
            raise FedshiftError(f"'{self.path}' cannot be written: {error.strerror or error}.") from error
        try:
            yield
        finally:
            lock.release()


def _timing(line: str) -> Record | None:
    """A whole line of times, or None."""
    try:
        timing = json.loads(line)
    except json.JSONDecodeError:
        return None
    return timing if isinstance(timing, dict) and timing.keys() >= TIMED else None


def _begun(path: Path) -> bool:
    """Whether a folder holds more than a run that was killed before it began leaves."""
    return any(not entry.name.startswith(".") and entry.name != "environment.json" for entry in path.iterdir())


def find(path: Path) -> list[RunFolder]:
    """The run folders at or below a path, sorted.

    Raises:
        FedshiftError: there is none.
    """
    found = [RunFolder(file.parent) for file in sorted(path.rglob("experiment.toml"))] if path.is_dir() else []
    if not found:
        raise FedshiftError(f"There is no run folder at or below '{path}'.")
    return found


def environment() -> dict[str, Any]:
    """The versions and the machine that a run was made with."""
    import torch

    packages = ("fedshift", "torch", "numpy", "safetensors", "transformers", "kornia", "mlxtend")
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packages": versions,
    }
