"""Carrying out runs in their folders: finished ones are not repeated, interrupted ones go on.

Runs that are alike advance together where that is faster, each with its own folder, records and checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.engine import Engine
from fedshift.engines.forecast import Announcing
from fedshift.engines.merging import kind
from fedshift.engines.workers import can_fork
from fedshift.errors import DivergedError, FedshiftError
from fedshift.runs.folder import Record, RunFolder
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.selection import summary
from fedshift.runs.trained import Blueprint
from fedshift.settings.content import digest
from fedshift.settings.experiment import Experiment
from fedshift.simulation.rounds import advance
from fedshift.simulation.simulation import Simulation


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
    _alone(simulation, folder, progress)
    return folder


def resume(folder: RunFolder, progress: Progress) -> None:
    """Carry a run on from its last checkpoint to its end; a finished one is left alone."""
    if folder.finished:
        progress.reused(folder.path.name)
        return
    _alone(Simulation(folder.experiment(), progress.embedded), folder, progress)


def _alone(simulation: Simulation, folder: RunFolder, progress: Progress) -> None:
    choice = _choice(simulation, folder, progress)
    for error in carry_out([(simulation, folder)], choice, progress).values():
        raise error


# Many runs ----------------------------------------------------------------------------------------


def run_all(experiments: Sequence[Experiment], progress: Progress) -> tuple[list[RunFolder], list[FedshiftError]]:
    """Carry out every run of a grid; one that fails does not keep the others from theirs.

    Returns:
        The folders of the runs that were carried out, and what went wrong with the others.

    Raises:
        FedshiftError: the first run cannot be carried out, and has not merely diverged.
    """
    grid = _Grid(progress)
    for experiment in experiments:
        grid.add(experiment)
    grid.carry_out()
    return [folder for folder in map(grid.folder, experiments) if folder is not None], grid.failed


class _Grid:
    """The runs of a grid that wait for others that are alike."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._waiting: list[tuple[Simulation, RunFolder]] = []
        self._choice: Choice | None = None  # of those that wait
        self._folders: dict[str, RunFolder] = {}
        self.failed: list[FedshiftError] = []

    def folder(self, experiment: Experiment) -> RunFolder | None:
        """The folder of a run, unless it could not be begun."""
        return self._folders.get(experiment.run_name)

    def add(self, experiment: Experiment) -> None:
        """Put a run to those that wait, after carrying these out if it is of another kind or they are enough."""
        try:
            folder = _opened(experiment, self._progress)
            if folder is not None and folder.finished:
                self._folders[experiment.run_name] = folder
                return
            simulation = Simulation(experiment, self._progress.embedded)
            folder = folder or RunFolder.create(experiment, run_path(experiment))
            choice = _choice(simulation, folder, self._progress)
        except FedshiftError as error:
            self._note_failure(experiment, error)
            return
        if self._waiting and not (choice == self._choice and _alike(self._waiting[0][0], simulation)):
            self.carry_out()
        self._choice = choice
        self._folders[experiment.run_name] = folder
        self._waiting.append((simulation, folder))
        if len(self._waiting) >= (experiment.run.together or choice.together):
            self.carry_out()

    def carry_out(self) -> None:
        """Carry out all that wait, together."""
        runs, self._waiting = self._waiting, []
        if not (runs and self._choice):
            return
        for simulation, error in carry_out(runs, self._choice, self._progress).items():
            if not isinstance(error, FedshiftError):
                raise error
            self._note_failure(simulation.experiment, error)

    def _note_failure(self, experiment: Experiment, error: FedshiftError) -> None:
        """Remember what went wrong with a run; what is wrong with the first is most likely wrong with all."""
        if not isinstance(error, DivergedError):
            self._folders.pop(experiment.run_name, None)
            if not (self._folders or self.failed):
                raise error
        kind = DivergedError if isinstance(error, DivergedError) else FedshiftError
        self.failed.append(kind(f"{experiment.run_name}: {error}"))


def _opened(experiment: Experiment, progress: Progress) -> RunFolder | None:
    """The folder of a run that has begun; None of one that has not."""
    path = run_path(experiment)
    if not (path / "experiment.toml").is_file():
        return None
    folder = RunFolder.open(path)
    if folder.experiment().fingerprint != experiment.fingerprint:
        raise FedshiftError(f"The run folder '{path}' holds another run; choose another --set name=...")
    if folder.finished:
        progress.reused(folder.path.name)
    return folder


def _alike(current: Simulation, other: Simulation) -> bool:
    """Whether two runs may advance together: what shares a stack, carried out in the same way."""
    return kind(current.setup) == kind(other.setup) and current.experiment.run == other.experiment.run


def _choice(simulation: Simulation, folder: RunFolder, progress: Progress) -> Choice:
    """The engine of a run; one that goes on keeps the engine it had, unless another is asked for."""
    options, before = simulation.experiment.run, folder.read_json("engine.json")
    if options.engine == "auto" and before and _still_right(before, simulation):
        return Choice.from_table(before)
    choice = simulation.choice(progress.note)
    folder.write_json("engine.json", choice.table())
    return choice


def _still_right(before: Record, simulation: Simulation) -> bool:
    """Whether the engine that a run had can be had here, and is what its options ask for."""
    options = simulation.experiment.run
    if not {"engine", "workers", "threads", "kernels"} <= before.keys():
        return False
    if before["engine"] == "workers":
        here = can_fork() and simulation.setup.device.type == "cpu"
        return here and options.workers in (0, before["workers"])
    return options.threads in (0, before["threads"])


# One group of runs --------------------------------------------------------------------------------


@dataclass(eq=False)
class _Run:
    """A run under way: its simulation, folder and display; the time, and what the engine said, since its last line."""

    simulation: Simulation
    folder: RunFolder
    display: RunProgress
    engine: str
    declared: Record
    since: int
    seconds: float = 0.0
    together: int = 1
    notes: list[str] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether there are rounds left."""
        return self.simulation.coordinator.position < self.simulation.rounds

    def after_round(self, seconds: float, together: int, engine: Engine) -> Exception | None:
        """Tell, score, record and save what is due after a round; returns what went wrong."""
        try:
            self._after_round(seconds, together, engine)
        except Exception as error:  # one run's failure is not the others'
            return error
        return None

    def _after_round(self, seconds: float, together: int, engine: Engine) -> None:
        simulation, folder = self.simulation, self.folder
        position = simulation.coordinator.position
        round = simulation.coordinator.schedule[position - 1]
        if together != self.together:
            self._write_times(position - 1, 0.0)
            self.together = together
        self.seconds += seconds
        coordinator = simulation.coordinator
        self.display.round(position, coordinator.bytes_down, coordinator.bytes_up)
        if not coordinator.messages.keys() <= self.declared.keys():
            self.declared = {**self.declared, **coordinator.declaration()}
            folder.write_json("messages.json", self.declared)
        # Records first, so that no checkpoint is ahead of them.
        if simulation.scored(position):
            started = time.perf_counter()
            record = simulation.record(round, engine)
            folder.record(record)
            self.display.evaluated(record)
            self._write_times(position, time.perf_counter() - started)
        every = simulation.experiment.run.checkpoint_every
        if position % every == 0 or round.number == round.stage.rounds:
            simulation.save()
        if not self.open:
            _finish(simulation, folder)
            self.display.end()

    def _write_times(self, position: int, evaluation: float) -> None:
        """Write down what the rounds since the last line took."""
        if position > self.since:
            self.folder.timing(
                {
                    "from": self.since,
                    "to": position,
                    "seconds": round(self.seconds, 3),
                    "evaluation": round(evaluation * self.together, 3),  # which nobody shares
                    "together": self.together,
                    "engine": self.engine,
                    **({"notes": self.notes} if self.notes else {}),
                }
            )
            self.notes = []
        self.since, self.seconds = position, 0.0


def carry_out(
    runs: Sequence[tuple[Simulation, RunFolder]], choice: Choice, progress: Progress
) -> dict[Simulation, Exception]:
    """Carry runs to their ends together, each from its folder's last checkpoint if there is one.

    Returns:
        What went wrong, by run; such a run can be resumed from its last checkpoint.
    """
    failed: dict[Simulation, Exception] = {}
    under_way: list[_Run] = []

    def tell(text: str) -> None:
        progress.note(text)
        for current in under_way:
            current.notes.append(text)

    with ExitStack() as stack:
        engine = Announcing(stack.enter_context(open_engine(choice, tell)), tell)
        for simulation, folder in runs:
            try:
                stack.enter_context(folder.locked())
                under_way.append(_begin(simulation, folder, progress, choice))
            except FedshiftError as error:  # one run's failure is not the others'
                failed[simulation] = error
        while going := _hindmost(current for current in under_way if current.open and current.simulation not in failed):
            started = time.perf_counter()
            tells = {current.simulation: current.display.steps for current in going}
            errors = advance([current.simulation for current in going], engine, tells)
            seconds = time.perf_counter() - started
            for current in going:
                problem = errors.get(current.simulation) or current.after_round(seconds, len(going), engine)
                if problem is not None:
                    failed[current.simulation] = problem
                    current.display.failed(str(problem))
    return failed


def _begin(simulation: Simulation, folder: RunFolder, progress: Progress, choice: Choice) -> _Run:
    """Go back to the last checkpoint of a run and begin to show it."""
    simulation.attach(folder.path)
    position = simulation.coordinator.position
    folder.write_json("federation.json", Blueprint.of(simulation.federation).table())
    folder.rewind(position, filter(simulation.scored, range(1, position + 1)))
    folder.write_json("engine.json", choice.table())
    display = progress.begin(Outlook(folder.path.name, simulation.rounds, position))
    declared = folder.read_json("messages.json") or {}  # what crossed the wire before an interruption counts
    run = _Run(simulation, folder, display, str(choice), declared, position)
    if not run.open:  # it was stopped between its last checkpoint and its summary
        _finish(simulation, folder)
        display.end()
    return run


def _hindmost(runs: Iterable[_Run]) -> list[_Run]:
    """The runs that have done the fewest rounds, so that those that were resumed catch up."""
    held = list(runs)
    least = min((current.simulation.coordinator.position for current in held), default=0)
    return [current for current in held if current.simulation.coordinator.position == least]


def _finish(simulation: Simulation, folder: RunFolder) -> None:
    state, read = simulation.coordinator.state, simulation.evaluation.read
    # In order of their names, which a checkpoint does not keep as they were.
    sent, private = (
        dict(sorted(ts.items())) for ts in (state.shared | state.down.of_parts(read), simulation.site.initial)
    )
    store = simulation.site.store
    likes = sent | {f"client.{client}.{name}": like for client in store.ids() for name, like in private.items()}
    kept = (state.tensors[name] for _, state in store.items() for name in private)  # one client in memory at a time
    last = simulation.coordinator.schedule[-1].stage.exchanges[-1]
    individual = {
        f"client.{client}.{name}": tensor
        for client in simulation.coordinator.names
        for name, tensor in last.send(state, client).items()
    }
    folder.write_weights(likes | individual, chain(sent.values(), kept, individual.values()))
    about = {"experiment": digest(folder.experiment_file), "notes": simulation.notes}
    folder.write_json("summary.json", {**summary(folder.records()), **about})
