"""How many steps a run takes, counted before it begins from its phases and the sizes of its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fedshift.core.contract import Phase, Phases, Stage
from fedshift.core.setup import Setup
from fedshift.engines.lane import BatchOrder, steps_of
from fedshift.runs.simulation import Simulation


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a run.

    Attributes:
        name: the stage's name.
        rounds: how many rounds it has.
        steps: about how many steps a round has, all clients of a cohort and the server together. Steps of a server on
            samples that are made of the replies are not known beforehand and not in it.
    """

    name: str
    rounds: int
    steps: float


def planned_stages(simulation: Simulation) -> tuple[PlannedStage, ...]:
    """The stages of a run, each with the mean number of steps of a round over all cohorts it may have."""
    sizes = Counter(len(client.train) for client in simulation.federated.clients)
    return tuple(
        PlannedStage(stage.name, simulation.coordinator.rounds_of(stage), _steps_of_round(simulation, stage, sizes))
        for stage in simulation.setup.stages
    )


def _steps_of_round(simulation: Simulation, stage: Stage, sizes: Mapping[int, int]) -> float:
    setup, part = simulation.setup, simulation.coordinator.cohort(stage) / sum(sizes.values())
    steps = 0.0
    for exchange in stage.exchanges:
        steps += part * sum(count * _client_steps(setup, exchange.phases, size) for size, count in sizes.items())
        steps += _server_steps(setup, exchange.server)
    return steps


def _client_steps(setup: Setup, phases: Phases, size: int) -> int:
    return sum(_steps(setup, phase, size) for phase in phases if isinstance(phase, Phase))


def _server_steps(setup: Setup, phases: Phases) -> int:
    known = [
        phase for phase in phases if isinstance(phase, Phase) and (phase.samples is None or phase.steps is not None)
    ]
    return sum(steps_of(phase, setup.train, 1) for phase in known)


def _steps(setup: Setup, phase: Phase, size: int) -> int:
    order = BatchOrder(setup.streams, 0, size, phase.batch or setup.train.batch)
    return steps_of(phase, setup.train, order.per_epoch)
