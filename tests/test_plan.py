"""What a run says beforehand and within its rounds: planned steps are the steps that are taken, by every engine."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Make, go_on
from fedshift.engines.engine import Engine
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.dry_run import planned_stages
from fedshift.runs.simulation import Simulation
from reference import EVERY_METHOD, Heard, reference


def listened(simulation: Simulation, engine: Engine) -> Heard:
    """Carry out the first two rounds, and hear what the run says."""
    heard = Heard()
    for _ in range(2):
        go_on(simulation, engine, heard)
    return heard


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_every_method_takes_the_steps_that_it_says(name: str):
    """Each task its steps, each client an answer, and a round of a stage what was planned (all clients take part).

    DRFA draws clients with replacement, so that a round has at most what was planned. By the sequential engine;
    test_engines.py has the others.
    """
    run = reference(name)
    planned = {stage.name: stage for stage in planned_stages(run.simulation)}
    heard = run.heard
    heard.assert_as_planned()
    assert heard.tasks[-1].bytes_down <= run.simulation.coordinator.bytes_down
    for round in heard.rounds:
        of_round = [task for task in heard.tasks if task.round.key == round.key]
        unknown = sum(task.steps for task in of_round if not task.clients and name == "client2vec")
        steps = sum(task.steps for task in of_round) - unknown
        assert steps == planned[round.stage.name].steps or (name == "drfa" and steps < planned[round.stage.name].steps)
        assert planned[round.stage.name].rounds == round.stage.rounds


@pytest.mark.parametrize("changes", [{}, {"data.fewer": 2, "train.participation": 0.5}], ids=str)
def test_a_mean_round_is_planned(make: Make, changes: dict[str, Any]):
    """Two epochs of clients of different sizes: the mean over the cohorts that there may be."""
    simulation = Simulation(make({"data.domains": 4, "train.rounds": 40, "train.unit": "epochs", **changes}))
    (stage,) = planned_stages(simulation)
    heard = listened(simulation, Sequential())
    epochs = [len(client.train) // 4 for client in simulation.federated.clients]
    cohort = heard.tasks[0].clients
    assert cohort == (2 if "train.participation" in changes else 3)
    assert stage.steps == pytest.approx(2 * sum(epochs) * cohort / 3)


class Unstackable(FedAvg):
    """FedAvg whose loss asks a question, so that clients that were begun together go on one by one."""

    def loss(self, net, batch, context):
        return super().loss(net, batch, context) if float(batch.x.sum()) > -1e9 else {}


def test_work_that_is_begun_again_counts_once(make: Make):
    simulation = Simulation(make().replace(method=Unstackable()))
    listened(simulation, Vectorised()).assert_as_planned()
