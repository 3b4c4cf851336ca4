"""What a run would cost, measured on two of its rounds and one evaluation; nothing is written."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from fedshift.core.contract import Stage
from fedshift.experiment import Experiment
from fedshift.runs.progress import Progress
from fedshift.runs.simulation import Simulation


@dataclass(frozen=True)
class Estimate:
    """The cost of one run.

    Attributes:
        clients: how many clients there are, and how many take part in a round.
        rounds: all rounds.
        steps: local steps of all clients in all rounds.
        bytes_down: bytes sent to clients in a round.
        bytes_up: bytes sent by clients in a round.
        memory: peak memory in bytes, of this process or of the accelerator.
        seconds: the whole run, evaluations included.
        notes: what a reader of its results must know.
    """

    clients: tuple[int, int]
    rounds: int
    steps: int
    bytes_down: int
    bytes_up: int
    memory: int
    seconds: float
    notes: list[str]


class _StepCount(Progress):
    def __init__(self) -> None:
        self.total = 0

    def steps(self, count: int) -> None:
        self.total += count


def estimate(experiment: Experiment) -> Estimate:
    """Build the run, carry out its first two rounds and one evaluation in memory, and extrapolate.

    Raises:
        FedshiftError: the experiment cannot be run.
    """
    simulation = Simulation(experiment)
    stage = max(simulation.stages, key=lambda stage: (stage.scored, stage.rounds))
    rounds = stage.rounds
    warm_up, *timed = (moment for moment in simulation.moments() if moment.stage is stage and moment.round <= 2)
    simulation.advance(warm_up, Progress())
    down, up = simulation.bytes_down, simulation.bytes_up
    count = _StepCount()
    moment = timed[0] if timed else warm_up
    started = time.perf_counter()
    simulation.advance(moment, count)
    trained = time.perf_counter()
    simulation.evaluate(moment)
    scored = time.perf_counter()
    evaluations = -(-rounds // experiment.evaluate.every)
    return Estimate(
        clients=(len(simulation.federation.clients), simulation.cohort(stage)),
        rounds=rounds,
        steps=count.total * rounds,
        bytes_down=down,
        bytes_up=up,
        memory=_peak_memory(simulation.device),
        seconds=rounds * (trained - started) + evaluations * (scored - trained),
        notes=[*simulation.notes, *(_left_out(other) for other in simulation.stages if other is not stage)],
    )


def _left_out(stage: Stage) -> str:
    rounds = "1 round" if stage.rounds == 1 else f"{stage.rounds} rounds"
    return f"the stage '{stage.name}' ({rounds}) is not in this estimate"


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
