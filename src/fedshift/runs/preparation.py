"""What a method does before its training, alone: the stages at its beginning after which no model is scored."""

from __future__ import annotations

from itertools import takewhile

from fedshift.core.contract import Stage
from fedshift.engines.choice import open_engine
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.methods import INDEXING
from fedshift.runs.lockstep import advance
from fedshift.runs.plan import planned_stages
from fedshift.runs.progress import Outlook, Progress
from fedshift.runs.simulation import Simulation


def prepare(experiment: Experiment, label: str, progress: Progress) -> Simulation:
    """Carry out the stages before training, in memory; ``label`` is what the display calls them.

    Raises:
        FedshiftError: the experiment cannot be run.
    """
    _check(experiment)
    simulation = Simulation(experiment, progress.embedded)
    coordinator, stages = simulation.coordinator, planned_stages(simulation)[: len(_stages(simulation))]
    rounds = sum(stage.rounds for stage in stages)
    display = progress.begin(Outlook(f"{label}-seed{experiment.seed}", rounds, 0, stages))
    choice = simulation.choice(progress.note)
    with open_engine(choice, progress.note) as engine:
        while coordinator.position < rounds:
            for error in advance([simulation], engine, {simulation: display}).values():
                raise error
            display.round(coordinator.position, coordinator.bytes_down, coordinator.bytes_up)
    display.end()
    return simulation


def describe(experiment: Experiment) -> str:
    """What :func:`prepare` would do, without doing it.

    Raises:
        FedshiftError: the experiment cannot be run.
    """
    _check(experiment)
    simulation = Simulation(experiment)
    clients = simulation.federated.clients
    lines = [
        f"Seed {experiment.seed}: {len(clients)} clients of {len({client.domain for client in clients})} domains, "
        f"{sum(len(client.train) for client in clients)} samples"
    ]
    for stage in _stages(simulation):
        rounds = "1 round" if stage.rounds == 1 else f"{stage.rounds} rounds"
        lines.append(f"  stage '{stage.name}': {rounds} with {simulation.coordinator.cohort(stage)} clients")
    return "\n".join([*lines, "Nothing was written."])


def _check(experiment: Experiment) -> None:
    if experiment.method.prepares is None:
        raise FedshiftError(
            f"The method '{experiment.method_name}' makes no index of clients: --set method.name={INDEXING}"
        )


def _stages(simulation: Simulation) -> list[Stage]:
    return list(takewhile(lambda stage: not stage.scored, simulation.setup.stages))
