"""Carrying out the runs of a grid: finished ones are not repeated, interrupted ones go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedshift.errors import FedshiftError
from fedshift.experiment import Experiment
from fedshift.runs.folder import RunFolder
from fedshift.runs.progress import Progress
from fedshift.runs.simulation import Simulation


def run_path(experiment: Experiment) -> Path:
    """Where a run's folder lies."""
    return Path(experiment.run.out) / experiment.name / experiment.run_name


def start(experiment: Experiment, progress: Progress) -> RunFolder:
    """Carry out a new run.

    Raises:
        FedshiftError: its folder exists, or the experiment cannot be run.
    """
    simulation = Simulation(experiment)
    folder = RunFolder.create(experiment, run_path(experiment))
    simulation.run(folder, progress)
    return folder


def resume(folder: RunFolder, progress: Progress) -> None:
    """Carry a run on from its last checkpoint to its end; a finished one is left alone."""
    if folder.finished:
        progress.reused(folder.path.name)
        return
    Simulation(folder.experiment()).run(folder, progress)


def run_all(experiments: Sequence[Experiment], progress: Progress) -> list[RunFolder]:
    """Carry out every run of a grid.

    Raises:
        FedshiftError: a folder holds another run, or an experiment cannot be run.
    """
    folders = []
    for experiment in experiments:
        path = run_path(experiment)
        if (path / "experiment.toml").is_file():
            folder = RunFolder.open(path)
            if folder.experiment().fingerprint != experiment.fingerprint:
                raise FedshiftError(f"The run folder '{path}' holds another experiment; choose another --set name=...")
            resume(folder, progress)
        else:
            folder = start(experiment, progress)
        folders.append(folder)
    return folders
