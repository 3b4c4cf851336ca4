"""What a run would cost: a round of each of its stages and one evaluation, long work in part; nothing is written."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from fedshift.core.contract import Round, Stage
from fedshift.engines.choice import open_engine
from fedshift.engines.forecast import InPart
from fedshift.settings.experiment import Experiment
from fedshift.simulation.rounds import advance
from fedshift.simulation.simulation import Simulation


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage of a run.

    Attributes:
        name: the stage's.
        rounds: how many it has.
        steps: local steps of all clients, and of the server, in all of them.
        seconds: what they take, without evaluation.
        bytes_down: bytes sent to clients in a round.
        bytes_up: bytes sent by clients in a round.
        scored: how often models are evaluated.
    """

    name: str
    rounds: int
    steps: int
    seconds: float
    bytes_down: int
    bytes_up: int
    scored: int


@dataclass(frozen=True)
class Estimate:
    """The cost of one run.

    Attributes:
        clients: how many clients there are, and how many take part in a round of the main stage.
        stages: each stage, in order.
        bytes_down: bytes sent to clients in a round of the main stage.
        bytes_up: bytes sent by clients in a round of the main stage.
        memory: peak memory in bytes, of the accelerator or of this process; worker processes have theirs besides.
        evaluation: seconds of all evaluations.
        notes: which engine carries it out, and what a reader of its results must know.
    """

    clients: tuple[int, int]
    stages: tuple[StageCost, ...]
    bytes_down: int
    bytes_up: int
    memory: int
    evaluation: float
    notes: list[str]

    @property
    def rounds(self) -> int:
        """All rounds."""
        return sum(stage.rounds for stage in self.stages)

    @property
    def steps(self) -> int:
        """Local steps of all clients, and of the server, in all rounds."""
        return sum(stage.steps for stage in self.stages)

    @property
    def training(self) -> float:
        """Seconds of all rounds."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def seconds(self) -> float:
        """The whole run."""
        return self.training + self.evaluation


def estimate(experiment: Experiment) -> Estimate:
    """Build the run, carry out a round of each stage and one evaluation in memory, and extrapolate.

    Raises:
        FedshiftError: the experiment cannot be run.
    """
    simulation = Simulation(experiment)
    told: list[str] = []
    choice = simulation.choice(told.append)
    coordinator = simulation.coordinator
    with open_engine(choice, told.append) as engine:
        costs = tuple(_cost(simulation, stage, InPart(engine)) for stage in simulation.setup.stages)
        main = max(simulation.setup.stages, key=lambda stage: (stage.scored, stage.rounds))
        started = time.perf_counter()
        simulation.record(Round(main, min(2, main.rounds)), engine)
        evaluation = time.perf_counter() - started
    cost = costs[simulation.setup.stages.index(main)]
    return Estimate(
        clients=(len(simulation.federation.clients), coordinator.cohort(main)),
        stages=costs,
        bytes_down=cost.bytes_down,
        bytes_up=cost.bytes_up,
        memory=_peak_memory(simulation.setup.device),
        evaluation=sum(each.scored for each in costs) * evaluation,
        notes=[*simulation.notes, *(told or [f"Engine: {choice}"]), *_note_on_workers(choice.workers)],
    )


def _cost(simulation: Simulation, stage: Stage, engine: InPart) -> StageCost:
    """Carry out a round of a stage, long work in part."""
    coordinator, evaluate = simulation.coordinator, simulation.experiment.evaluate
    coordinator.skip_to(stage)
    down, up, started = coordinator.bytes_down, coordinator.bytes_up, time.perf_counter()
    for error in advance([simulation], engine).values():
        raise error
    beside = time.perf_counter() - started - engine.spent
    return StageCost(
        name=stage.name,
        rounds=stage.rounds,
        steps=stage.rounds * engine.steps,
        seconds=stage.rounds * (beside + engine.seconds),
        bytes_down=coordinator.bytes_down - down,
        bytes_up=coordinator.bytes_up - up,
        scored=-(-stage.rounds // evaluate.every_in(stage.rounds)) if stage.scored else 0,
    )


def _note_on_workers(count: int) -> list[str]:
    if count == 1:
        return []
    return [f"Peak memory is that of one process; {count} worker processes have about as much for a client's work each"]


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
