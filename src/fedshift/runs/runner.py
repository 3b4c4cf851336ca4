"""Running experiments in their folders: finished ones are not repeated, interrupted ones continue as they were.

Runs that are equal advance together where that is faster, each with its own folder, records and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedshift import files
from fedshift.experiments import Experiment
from fedshift.runs.events import Progress
from fedshift.runs.find import experiment_of, find, grid_files, read_grid, write_grid
from fedshift.runs.origin import check_no_study, check_plugins
from fedshift.runs.run import Run
from fedshift.runs.scheduling import Failures, PlannedRun, Schedule, SharedSchedule, run_path
from fedshift.runs.shard import Shard
from fedshift.runs.simulation import Simulation
from fedshift.runs.together import Judge, carry_out


def start(experiment: Experiment, progress: Progress) -> Run:
    """Start a new run.

    Raises:
        FedshiftError: its folder exists, or the experiment cannot be run.
    """
    folder = Run(run_path(experiment))
    folder.check_new()
    files.check_folder(folder.path.parent)
    simulation = Simulation(experiment, progress.embedded)
    if simulation.blueprint.oddity:
        progress.note(simulation.blueprint.oddity)
    choice = simulation.choice(progress.note)
    for error in carry_out([(simulation, folder)], choice, progress).values():
        raise error
    return folder


def run_all(
    experiments: Sequence[Experiment], progress: Progress, shard: Shard | None = None
) -> tuple[list[Run], Failures]:
    """Run every run of a comparison, which is written down so that it can be resumed as a whole.

    Args:
        experiments: the runs.
        progress: receives the progress.
        shard: carries them out with other processes, of whose runs it waits for the end.

    Returns:
        The folders of the runs that were run, and what went wrong with the others: one that fails does not
        keep the others from theirs.

    Raises:
        FedshiftError: the first run cannot run, and neither diverged nor is refused by its method alone; or
            the method of every run refuses it.
    """
    requested = [PlannedRun.of(each) for each in experiments]
    for folder in {each.folder.path.parent for each in requested if not each.folder.finished}:
        files.check_folder(folder)
    write = partial(write_grid, experiments, run_path(experiments[0]).parent)
    schedule = SharedSchedule(shard, progress, before_first=write) if shard else Schedule(progress, before_first=write)
    return schedule.carry_out(requested)


def resume(requested: Sequence[PlannedRun], progress: Progress) -> tuple[list[Run], Failures]:
    """Resume every run that :func:`below` found and that is not finished.

    Returns:
        As :func:`run_all`.

    Raises:
        FedshiftError: as :func:`run_all`.
    """
    return Schedule(progress).carry_out(requested)


def attempt(requested: Sequence[PlannedRun], progress: Progress, judge: Judge, shard: Shard | None = None) -> Failures:
    """Run runs, of which ``judge`` may give some up; see :func:`fedshift.runs.together.carry_out`.

    Returns:
        What went wrong. A run that was given up is not among it: it is left unfinished.

    Raises:
        FedshiftError: as :func:`run_all`.
    """
    schedule = SharedSchedule(shard, progress, judge) if shard else Schedule(progress, judge)
    schedule.carry_out(requested)
    return schedule.failed


def below(path: Path, trust: bool = False) -> list[PlannedRun]:
    """The runs of comparisons at or below a path, those that have not started included, and then all other runs there.

    Args:
        path: a run folder, or a folder of them.
        trust: whether plugins may be imported that never ran on this machine.

    Raises:
        UntrustedError: a run needs such a plugin.
        FedshiftError: there are no runs, or the path is a study's or a trial's.
    """
    check_no_study(path)
    requested: dict[Path, PlannedRun] = {}
    for file in grid_files(path):
        for run in read_grid(file).runs:
            folder = Run(file.parent / run.folder, trust)
            if not folder.begun:
                check_plugins(run.plugins, folder.path, trust)
                begin = partial(experiment_of, run, file, trust)
                requested.setdefault(folder.path, PlannedRun(folder, begin, run.fingerprint))
            else:
                requested.setdefault(folder.path, _begun(folder))
    for folder in find(path, 0 if requested else 1, trust):
        requested.setdefault(folder.path, _begun(folder))
    return list(requested.values())


def _begun(folder: Run) -> PlannedRun:
    if not folder.finished and folder.readable:
        folder.check_may_go_on()
    return PlannedRun(folder, folder.experiment_to_go_on)
