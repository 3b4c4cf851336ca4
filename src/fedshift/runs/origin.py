"""A run's request, and whether everything that decides its result is unchanged.

run.json identifies the run, experiment.toml has every setting. A run folder from elsewhere may name unread Python code:
it is imported only if it ran on this machine before, or if the user trusts it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w

from fedshift import files
from fedshift.content import digest, ran_here, remember_code
from fedshift.errors import DamagedError, FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.manifest import digested_json, read_json
from fedshift.runs.schema import Identity, environment
from fedshift.written import LARGEST_TOML

RUN, EXPERIMENT, SUMMARY = "run.json", "experiment.toml", "summary.json"
RECORDS, CLIENTS = "records.jsonl", "clients"
STUDY = "study.journal"  # marks a folder whose runs are trials of a search, not results
NOT_OF_MODELS = ("data.", "method.index.")  # prefixes of settings whose files are not needed to rebuild a trained model
DATA, MODELS = "data", "models"  # folders next to the runs' folders, in which in_memory and own_model write
SOME = 4  # run folders that an error lists


class UntrustedError(FedshiftError):
    """A run folder's plugin never ran on this machine."""


@dataclass(frozen=True)
class Origin:
    """A folder's record of its run; ``trust`` allows plugins that never ran on this machine."""

    path: Path
    trust: bool = False

    @classmethod
    def open(cls, path: str | Path, trust: bool = False) -> Self:
        run = cls(Path(path), trust)
        if not run.has_started:
            below = ", ".join(f"'{file.parent}'" for file in sorted(run.path.glob(f"*/{RUN}"))[:SOME])
            fix = f" Those in it: {below}." if below else ""
            raise FedshiftError(f"'{path}' is not a run folder: it has no {RUN}.{fix}")
        return run

    @classmethod
    def create(
        cls, experiment: Experiment, path: Path, host: Literal["simulation", "federation"] = "simulation"
    ) -> Self:
        """Create the folder of a new run, which only its host can resume."""
        run = cls(path)
        run.check_new()
        files.make_folder(path)
        text = tomli_w.dumps(experiment.table())
        identity = Identity(
            fingerprint=experiment.fingerprint,
            series=experiment.series,
            table=_table_digest(tomllib.loads(text)),
            contents=experiment.contents,
            plugins=experiment.code,
            host=host,
            environment=environment(),
        )
        files.write(path / RUN, digested_json(identity.model_dump()))
        files.write(run.experiment_file, text)
        for plugin in experiment.code:
            remember_code(plugin)
        return run

    @property
    def experiment_file(self) -> Path:
        return self.path / EXPERIMENT

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).exists()

    @property
    def has_started(self) -> bool:
        """Whether it contains a run; experiment.toml is written last, so that an interrupted start is not a run."""
        return any((self.path / name).exists() for name in (EXPERIMENT, SUMMARY, RECORDS, CLIENTS))

    @property
    def resume_command(self) -> str:
        if self.readable and self.identity.host == "federation":
            return "`fedshift federation run` in the coordinator's folder"
        return resume_command(self.path)

    def check_new(self) -> None:
        if self.has_started:
            state = "is finished" if self.finished else "has started"
            fix = "fedshift report" if self.finished else "fedshift resume"
            raise FedshiftError(
                f"The run folder '{self.path}' exists and is not overwritten; its run {state}. "
                f"Use `{fix} {self.path}`, or another --set name=... or run.out=..."
            )

    def check_is(self, fingerprint: str) -> None:
        if self.has_started and self.identity.fingerprint != fingerprint:
            raise FedshiftError(f"The run folder '{self.path}' contains another run; choose another --set name=...")

    @cached_property
    def identity(self) -> Identity:
        fix = f"Restore it, or run '{self.experiment_file}' again in another folder (--set run.out=...)."
        try:
            return read_json(self.path / RUN, Identity)
        except DamagedError as error:
            raise FedshiftError(f"{error} {fix}") from error

    @cached_property
    def table(self) -> dict[str, Any]:
        """The resolved experiment as a table; raises a FedshiftError if anything but [run] was changed."""
        fix = "Undo the change; give another experiment in a separate file."
        try:
            table = tomllib.loads(files.read(self.experiment_file, LARGEST_TOML).decode("utf-8"))
        except FileNotFoundError as error:
            raise FedshiftError(f"'{self.experiment_file}' is missing. {fix}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise FedshiftError(f"'{self.experiment_file}' cannot be read ({error}). {fix}") from error
        if _table_digest(table) != self.identity.table:
            raise FedshiftError(
                f"'{self.experiment_file}' describes a different experiment from the run that was started. {fix}"
            )
        return table

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment, to rebuild the trained models; its data may have moved, changed or be missing."""
        experiment = self._resolved()
        self._check_contents(experiment, "gives no model", lambda what: not what.startswith(NOT_OF_MODELS))
        return experiment

    def resumable_experiment(self) -> Experiment:
        experiment = self._resolved()
        self._check_contents(experiment, "cannot continue", lambda what: True)
        if experiment.fingerprint != self.identity.fingerprint:
            raise FedshiftError(
                f"'{self.path}' cannot continue: fedshift itself changed since it started. Restore what it was, or "
                "start a new run."
            )
        return experiment

    def check_readers(self) -> None:
        """Raise an error unless new files are read with the run's tokenizer and frozen network."""
        readers = {f"data.{name}" for name in self.experiment.data.readers}
        self._check_contents(self.experiment, "cannot predict for files", readers.__contains__)

    @property
    def readable(self) -> bool:
        with suppress(FedshiftError):
            return bool(self.identity)
        return False

    def check_resumable(self) -> None:
        """Raise an error unless a simulation can resume the run, and its code is unchanged and trusted."""
        if self.identity.host == "federation":
            raise FedshiftError(
                f"'{self.path}' is a federation's run, which its coordinator alone can resume: {self.resume_command}."
            )
        check_plugins(self._plugins(), self.path, self.trust)

    def _plugins(self) -> dict[str, str]:
        moved = self._moved(self.identity.plugins)
        return {moved[path]: content for path, content in self.identity.plugins.items()}

    def _resolved(self) -> Experiment:
        named = {_at(self.table, what): content for what, content in self.identity.contents.items()}
        paths = {path: content for path, content in named.items() if isinstance(path, str)} | self.identity.plugins
        table = _with_paths(self.table, self._moved(paths))
        return trusted(table, self._plugins(), self.path, self.trust)

    def _moved(self, contents: Mapping[str, str]) -> dict[str, str]:
        """The current paths of files, by their former paths, given the files' digests by path.

        A missing file is searched by its name, and recognised by its digest: in the run's folder, in the two around it,
        and in their folders of data and models, so that runs can be moved together with the files of fedshift.in_memory
        and fedshift.own_model.
        """
        here = self.path.resolve()
        around = [folder / name for folder in (here, *here.parents[:2]) for name in ("", DATA, MODELS)]
        now: dict[str, str] = {}
        for path, content in contents.items():
            others = () if Path(path).expanduser().exists() else (str(folder / Path(path).name) for folder in around)
            now[path] = next((other for other in others if digest(other) == content), path)
        return now

    def _check_contents(self, experiment: Experiment, problem: str, counts: Callable[[str], bool]) -> None:
        before, now = self.identity.contents, experiment.contents
        where = {".".join(names): f" ('{path}')" for names, path in experiment.paths()}
        reasons = [
            f"{what}{where.get(what, '')} {'changed since it started' if what in now else 'is missing now'}"
            for what in sorted(before.keys() | now.keys())
            if before.get(what) != now.get(what) and counts(what)
        ]
        if reasons:
            gone = any(what in where and what not in now for what in before)
            copy = ", put a copy of the missing file into that folder" if gone else ""
            raise FedshiftError(
                f"'{self.path}' {problem}: {', '.join(reasons)}. Restore what it was{copy}, or start a new run."
            )


def _with_paths(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _with_paths(each, moved) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_paths(each, moved) for each in value]
    return moved.get(value, value) if isinstance(value, str) else value


def _at(table: Mapping[str, Any], names: str) -> Any:
    found: Any = table
    for name in names.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _table_digest(table: Mapping[str, Any]) -> str:
    decides = {name: value for name, value in table.items() if name != "run"}
    return files.digest_of(json.dumps(decides, sort_keys=True, default=str).encode())


def study_of(path: Path) -> Path | None:
    """The study's folder if a path is a study, or lies directly in it as a trial's run does; None if not."""
    here = path.resolve()
    return next((folder for folder in (here, here.parent) if (folder / STUDY).is_file()), None)


def check_no_study(path: Path) -> None:
    """Raise an error if a path is a study's or a trial's, whose scores are not results."""
    if study := study_of(path):
        raise FedshiftError(
            f"'{path}' contains trials of a study, some of which were stopped early, and whose test scores must "
            f"stay unseen while settings are chosen. The results are in '{study.parent / 'tuned-*.html'}', which "
            f"`fedshift tune` writes; {resume_command(path)} resumes it."
        )


def resume_command(path: Path) -> str:
    return "the command that started the search" if study_of(path) else f"`fedshift resume {path}`"


def trusted(table: Mapping[str, Any], plugins: Mapping[str, str], folder: Path, trust: bool) -> Experiment:
    """A folder's experiment, once all its code is unchanged and may be imported."""
    _check_named(table.get("plugins"), plugins, folder)
    check_plugins(plugins, folder, trust)
    try:
        experiment = Experiment.from_table(table)
    except UnknownNameError as error:
        raise FedshiftError(f"'{folder / EXPERIMENT}' names something that does not exist. {error}") from error
    _check_named(experiment.code, plugins, folder)  # what settings name, none of which has run yet
    return experiment


def _check_named(paths: Any, plugins: Mapping[str, str], folder: Path) -> None:
    """Raise an error if an experiment names code without a known digest."""
    for path in paths if isinstance(paths, Iterable) else ():
        if isinstance(path, str) and path not in plugins:
            raise FedshiftError(
                f"The experiment of the run '{folder}' names the code '{path}', but not its digest, so it was changed "
                "since it was written. Restore it, or start a new run."
            )


def check_plugins(plugins: Mapping[str, str], folder: Path, trust: bool) -> None:
    """Raise an error before importing a code file that changed, or that never ran here.

    Digests are from the run's start.
    """
    for path, content in plugins.items():
        now = digest(path)
        if now != content:
            state = "changed" if now else "is missing"
            fix = "Restore it" if now or not folder.is_dir() else "Restore it, put a copy into that folder"
            raise FedshiftError(
                f"The plugin '{path}' of the run '{folder}' {state} (then {content[:12]}, now {now[:12] or 'none'}). "
                f"{fix}, or start a new run."
            )
        if not trust and not ran_here(path):
            raise UntrustedError(
                f"The run '{folder}' imports the plugin '{path}' (digest {content[:12]}), which never ran on this "
                "machine. A plugin can do whatever you can: read it, and if you trust it, add --trust "
                "(trust=True in Python)."
            )
        if trust:
            remember_code(path)
