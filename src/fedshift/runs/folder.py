"""A run is a folder: what was asked for, what happened, and all that is needed to go on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from filelock import FileLock, Timeout
from pydantic import BaseModel
from torch import Tensor

from fedshift import files
from fedshift.core.messages import pack_in_pieces
from fedshift.core.sealed import checked
from fedshift.errors import DamagedError, FedshiftError
from fedshift.runs.lock import LOCK, locked
from fedshift.runs.machine import environment
from fedshift.runs.patience import endings
from fedshift.runs.records import Record, Records, read
from fedshift.runs.schema import Federated, Identity, Machine, Messages, Resolved, Summary, Timed
from fedshift.runs.seals import seal_of, sealed_json, unsealed_json
from fedshift.runs.selection import summary
from fedshift.runs.trials import STUDY, carried_on_by, study_of
from fedshift.runs.trust import check_code, check_digests, check_plugins, remember_plugins
from fedshift.runs.weights import NEXT_SELECTED, SELECTED
from fedshift.settings.content import digest
from fedshift.settings.experiment import Experiment, check_tables
from fedshift.settings.written import LARGEST_TOML
from fedshift.simulation.checkpoint import CURRENT, NEXT, saved

T = TypeVar("T")

RUN, EXPERIMENT, SUMMARY, WEIGHTS = "run.json", "experiment.toml", "summary.json", "weights.safetensors"
ENVIRONMENT, FEDERATION, MESSAGES = "environment.json", "federation.json", "messages.json"
RECORDS, TIMINGS, EVENTS, CLIENTS = "records.jsonl", "timings.jsonl", "events.jsonl", "clients"
RESULTS = (FEDERATION, MESSAGES, RECORDS, WEIGHTS)  # equal in equal runs; the summary has their digests
# What carrying out makes, the summary first, since a run without it is not finished.
MADE = (
    *(SUMMARY, CURRENT, NEXT, CLIENTS, RECORDS, MESSAGES, FEDERATION, TIMINGS, EVENTS, WEIGHTS),
    *(SELECTED, NEXT_SELECTED),
)
NOT_OF_MODELS = ("data.", "method.index.")  # how settings begin whose files a trained model is not made from
ASIDE = "damaged-"
DATA, MODELS = "data", "models"  # folders beside those of runs, in which in_memory and own_model write
SOME = 4  # run folders that an error lists


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

    run.json says which run it is, experiment.toml what was asked for. records.jsonl has a line for each evaluation and
    never a time, so that equal runs have equal records; timings.jsonl has the times; messages.json says what crossed
    the wire; federation.json what modules are made from; events.jsonl what its display was told. summary.json is
    written last, with digests of the others. Every JSON file ends with a ``seal``, a digest of the rest of it and of
    the run's fingerprint.
    """

    path: Path

    @property
    def experiment_file(self) -> Path:
        """The resolved experiment."""
        return self.path / EXPERIMENT

    @property
    def checkpoint_file(self) -> Path:
        """The newest checkpoint."""
        return self.path / CURRENT

    @property
    def weights_file(self) -> Path:
        """The final tensors: what is sent by name, each client's under ``client.<id>.``."""
        return self.path / WEIGHTS

    @property
    def selected_file(self) -> Path:
        """The tensors of the round that source validation picks, named as the final ones."""
        return self.path / SELECTED

    @property
    def finished(self) -> bool:
        """Whether the run was carried to its end."""
        return (self.path / SUMMARY).exists()

    @property
    def begun(self) -> bool:
        """Whether a run is in it; experiment.toml is written last, so what a kill leaves before that is no run."""
        return any((self.path / name).exists() for name in (EXPERIMENT, *MADE))

    @property
    def unfinished(self) -> bool:
        """Whether it has begun and was not carried to its end."""
        return self.begun and not self.finished

    @property
    def readable(self) -> bool:
        """Whether it can be told which run it is."""
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
        text = folder._write_identity(experiment, host)
        folder.write_environment()
        files.write(folder.experiment_file, text)
        remember_plugins(experiment.code)
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

    @property
    def carried_on_by(self) -> str:
        """What carries the run on."""
        if self.readable and self.identity.host == "federation":
            return "`fedshift federation run` in the coordinator's folder"
        return carried_on_by(self.path)

    def check_host(self) -> None:
        """Raise an error unless a simulation carries the run out."""
        if self.identity.host == "federation":
            raise FedshiftError(
                f"'{self.path}' is a federation's run, which its coordinator alone can carry on: {self.carried_on_by}."
            )

    def check_is(self, fingerprint: str) -> None:
        """Raise an error if another run has begun here."""
        if self.begun and self.identity.fingerprint != fingerprint:
            raise FedshiftError(f"The run folder '{self.path}' holds another run; choose another --set name=...")

    def restore(self, experiment: Experiment) -> bool:
        """Write run.json and experiment.toml again if one of them is missing or damaged; nothing if no run has begun.

        Args:
            experiment: what the run was asked for.

        Returns:
            Whether they were written.

        Raises:
            FedshiftError: the folder holds another run, or no other file shows that it holds this one.
        """
        if not self.begun:
            return False
        if not (self.readable or self._sealed_for(experiment.fingerprint)):
            self.identity  # noqa: B018  # raises the error
        if self.readable:
            self.check_is(experiment.fingerprint)
            if self._has_table:
                return False
        text = self._write_identity(experiment, self.identity.host if self.readable else "simulation")
        files.write(self.experiment_file, text)
        return True

    def _sealed_for(self, fingerprint: str) -> bool:
        """Whether a file beside run.json shows that the run has a fingerprint."""
        for name in (ENVIRONMENT, SUMMARY, FEDERATION, MESSAGES):
            try:
                unsealed_json(self._bytes(name), fingerprint)
            except (OSError, ValueError):
                continue
            return True
        return False

    @property
    def _has_table(self) -> bool:
        try:
            return bool(self.table())
        except FedshiftError:
            return False

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

    # What was asked for -------------------------------------------------------------------------

    def _write_identity(self, experiment: Experiment, host: Literal["simulation", "federation"]) -> str:
        """Write run.json, and give the text that belongs into experiment.toml."""
        text = tomli_w.dumps(experiment.table())
        identity = Identity(
            fingerprint=experiment.fingerprint,
            series=experiment.series,
            table=_table_digest(tomllib.loads(text)),
            contents=experiment.contents,
            plugins=experiment.code,
            host=host,
        )
        files.write(self.path / RUN, sealed_json(identity.model_dump()))
        self.__dict__.pop("identity", None)
        return text

    @cached_property
    def identity(self) -> Identity:
        """Which run it is.

        Raises:
            FedshiftError: run.json is damaged.
        """
        fix = (
            "Restore it (`fedshift compare` of the same experiment does), or carry out "
            f"'{self.experiment_file}' again in another folder (--set run.out=...)."
        )
        return self._intact(RUN, lambda: checked(unsealed_json(self._bytes(RUN)), Identity), FedshiftError, fix)

    def table(self) -> dict[str, Any]:
        """The resolved experiment as a table.

        Raises:
            FedshiftError: it is not what the folder was made for; [run] alone may be changed.
        """
        fix = (
            "Undo the change (`fedshift compare` of the same experiment restores the file); give another experiment in "
            "a file of its own."
        )
        return self._intact(EXPERIMENT, self._table, FedshiftError, fix)

    def _table(self) -> dict[str, Any]:
        table = tomllib.loads(files.read(self.experiment_file, LARGEST_TOML).decode("utf-8"))
        if _table_digest(table) != self.identity.table:
            raise ValueError("it says another experiment than the one that was begun")
        check_tables(table)
        checked(table, Resolved)
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

    def records(self) -> list[Record]:
        """Every whole record; the last line of an unfinished run may have been cut off by a crash.

        Raises:
            DamagedError: a line was cut, changed or moved.
        """
        finished = self.finished  # it may end meanwhile
        if finished:
            self._bytes_as_summed(RECORDS)
        try:
            through = [] if finished else [about.records for _, about in saved(self.path).values()]
            records = read(self.path / RECORDS, self.identity.fingerprint, through)
        except DamagedError as error:
            raise DamagedError(f"{error} {self._made_again}") from error
        selected = {name: picked.model_dump() for name, picked in self.summary.selected.items()} if finished else {}
        if finished and (summary(records) if records else {}) != selected:
            raise DamagedError(f"'{self.path / SUMMARY}' says another result than the records. {self._made_again}")
        return records

    def recording(self) -> Records:
        """Where a run that goes on writes its records."""
        return Records(self.path / RECORDS, self.identity.fingerprint)

    def timing(self, timing: Timed) -> None:
        """Add what a stretch of rounds took."""
        table = timing.model_dump()
        files.append(self.path / TIMINGS, json.dumps({**table, "seal": seal_of(table, self.identity.fingerprint)}))

    def times(self) -> Times:
        """What its rounds and evaluations took; the time that several runs share is divided equally among them.

        Of an unfinished run, a line that a crash cut short, or that was changed, is left out.

        Raises:
            DamagedError: the run is finished, and its lines are not those that were written.
        """
        if self.finished and self.summary.timings_closed:
            lines = self._intact(TIMINGS, self._closed_timings, DamagedError, self._made_again)
        else:
            lines = self._bytes(TIMINGS).split(b"\n") if (self.path / TIMINGS).is_file() else []
        timed = list(self._whole_timings(lines))
        return Times(
            training=sum(timing.seconds / timing.together for timing in timed),
            evaluation=sum(timing.evaluation / timing.together for timing in timed),
            engines=tuple(dict.fromkeys(timing.engine for timing in timed)),
        )

    @property
    def messages(self) -> dict[str, Any]:
        """What crossed the wire, by exchange; empty before a message did."""
        if not (self.finished or (self.path / MESSAGES).exists()):
            return {}
        return self._result(MESSAGES, Messages)

    @property
    def federation(self) -> dict[str, Any]:
        """What modules are made from besides the experiment, and how many samples clients have; empty at first."""
        if not (self.finished or (self.path / FEDERATION).exists()):
            return {}
        return self._result(FEDERATION, Federated)

    @property
    def environment(self) -> Machine:
        """The versions and the machine that the run was made with."""
        return self._intact(
            ENVIRONMENT,
            lambda: checked(self._unsealed(ENVIRONMENT), Machine),
            DamagedError,
            self._made_again,
        )

    @cached_property
    def summary(self) -> Summary:
        """What each selection rule picks, and digests of the other files.

        Raises:
            DamagedError: it is damaged.
        """
        return self._intact(SUMMARY, lambda: checked(self._unsealed(SUMMARY), Summary), DamagedError, self._made_again)

    def check_weights(self) -> None:
        """Raise a DamagedError unless the final tensors are those that were written."""
        self._bytes_as_summed(WEIGHTS)

    def check_selected(self) -> None:
        """Raise an error unless the tensors of the round that source validation picks are there as they were written.

        Raises:
            FedshiftError: the run keeps none.
            DamagedError: they are damaged.
        """
        if SELECTED not in self.summary.files:
            raise FedshiftError(
                f"'{self.path}' keeps no weights of the round that validation picks: nothing was scored, or the run "
                'began before they were kept. Its final model is there: round="last".'
            )
        self._bytes_as_summed(SELECTED)

    def damage(self) -> str:
        """What of a finished run is not as it was written; empty if all is.

        Raises:
            FedshiftError: what was asked for is not as it was written, which cannot be made again.
        """
        self.table()
        try:
            for name in dict.fromkeys((*RESULTS, *self.summary.files)):
                self._bytes_as_summed(name)
            self.records()
            self.environment  # noqa: B018  # reads it
            self.times()
        except DamagedError as error:
            return str(error).removesuffix(self._made_again).strip()
        return ""

    # Writing ------------------------------------------------------------------------------------

    def write_json(self, name: str, table: Mapping[str, Any]) -> None:
        """Write a JSON file, sealed."""
        files.write(self.path / name, sealed_json(table, self.identity.fingerprint))

    def write_environment(self) -> None:
        """Write down the versions and the machine, unless that was done."""
        if not (self.path / ENVIRONMENT).exists():
            self.write_json(ENVIRONMENT, environment())

    def write_weights(self, likes: Mapping[str, Tensor], tensors: Iterable[Tensor]) -> None:
        """Write the final tensors one by one; ``likes`` has their names, types and shapes."""
        files.write(self.weights_file, pack_in_pieces(likes, tensors))

    def write_summary(self, notes: list[str]) -> None:
        """Close timings.jsonl, and write the last file: what rules pick, and digests of the others."""
        self._close_timings()
        records = self.records()
        selected = summary(records) if records else {}  # a federation may have scored nothing
        kept = [SELECTED] if self.selected_file.exists() else []
        digests = {name: files.digest(self.path / name) for name in (*RESULTS, *kept)}
        early = {"ended": ended} if (ended := endings(records)) else {}
        table = {"selected": selected, "notes": notes, **early, "files": digests, "timings_closed": True}
        self.write_json(SUMMARY, table)
        self.__dict__.pop("summary", None)

    def clear(self) -> None:
        """Remove what a kill in the middle of a write left behind."""
        for leftover in self.path.glob(".*.new"):
            files.remove(leftover)

    def set_aside(self) -> Path:
        """Move all that carrying out made into a folder of its own, so that the run can be made again.

        Returns:
            The folder.
        """
        aside = next(path for n in count(1) if not (path := self.path / f"{ASIDE}{n}").exists())
        files.make_folder(aside)
        for name in (*MADE, ENVIRONMENT):
            if (self.path / name).exists():
                files.rename(self.path / name, aside / name)
        self.__dict__.pop("summary", None)
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

    # Reading ------------------------------------------------------------------------------------

    @property
    def _made_again(self) -> str:
        if self.readable and self.identity.host == "federation":
            return f"Move it away, and {self.carried_on_by} makes it again."
        return f"{self.carried_on_by} makes it again."

    def _result(self, name: str, kind: type[BaseModel]) -> dict[str, Any]:
        """A JSON file that carrying out made; of a finished run it must be the one that the summary knows."""

        def table() -> dict[str, Any]:
            found = self._unsealed(name)
            checked(found, kind)
            return found

        if self.finished:
            self._bytes_as_summed(name)
        return self._intact(name, table, DamagedError, self._made_again)

    def _unsealed(self, name: str) -> dict[str, Any]:
        return unsealed_json(self._bytes(name), self.identity.fingerprint)

    def _close_timings(self) -> None:
        """Add the last line of times, with a digest of the others, which equal runs do not share, unlike a summary.

        A run that is killed after it goes on, adds more lines, and closes them again.
        """
        path = self.path / TIMINGS
        before = self._bytes(TIMINGS) if path.exists() else b""
        whole = before if before.endswith(b"\n") or not before else before + b"\n"  # as files.append does
        table = {"digest": files.digest_of(whole)}
        files.append(path, json.dumps({**table, "seal": seal_of(table, self.identity.fingerprint)}))

    def _closed_timings(self) -> list[bytes]:
        """The lines of times of a finished run, without the last one, which has their digest.

        Raises:
            OSError: the file cannot be read.
            ValueError: a line was changed, removed or added.
        """
        data = self._bytes(TIMINGS)
        before, newline, last = data[:-1].rpartition(b"\n")
        if not data.endswith(b"\n"):
            raise ValueError("its end is missing")
        if unsealed_json(last, self.identity.fingerprint).get("digest") != files.digest_of(before + newline):
            raise ValueError("lines were changed, removed or added")
        return before.split(b"\n")

    def _whole_timings(self, lines: Iterable[bytes]) -> Iterator[Timed]:
        """The lines of times that nothing has cut or changed."""
        for line in lines:
            try:
                yield checked(unsealed_json(line, self.identity.fingerprint), Timed)
            except ValueError:
                continue

    def _bytes(self, name: str) -> bytes:
        return files.read(self.path / name)

    def _bytes_as_summed(self, name: str) -> None:
        """Raise a DamagedError unless a file is the one whose digest the summary has."""

        def check() -> None:
            recorded = self.summary.files.get(name)
            if recorded and not (self.path / name).exists():
                raise FileNotFoundError
            if files.digest(self.path / name) != recorded:
                raise ValueError("its digest is another")

        self._intact(name, check, DamagedError, self._made_again)

    def _intact(self, name: str, get: Callable[[], T], kind: type[FedshiftError], fix: str) -> T:
        """What a reader gives, whose errors become a single one that names the file and the fix."""
        try:
            return get()
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            reason = "is missing" if missing else f"cannot be read ({error.strerror or error})"
            raise kind(f"'{self.path / name}' {reason}. {fix}") from error
        except (ValueError, RecursionError) as error:
            raise kind(f"'{self.path / name}' is not what was written ({error}). {fix}") from error


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
    found_in = {folder for folder, names in below if not {RUN, SUMMARY, RECORDS}.isdisjoint(names)}
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
