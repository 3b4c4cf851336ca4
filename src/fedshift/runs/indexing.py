"""The clients' index alone: the stages that make it, without any training of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedshift.core.contract import Stage
from fedshift.engines.calibration import choose
from fedshift.engines.choice import open_engine
from fedshift.errors import FedshiftError
from fedshift.methods.client2vec.client2vec import Client2Vec
from fedshift.methods.client2vec.index import FEATURE, LABEL
from fedshift.runs.progress import Outlook, Progress
from fedshift.runs.runner import declaration
from fedshift.settings.experiment import Experiment
from fedshift.simulation.rounds import advance
from fedshift.simulation.simulation import Simulation


@dataclass(frozen=True)
class Index:
    """A vector for every client of a federation, in the order of their ids.

    Attributes:
        clients: their names.
        domains: the domain of each.
        samples: how many training samples each has.
        feature: feature vectors (K, d).
        label: label vectors (K, d), or None for an index of one part.
        messages: what crossed the wire to make it: names, types, shapes and bytes.
    """

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    samples: tuple[int, ...]
    feature: Tensor
    label: Tensor | None
    messages: dict[str, Any]


def make_index(experiment: Experiment, progress: Progress) -> Index:
    """Carry out the stages before training and return the vectors they leave.

    Raises:
        FedshiftError: the experiment's method makes no index, or it cannot be run.
    """
    method = _method(experiment)
    simulation = Simulation(experiment, progress.embedded)
    stages = method.index.stages(method.base)
    display = progress.begin(Outlook(f"index-seed{experiment.seed}", _rounds(stages), 0))
    choice = choose(simulation.example(), experiment.run, progress.note)
    with open_engine(choice, progress.note) as engine:
        while simulation.position < _rounds(stages):
            for error in advance([simulation], engine, {simulation: display.steps}).values():
                raise error
            display.round(simulation.position, simulation.bytes_down, simulation.bytes_up)
    display.end()
    held = simulation.server.server | simulation.server.down
    clients = simulation.federation.clients
    return Index(
        tuple(client.name for client in clients),
        tuple(client.domain for client in clients),
        tuple(len(client.train) for client in clients),
        held[FEATURE].cpu(),
        held[LABEL].cpu() if LABEL in held else None,
        declaration(simulation),
    )


def describe(experiment: Experiment) -> str:
    """What making an index would do, without doing it.

    Raises:
        FedshiftError: as :func:`make_index`.
    """
    method = _method(experiment)
    simulation = Simulation(experiment)
    clients = simulation.federation.clients
    lines = [
        f"Seed {experiment.seed}: {len(clients)} clients of {len({client.domain for client in clients})} domains, "
        f"{sum(len(client.train) for client in clients)} samples"
    ]
    for stage in method.index.stages(method.base):
        rounds = "1 round" if stage.rounds == 1 else f"{stage.rounds} rounds"
        lines.append(f"  stage '{stage.name}': {rounds} with {simulation.cohort(stage)} clients")
    return "\n".join([*lines, "Nothing was written."])


def _method(experiment: Experiment) -> Client2Vec:
    if not isinstance(experiment.method, Client2Vec):
        raise FedshiftError(
            f"The method '{experiment.method_name}' makes no index of clients: --set method.name=client2vec"
        )
    return experiment.method


def _rounds(stages: tuple[Stage, ...]) -> int:
    return sum(stage.rounds for stage in stages)
