"""The runs of a comparison, listed in a file next to their folders, so that runs that have not started are known.

The file's name is a digest of its content: the same comparison has the same file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedshift import files
from fedshift.errors import DamagedError, FedshiftError
from fedshift.experiments import Experiment
from fedshift.manifest import digested_json, read_json
from fedshift.runs.origin import RECORDS, RUN, STUDY, SUMMARY, study_of, trusted
from fedshift.runs.run import ASIDE, Run
from fedshift.runs.schema import File
from fedshift.written import RunName


class GridRun(File):
    """A run of a comparison: its folder's name, its fingerprint, digests of its plugins, its experiment as a table."""

    folder: RunName
    fingerprint: str
    plugins: dict[str, str]
    experiment: dict[str, Any]


class Grid(File):
    """grid-*.json: every run of a comparison, in order."""

    format: Literal[2] = 2
    runs: list[GridRun]


def write_grid(experiments: Sequence[Experiment], folder: Path) -> None:
    runs = [
        GridRun(folder=each.run_name, fingerprint=each.fingerprint, plugins=each.code, experiment=each.table())
        for each in experiments
    ]
    if len(runs) < 2:
        return
    name = files.digest_of("\n".join(run.fingerprint for run in runs).encode())[:8]
    path = folder / f"grid-{name}.json"
    if not path.is_file():
        files.make_folder(folder)
        files.remove_abandoned(path)
        files.write(path, digested_json(Grid(runs=runs).model_dump()))


def grid_files(path: Path) -> list[Path]:
    below = files.walk(path) if path.is_dir() else ()
    return sorted(folder / name for folder, names in below for name in fnmatch.filter(names, "grid-????????.json"))


def read_grid(path: Path) -> Grid:
    try:
        return read_json(path, Grid)
    except DamagedError as error:
        raise FedshiftError(f"{error} Remove it: runs that have started can be resumed without it.") from error


def experiment_of(run: GridRun, path: Path, trust: bool) -> Experiment:
    """The experiment of a run that has not started.

    ``path`` is the grid's file, for messages; ``trust`` allows plugins that never ran on this machine. Raises a
    FedshiftError if a plugin is not trusted, or if a plugin or the data changed.
    """
    experiment = trusted(run.experiment, run.plugins, path.parent / run.folder, trust)
    if experiment.fingerprint != run.fingerprint:
        raise FedshiftError(
            f"The run '{run.folder}' of '{path}' cannot start: the data or fedshift itself changed since the "
            "comparison did. Restore what it was, or start a new comparison."
        )
    return experiment


def find(path: Path, least: int = 1, trust: bool = False) -> list[Run]:
    """The run folders at or below a path, sorted; trials of a study below it are excluded.

    Links to folders are followed, and a run with two paths counts once; see :func:`files.walk`. Raises a FedshiftError
    if there are fewer than ``least``.
    """
    below = list(files.walk(path)) if path.is_dir() else []
    studies = {folder for folder, names in below if STUDY in names} - {path}
    found_in = {folder for folder, names in below if not {RUN, SUMMARY, RECORDS}.isdisjoint(names)}
    paths = sorted(
        folder
        for folder in found_in
        if not folder.name.startswith(ASIDE) and studies.isdisjoint(folder.parents) and not _linked_trial(folder, path)
    )
    found = [run for path in paths if (run := Run(path, trust)).has_started]
    if len(found) < least:
        raise FedshiftError(f"No run folder is at or below '{path}'.")
    return found


def _linked_trial(folder: Path, path: Path) -> bool:
    return folder != path and folder.is_symlink() and study_of(folder) is not None
