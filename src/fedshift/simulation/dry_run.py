"""What a run would cost, measured on two of its rounds and one evaluation; nothing is written."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from fedshift.core.contract import Round, Stage
from fedshift.engines.choice import open_engine
from fedshift.settings.experiment import Experiment
from fedshift.simulation.listener import Listener
from fedshift.simulation.rounds import advance
from fedshift.simulation.simulation import Simulation


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
        training: seconds of all rounds.
        evaluation: seconds of all evaluations.
        notes: which engine carries it out, and what a reader of its results must know.
    """

    clients: tuple[int, int]
    rounds: int
    steps: int
    bytes_down: int
    bytes_up: int
    memory: int
    training: float
    evaluation: float
    notes: list[str]

    @property
    def seconds(self) -> float:
        """The whole run."""
        return self.training + self.evaluation


class _Steps(Listener):
    """Counts steps."""

    taken = 0

    def steps(self, count: int) -> None:
        self.taken += count


def estimate(experiment: Experiment) -> Estimate:
    """Build the run, carry out its first two rounds and one evaluation in memory, and extrapolate.

    Raises:
        FedshiftError: the experiment cannot be run.
    """
    simulation = Simulation(experiment)
    stage = max(simulation.setup.stages, key=lambda stage: (stage.scored, stage.rounds))
    rounds = stage.rounds
    told: list[str] = []
    choice = simulation.choice(told.append)
    coordinator = simulation.coordinator
    coordinator.skip_to(stage)
    heard = _Steps()
    with open_engine(choice, told.append) as engine:

        def go_on() -> float:
            started = time.perf_counter()
            for error in advance([simulation], engine, {simulation: heard}).values():
                raise error
            return time.perf_counter() - started

        training = go_on()
        down, up = coordinator.bytes_down, coordinator.bytes_up
        if rounds > 1:  # the first one warmed up
            heard.taken = 0
            training = go_on()
        started = time.perf_counter()
        simulation.record(Round(stage, min(2, rounds)), engine)
        evaluation = time.perf_counter() - started
    return Estimate(
        clients=(len(simulation.federation.clients), coordinator.cohort(stage)),
        rounds=rounds,
        steps=heard.taken * rounds,
        bytes_down=down,
        bytes_up=up,
        memory=_peak_memory(simulation.setup.device),
        training=rounds * training,
        evaluation=-(-rounds // experiment.evaluate.every) * evaluation,
        notes=[
            *simulation.notes,
            *(told or [f"Engine: {choice}"]),
            *(_left_out(other) for other in simulation.setup.stages if other is not stage),
        ],
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
