"""What a run reports before and within its rounds: planned steps are the steps that are taken, by every engine."""

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
from reference import Heard


def listened(simulation: Simulation, engine: Engine) -> Heard:
    """Run the first two rounds, and collect the run's reports."""
    heard = Heard()
    for _ in range(2):
        go_on(simulation, engine, heard)
    return heard


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
    """FedAvg whose loss requests a question, so that clients that were started together continue one by one."""

    def risk(self, net, batch, context):
        return super().risk(net, batch, context) * (float(batch.x.sum()) > -1e9)


def test_work_that_is_begun_again_counts_once(make: Make):
    simulation = Simulation(make().replace(method=Unstackable()))
    listened(simulation, Vectorised()).assert_as_planned()
