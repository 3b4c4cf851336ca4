"""Carrying out runs in their folders: finished ones are not repeated, interrupted ones go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fedshift.content import digest
from fedshift.engines.engine import Moment
from fedshift.errors import DivergedError, FedshiftError
from fedshift.experiment import Experiment
from fedshift.runs.checkpoint import Checkpoint
from fedshift.runs.folder import Record, RunFolder
from fedshift.runs.progress import Outlook, Progress
from fedshift.runs.selection import summary
from fedshift.runs.simulation import Simulation


def run_path(experiment: Experiment) -> Path:
    """Where a run's folder lies."""
    return Path(experiment.run.out) / experiment.name / experiment.run_name


def start(experiment: Experiment, progress: Progress) -> RunFolder:
    """Carry out a new run.

    Raises:
        FedshiftError: its folder exists, or the experiment cannot be run.
    """
    simulation = Simulation(experiment, progress.embedded)
    folder = RunFolder.create(experiment, run_path(experiment))
    carry_out(simulation, folder, progress)
    return folder


def resume(folder: RunFolder, progress: Progress) -> None:
    """Carry a run on from its last checkpoint to its end; a finished one is left alone."""
    if folder.finished:
        progress.reused(folder.path.name)
        return
    carry_out(Simulation(folder.experiment(), progress.embedded), folder, progress)


def run_all(experiments: Sequence[Experiment], progress: Progress) -> tuple[list[RunFolder], list[FedshiftError]]:
    """Carry out every run of a grid; one that fails does not keep the others from theirs.

    Returns:
        The folders of the runs that were carried out, and what went wrong with the others.

    Raises:
        FedshiftError: the first run cannot be carried out, and has not merely diverged.
    """
    folders: list[RunFolder] = []
    failed: list[FedshiftError] = []
    for experiment in experiments:
        try:
            folders.append(_started_or_resumed(experiment, progress))
        except DivergedError as error:
            failed.append(DivergedError(f"{experiment.run_name}: {error}"))
            folders.append(RunFolder(run_path(experiment)))
        except FedshiftError as error:
            if not (folders or failed):
                raise  # what is wrong with the first is most likely wrong with all
            failed.append(FedshiftError(f"{experiment.run_name}: {error}"))
    return folders, failed


def _started_or_resumed(experiment: Experiment, progress: Progress) -> RunFolder:
    path = run_path(experiment)
    if not (path / "experiment.toml").is_file():
        return start(experiment, progress)
    folder = RunFolder.open(path)
    if folder.experiment().fingerprint != experiment.fingerprint:
        raise FedshiftError(f"The run folder '{path}' holds another run; choose another --set name=...")
    resume(folder, progress)
    return folder


def carry_out(simulation: Simulation, folder: RunFolder, progress: Progress) -> None:
    """Carry a run to its end, from the folder's last checkpoint if there is one."""
    options, scored = simulation.experiment.run, simulation.scored()
    with folder.locked():
        if folder.checkpoint_file.is_file():
            fingerprint = simulation.experiment.fingerprint
            simulation.restore(Checkpoint.load(folder.checkpoint_file, fingerprint, simulation.device))
        progress.begin(Outlook(folder.path.name, simulation.rounds, simulation.position))
        folder.rewind(simulation.position, scored)
        stopwatch = _Stopwatch(simulation.position)
        declared = folder.read_json("messages.json") or {}  # what crossed the wire before an interruption counts
        for moment in simulation.moments()[simulation.position :]:
            simulation.advance(moment, progress)
            progress.round(simulation.position, simulation.bytes_down, simulation.bytes_up)
            if not simulation.messages.keys() <= declared.keys():
                declared = {**declared, **declaration(simulation)}
                folder.write_json("messages.json", declared)
            # Records first, so that no checkpoint is ahead of them.
            if simulation.position in scored:
                _score(simulation, moment, folder, progress)
                folder.timing(stopwatch.lap(simulation.position))
            if simulation.position % options.checkpoint_every == 0 or moment.round == moment.stage.rounds:
                simulation.checkpoint().save(folder.checkpoint_file)
        _finish(simulation, folder)
    progress.end()


def _score(simulation: Simulation, moment: Moment, folder: RunFolder, progress: Progress) -> None:
    record = simulation.evaluate(moment)
    folder.record(record)
    progress.evaluated(record)


def _finish(simulation: Simulation, folder: RunFolder) -> None:
    tensors = dict(simulation.server.shared)
    for client, state in simulation.store.items():
        tensors |= {f"client.{client}.{name}": tensor for name, tensor in state.tensors.items()}
    folder.write_weights(tensors)
    about = {"experiment": digest(folder.experiment_file), "notes": simulation.notes}
    folder.write_json("summary.json", {**summary(folder.records()), **about})


def declaration(simulation: Simulation) -> Record:
    """What crosses the wire, for whoever must explain it: names, types, shapes and bytes of each message."""
    return {
        exchange: {
            direction: {
                "bytes": message.nbytes,
                "tensors": {
                    name: f"{str(dtype).removeprefix('torch.')} {list(shape)}"
                    for name, dtype, shape in message.signature
                },
            }
            for direction, message in both.items()
        }
        for exchange, both in simulation.messages.items()
    }


class _Stopwatch:
    """Times stretches of rounds."""

    def __init__(self, position: int) -> None:
        self._position, self._started = position, time.perf_counter()

    def lap(self, position: int) -> Record:
        """The stretch since the last lap, and start a new one."""
        now = time.perf_counter()
        stretch = {"from": self._position, "to": position, "seconds": round(now - self._started, 3)}
        self._position, self._started = position, now
        return stretch
