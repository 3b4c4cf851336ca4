"""The cost of a table, by arithmetic from its settings: neither its data nor its network need be here.

``data/papers/costs.toml`` has what settings do not contain, by scenario and scale: how many domains train, how many
samples a client has where its epochs count, and how long a step takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from fedshift.core.contract import Phase, Stage
from fedshift.engines.lane import steps_of
from fedshift.experiments import Experiment
from fedshift.study.scenarios import text_of
from fedshift.study.study_plan import StudyPlan
from fedshift.written import parse_toml

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
PAIRS = 128  # that a client sends, where the server trains on what clients send


class Facts(NamedTuple):
    """What an estimate needs about a scenario at a scale."""

    domains: int  # that train, each divided by the partition
    step: float  # seconds of a step of the model
    samples: int = 0  # of a client; 0 where no epoch is counted


@dataclass(frozen=True)
class Cost:
    """The cost of runs: their number, all clients' steps, and these steps' seconds in sequence on two CPU cores."""

    runs: int = 0
    steps: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        gpu = " (GPU)" if self.seconds > DAY else ""
        for unit, name in ((DAY, "days"), (HOUR, "h")):
            if self.seconds >= 2 * unit:
                return f"{self.seconds / unit:,.0f} {name}{gpu}"
        return f"{max(1, round(self.seconds / MINUTE))} min"


@cache
def known_facts() -> Mapping[str, Any]:
    """The facts by scenario and scale; under "index", the seconds of a step of a network that describes clients."""
    return parse_toml(text_of("papers/costs"), "the costs")


def cost_of(plan: StudyPlan) -> Cost | None:
    """The cost of all runs of a table; None where a scenario's facts are unknown, as at smoke."""
    facts, scale = known_facts(), plan.scale
    total = Cost()
    for cell in plan.whole.cells:
        its = facts.get(cell.key[0], {}).get(scale.name)
        if its is None:
            return None
        first_seed = cell.make(scale.seeds[:1])
        steps, seconds = _work(first_seed[0], Facts(**its))
        runs = len(first_seed) * len(scale.seeds)
        total = Cost(total.runs + runs, total.steps + runs * steps, total.seconds + runs * seconds)
    return total


def _work(experiment: Experiment, facts: Facts) -> tuple[int, float]:
    """The steps of a run and their seconds."""
    clients = facts.domains * int(experiment.table()["partition"].get("clients", 1))
    steps, seconds = 0, 0.0
    for stage in experiment.method.stages(experiment.train.rounds):
        its = stage.rounds * _steps_of_round(stage, experiment, facts, clients)
        steps += its
        seconds += its * (facts.step if stage.view is None else known_facts()["index"]["step"])
    return steps, seconds


def _steps_of_round(stage: Stage, experiment: Experiment, facts: Facts, clients: int) -> int:
    """The cohort's steps; where clients work on other samples than theirs, the server's steps on what they send."""
    train = experiment.train
    cohort = max(1, round((stage.participation or train.participation) * clients))
    steps = 0
    for exchange in stage.exchanges:
        own = (phase for phase in exchange.phases if isinstance(phase, Phase))
        steps += cohort * sum(steps_of(phase, train, facts.samples or None) for phase in own)
        if stage.view is not None:
            server = (phase for phase in exchange.server_phases if isinstance(phase, Phase))
            steps += sum(steps_of(phase, train, cohort * PAIRS) for phase in server)
    return steps
