"""A run is a folder: what was asked for, what happened, and all that is needed to go on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal

import tomli_w
from filelock import FileLock, Timeout
from pydantic import BaseModel

from fedshift import files
from fedshift.content import digest
from fedshift.errors import DamagedError, FedshiftError
from fedshift.experiments import Experiment
from fedshift.manifest import (
    Manifest,
    check_file,
    digested_json,
    read_file,
    read_json,
    read_lines,
    read_table,
)
from fedshift.runs.checkpoint import Checkpoint, read_checkpoint, saved_positions
from fedshift.runs.lock import LOCK, locked
from fedshift.runs.schema import (
    DataFacts,
    Identity,
    Machine,
    MessageTable,
    Record,
    Summary,
    Timed,
    read_records,
    whole_records,
)
from fedshift.runs.trials import STUDY, carried_on_by, study_of
from fedshift.runs.trust import check_code, check_digests, check_plugins, remember_plugins
from fedshift.written import LARGEST_TOML

RUN, EXPERIMENT, MANIFEST = "run.json", "experiment.toml", "manifest.json"
SUMMARY, WEIGHTS, MESSAGES = "summary.json", "weights.safetensors", "messages.json"
ENVIRONMENT, DATA_FACTS = "environment.json", "data.json"
KINDS: dict[str, type[BaseModel]] = {MESSAGES: MessageTable, ENVIRONMENT: Machine, DATA_FACTS: DataFacts}
RECORDS, TIMINGS, EVENTS, CLIENTS = "records.jsonl", "timings.jsonl", "events.jsonl", "clients"
# What carrying out makes, manifests first: without them it begins anew.
MADE = (
    *(MANIFEST, "manifest-*.json", SUMMARY, WEIGHTS, "checkpoint@*.safetensors", "selected@*.safetensors", CLIENTS),
    *(RECORDS, TIMINGS, EVENTS, MESSAGES, DATA_FACTS, ENVIRONMENT),
)
NOT_OF_MODELS = ("data.", "method.index.")  # how settings begin whose files a trained model is not made from
ASIDE = "damaged-"
DATA, MODELS = "data", "models"  # folders beside those of runs, in which in_memory and own_model write
SOME = 4  # run folders that an error lists


@dataclass(frozen=True)
class Times:
    """What a run took.

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
    """The files of one run, for readers; :class:`fedshift.runs.recorder.Recorder` writes them.

    run.json says which run it is, experiment.toml what was asked for. Every other file is in the manifest of the newest
    checkpoint or, once the run is finished, in manifest.json, with its size and digest. A reader gets what the manifest
    says, or an error.
    """

    path: Path

    @property
    def experiment_file(self) -> Path:
        """The resolved experiment."""
        return self.path / EXPERIMENT

    @property
    def weights_file(self) -> Path:
        """The final tensors: what is sent by name, each client's under ``client.<id>.``."""
        return self.path / WEIGHTS

    @property
    def finished(self) -> bool:
        """Whether the run was carried to its end."""
        return (self.path / MANIFEST).exists()

    @property
    def begun(self) -> bool:
        """Whether a run is in it; experiment.toml is written last, so what a kill leaves before that is no run."""
        return any((self.path / name).exists() for name in (EXPERIMENT, MANIFEST, RECORDS, CLIENTS))

    @property
    def unfinished(self) -> bool:
        """Whether it has begun and was not carried to its end."""
        return self.begun and not self.finished

    @property
    def readable(self) -> bool:
        """Whether run.json can be read."""
        try:
            return bool(self.identity)
        except FedshiftError:
            return False

    @classmethod
    def create(
        cls, experiment: Experiment, path: Path, host: Literal["simulation", "federation"] = "simulation"
    ) -> RunFolder:
        """Make the folder of a new run, which its host alone can carry on.

        Raises:
            FedshiftError: it exists; nothing is ever overwritten.
        """
        folder = cls(path)
        folder.check_new()
        files.make_folder(path)
        text = tomli_w.dumps(experiment.table())
        identity = Identity(
            fingerprint=experiment.fingerprint,
            series=experiment.series,
            table=_table_digest(tomllib.loads(text)),
            contents=experiment.contents,
            plugins=experiment.code,
            host=host,
        )
        files.write(path / RUN, digested_json(identity.model_dump()))
        files.write(folder.experiment_file, text)
        remember_plugins(experiment.code)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run folder that is there.

        Raises:
            FedshiftError: it is no run folder.
        """
        folder = cls(path)
        if not folder.begun:
            below = ", ".join(f"'{file.parent}'" for file in sorted(path.glob(f"*/{RUN}"))[:SOME])
            fix = f" Those in it: {below}." if below else ""
            raise FedshiftError(f"'{path}' is no run folder: it has no {RUN}.{fix}")
        return folder

    def check_new(self) -> None:
        """Raise an error if a run has begun here."""
        if self.begun:
            state = "is finished" if self.finished else "has begun"
            fix = "fedshift report" if self.finished else "fedshift resume"
            raise FedshiftError(
                f"The run folder '{self.path}' exists and is not overwritten; its run {state}. "
                f"Use `{fix} {self.path}`, or another --set name=... or run.out=..."
            )

    def check_is(self, fingerprint: str) -> None:
        """Raise an error if another run has begun here."""
        if self.begun and self.identity.fingerprint != fingerprint:
            raise FedshiftError(f"The run folder '{self.path}' holds another run; choose another --set name=...")

    def check_host(self) -> None:
        """Raise an error unless a simulation carries the run out."""
        if self.identity.host == "federation":
            raise FedshiftError(
                f"'{self.path}' is a federation's run, which its coordinator alone can carry on: {self.carried_on_by}."
            )

    @property
    def carried_on_by(self) -> str:
        """What carries the run on."""
        if self.readable and self.identity.host == "federation":
            return "`fedshift federation run` in the coordinator's folder"
        return carried_on_by(self.path)

    # What was asked for -------------------------------------------------------------------------

    @cached_property
    def identity(self) -> Identity:
        """Which run it is.

        Raises:
            FedshiftError: run.json is damaged.
        """
        fix = f"Restore it, or carry out '{self.experiment_file}' again in another folder (--set run.out=...)."
        try:
            return read_json(self.path / RUN, Identity)
        except DamagedError as error:
            raise FedshiftError(f"{error} {fix}") from error

    def table(self) -> dict[str, Any]:
        """The resolved experiment as a table.

        Raises:
            FedshiftError: it is not what the folder was made for; [run] alone may be changed.
        """
        fix = "Undo the change; give another experiment in a file of its own."
        try:
            table = tomllib.loads(files.read(self.experiment_file, LARGEST_TOML).decode("utf-8"))
        except FileNotFoundError as error:
            raise FedshiftError(f"'{self.experiment_file}' is missing. {fix}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise FedshiftError(f"'{self.experiment_file}' cannot be read ({error}). {fix}") from error
        if _table_digest(table) != self.identity.table:
            raise FedshiftError(
                f"'{self.experiment_file}' describes another experiment than the one that was begun. {fix}"
            )
        return table

    def experiment(self, trust: bool = False) -> Experiment:
        """The resolved experiment, to go on with: all that decides its result is what it was.

        Args:
            trust: whether its plugins may be imported although they never ran on this machine.

        Raises:
            FedshiftError: a plugin is not trusted, or a plugin or the data is not what it was.
        """
        experiment = self._resolved(trust)
        self._check_contents(experiment, "cannot go on", lambda what: True)
        if experiment.fingerprint != self.identity.fingerprint:
            raise FedshiftError(
                f"'{self.path}' cannot go on: fedshift itself changed since it began. Restore what it was, or start a "
                "new run."
            )
        return experiment

    def experiment_of_models(self, trust: bool = False) -> Experiment:
        """The resolved experiment, to make the trained models from: its data may be elsewhere, gone or others.

        Args:
            trust: as in :meth:`experiment`.

        Raises:
            FedshiftError: a plugin is not trusted, or a plugin or what the models are made from is not what it was.
        """
        experiment = self._resolved(trust)
        self._check_contents(experiment, "gives no model", lambda what: not what.startswith(NOT_OF_MODELS))
        return experiment

    def check_readers(self, experiment: Experiment) -> None:
        """Raise an error unless new files are read with the tokenizer and the frozen network that there were."""
        self._check_contents(
            experiment, "cannot predict for files", {f"data.{name}" for name in experiment.data.readers}.__contains__
        )

    def _resolved(self, trust: bool) -> Experiment:
        """The resolved experiment, of which all code is what it was."""
        table = self.table()
        check_digests(table, self.identity.plugins, self.path)
        check_plugins(self.plugins, self.path, trust)
        experiment = Experiment.from_table(_with_paths(table, self._moved(self._files(table))))
        check_code(experiment, self.plugins, self.path)
        return experiment

    @property
    def plugins(self) -> dict[str, str]:
        """Digests of the code that it runs, by where that is now."""
        plugins = self.identity.plugins
        moved = self._moved(plugins)
        return {moved[path]: content for path, content in plugins.items()}

    def _files(self, table: Mapping[str, Any]) -> dict[str, str]:
        """Digests of the files and folders that an experiment names, by path, as they were when the run began."""
        named = {_at(table, what): content for what, content in self.identity.contents.items()}
        return {path: content for path, content in named.items() if isinstance(path, str)} | self.identity.plugins

    def _moved(self, files: Mapping[str, str]) -> dict[str, str]:
        """Where files are now, by where they were.

        What is not there is looked for by its name, and known by its digest: in the run's folder, in the two around it,
        and in their folders of data and models, so that runs can be moved together with what fedshift.in_memory and
        fedshift.own_model wrote.

        Args:
            files: their digests, by path.
        """
        here = self.path.resolve()
        around = [folder / name for folder in (here, *here.parents[:2]) for name in ("", DATA, MODELS)]
        now: dict[str, str] = {}
        for path, content in files.items():
            others = () if Path(path).expanduser().exists() else (str(folder / Path(path).name) for folder in around)
            now[path] = next((other for other in others if digest(other) == content), path)
        return now

    def _check_contents(self, experiment: Experiment, problem: str, counts: Callable[[str], bool]) -> None:
        """Raise an error if a file or class is not what it was when the run began."""
        before, now = self.identity.contents, experiment.contents
        where = {".".join(names): f" ('{path}')" for names, path in experiment.paths()}
        reasons = [
            f"{what}{where.get(what, '')} {'changed since it began' if what in now else 'is not there any more'}"
            for what in sorted(before.keys() | now.keys())
            if before.get(what) != now.get(what) and counts(what)
        ]
        if reasons:
            gone = any(what in where and what not in now for what in before)
            copy = ", put a copy of what is gone into that folder" if gone else ""
            raise FedshiftError(
                f"'{self.path}' {problem}: {', '.join(reasons)}. Restore what it was{copy}, or start a new run."
            )

    # What happened ------------------------------------------------------------------------------

    @cached_property
    def _final(self) -> Manifest:
        return Manifest.read(self.path / MANIFEST, self.identity.fingerprint)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first.

        Raises:
            DamagedError: it is damaged.
        """
        with self._fix():
            return self._newest()

    def _newest(self) -> Checkpoint | None:
        while positions := saved_positions(self.path):
            try:
                return read_checkpoint(self.path, self.identity.fingerprint, max(positions))
            except DamagedError:
                if saved_positions(self.path) == positions:
                    raise
        return None

    def _manifest(self) -> Manifest | None:
        return self._final if self.finished else self._newest()

    def _json(self, name: str) -> dict[str, Any]:
        """A JSON file that carrying out wrote; empty before the first checkpoint."""
        with self._fix():
            manifest = self._manifest()
            if manifest is None:
                return {}
            return read_table(self.path / name, manifest.files.get(name), KINDS[name])

    def records(self) -> list[Record]:
        """Every whole record; the last line of an unfinished run may have been cut off by a crash.

        Raises:
            DamagedError: a line was cut, changed or moved.
        """
        path = self.path / RECORDS
        with self._fix():
            manifest = self._manifest()
            going_on = manifest is None or isinstance(manifest, Checkpoint)
            kept = read_file(path, manifest.files.get(RECORDS), growing=going_on) if manifest else b""
            if not going_on or not path.exists():
                return read_records(path, kept)
            try:
                rest = files.read(path)[len(kept) :]
            except OSError as error:
                raise DamagedError(f"'{path}' cannot be read ({error.strerror or error}).") from error
            return read_records(path, kept) + whole_records(rest)

    def times(self) -> Times:
        """What its rounds and evaluations took; the time that several runs share is divided equally among them.

        Raises:
            DamagedError: its lines are not those that were written.
        """
        with self._fix():
            manifest = self._manifest()
            going_on = isinstance(manifest, Checkpoint)
            data = read_file(self.path / TIMINGS, manifest.files.get(TIMINGS), growing=going_on) if manifest else b""
        timed = read_lines(self.path / TIMINGS, data, Timed)
        return Times(
            training=sum(timing.seconds / timing.together for timing in timed),
            evaluation=sum(timing.evaluation / timing.together for timing in timed),
            engines=tuple(dict.fromkeys(timing.engine for timing in timed)),
        )

    @property
    def messages(self) -> dict[str, Any]:
        """What crossed the wire until the newest checkpoint, by exchange."""
        if self.finished:
            return self._json(MESSAGES)
        checkpoint = self.checkpoint
        return checkpoint.messages if checkpoint else {}

    @property
    def data_facts(self) -> dict[str, Any]:
        """What modules are made from besides the experiment, and how many samples clients have; empty at first."""
        return self._json(DATA_FACTS)

    @property
    def environment(self) -> dict[str, Any]:
        """The versions and the machine that the run was made with; empty at first."""
        return self._json(ENVIRONMENT)

    @cached_property
    def summary(self) -> Summary:
        """What each selection rule picks, of a run that is finished.

        Raises:
            DamagedError: it is damaged.
        """
        with self._fix():
            return Summary.model_validate(read_table(self.path / SUMMARY, self._final.files.get(SUMMARY), Summary))

    def intact(self, name: str) -> Path:
        """A file of a finished run, which is as it was written.

        Raises:
            DamagedError: it is not.
        """
        with self._fix():
            check_file(self.path / name, self._final.files.get(name))
        return self.path / name

    def selected_weights(self) -> Path:
        """The tensors of the round that source validation picks, named as the final ones.

        Raises:
            FedshiftError: the run keeps none.
            DamagedError: they are damaged.
        """
        with self._fix():
            name = next((name for name in self._final.files if name.startswith("selected@")), None)
        if name is None:
            raise FedshiftError(
                f"'{self.path}' keeps no weights of the round that validation picks: nothing was scored. Its final "
                'model is there: round="last".'
            )
        return self.intact(name)

    def damage(self) -> str:
        """What of a finished run is not as it was written; empty if all is.

        Raises:
            FedshiftError: what was asked for is not as it was written, which cannot be made again.
        """
        self.table()
        try:
            for name, entry in self._final.files.items():
                check_file(self.path / name, entry)
        except DamagedError as error:
            return str(error)
        return ""

    # Its place on the disk ----------------------------------------------------------------------

    def set_aside(self) -> Path:
        """Move all that carrying out made into a folder of its own, so that the run can be made again.

        Returns:
            The folder.
        """
        aside = next(path for n in count(1) if not (path := self.path / f"{ASIDE}{n}").exists())
        files.make_folder(aside)
        for path in [path for name in MADE for path in sorted(self.path.glob(name))]:
            files.rename(path, aside / path.name)
        for name in ("_final", "summary"):
            self.__dict__.pop(name, None)
        return aside

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the same run; the folder is made if there is none.

        Raises:
            FedshiftError: one is running it now.
        """
        with locked(self.path):
            yield

    @property
    def held(self) -> bool:
        """Whether a process is running it, or it cannot be told."""
        if not (self.path / LOCK).exists():
            return False
        try:
            with FileLock(self.path / LOCK, timeout=0):
                return False
        except (Timeout, OSError):
            return True

    @contextmanager
    def _fix(self) -> Iterator[None]:
        """Say what makes again what is damaged."""
        try:
            yield
        except DamagedError as error:
            first = "Move it away, and " if "federation" in self.carried_on_by else ""
            raise DamagedError(f"{error} {first}{self.carried_on_by} makes it again.") from error


def _with_paths(value: Any, moved: Mapping[str, str]) -> Any:
    """A table with other paths in the place of some."""
    if isinstance(value, dict):
        return {name: _with_paths(each, moved) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_paths(each, moved) for each in value]
    return moved.get(value, value) if isinstance(value, str) else value


def _at(table: Mapping[str, Any], names: str) -> Any:
    """What a table has under a dotted name; None: nothing."""
    found: Any = table
    for name in names.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _table_digest(table: Mapping[str, Any]) -> str:
    """A digest of an experiment but for [run], which decides no result and may be changed."""
    decides = {name: value for name, value in table.items() if name != "run"}
    return files.digest_of(json.dumps(decides, sort_keys=True, default=str).encode())


def find(path: Path, least: int = 1) -> list[RunFolder]:
    """The run folders at or below a path, sorted; trials of a study that lies below it are left out.

    Links to folders are followed, and a run that can be reached by two paths counts once; see :func:`files.walk`.

    Raises:
        FedshiftError: there are fewer than ``least``.
    """
    below = list(files.walk(path)) if path.is_dir() else []
    studies = {folder for folder, names in below if STUDY in names} - {path}
    found_in = {folder for folder, names in below if not {RUN, MANIFEST, RECORDS}.isdisjoint(names)}
    paths = sorted(
        folder
        for folder in found_in
        if not folder.name.startswith(ASIDE) and studies.isdisjoint(folder.parents) and not _linked_trial(folder, path)
    )
    found = [folder for folder in map(RunFolder, paths) if folder.begun]
    if len(found) < least:
        raise FedshiftError(f"There is no run folder at or below '{path}'.")
    return found


def _linked_trial(folder: Path, path: Path) -> bool:
    """Whether a folder below a path is a link to a trial of a study that may lie elsewhere."""
    return folder != path and folder.is_symlink() and study_of(folder) is not None
