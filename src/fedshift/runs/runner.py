"""Running experiments in their folders: finished runs are not repeated, interrupted runs resume to the same bits.

Runs with equal work advance together where that is faster, each with its folder, records and checkpoints.
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
from fedshift.runs.together import Judge, run_together


def start(experiment: Experiment, progress: Progress) -> Run:
    """Start a new run; raises a FedshiftError if its folder exists, or the experiment cannot run."""
    folder = Run(run_path(experiment))
    folder.check_new()
    files.check_folder(folder.path.parent)
    simulation = Simulation(experiment, progress.embedded)
    if simulation.blueprint.oddity:
        progress.note(simulation.blueprint.oddity)
    choice = simulation.choice(progress.note)
    for error in run_together([(simulation, folder)], choice, progress).values():
        raise error
    return folder


def run_all(
    experiments: Sequence[Experiment], progress: Progress, shard: Shard | None = None
) -> tuple[list[Run], Failures]:
    """Run every run of a comparison, which is listed in a file so that it can be resumed as a whole.

    With a ``shard``, other processes share the runs, and this call waits until all are done. Returns the folders of the
    runs that ran, and the errors of the others; a failed run does not stop the others. Raises a FedshiftError if the
    first run cannot run, and neither diverged nor is refused by its method alone; or if every run's method refuses it.
    """
    requested = [PlannedRun.of(each) for each in experiments]
    for folder in {each.folder.path.parent for each in requested if not each.folder.finished}:
        files.check_folder(folder)
    write = partial(write_grid, experiments, run_path(experiments[0]).parent)
    schedule = SharedSchedule(shard, progress, before_first=write) if shard else Schedule(progress, before_first=write)
    return schedule.run_all(requested)


def resume(requested: Sequence[PlannedRun], progress: Progress) -> tuple[list[Run], Failures]:
    """Resume every unfinished run that :func:`below` found; returns and raises as :func:`run_all`."""
    return Schedule(progress).run_all(requested)


def attempt(requested: Sequence[PlannedRun], progress: Progress, judge: Judge, shard: Shard | None = None) -> Failures:
    """Run runs, some of which ``judge`` may stop; see :func:`fedshift.runs.together.run_together`.

    Returns the errors; a run that was stopped is not among them, and stays unfinished. Raises as :func:`run_all`.
    """
    schedule = SharedSchedule(shard, progress, judge) if shard else Schedule(progress, judge)
    schedule.run_all(requested)
    return schedule.failed


def below(path: Path, trust: bool = False) -> list[PlannedRun]:
    """The runs of comparisons at or below a path, started or not, and then all other runs there.

    ``trust`` allows plugins that never ran on this machine; without it they raise an UntrustedError. Raises a
    FedshiftError if there are no runs, or if the path is a study's or a trial's.
    """
    check_no_study(path)
    requested: dict[Path, PlannedRun] = {}
    for file in grid_files(path):
        for run in read_grid(file).runs:
            folder = Run(file.parent / run.folder, trust)
            if not folder.has_started:
                check_plugins(run.plugins, folder.path, trust)
                begin = partial(experiment_of, run, file, trust)
                requested.setdefault(folder.path, PlannedRun(folder, begin, run.fingerprint))
            else:
                requested.setdefault(folder.path, _planned(folder))
    for folder in find(path, 0 if requested else 1, trust):
        requested.setdefault(folder.path, _planned(folder))
    return list(requested.values())


def _planned(folder: Run) -> PlannedRun:
    if not folder.finished and folder.readable:
        folder.check_resumable()
    return PlannedRun(folder, folder.resumable_experiment)
