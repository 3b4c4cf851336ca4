"""A run's cost, counted from the declarations of its exchanges, and timed by a few steps; nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch

from fedshift import memory
from fedshift.clients.samples import Environment
from fedshift.core.contract import Exchange, Phase, Stage
from fedshift.core.messages import Up, wire_bytes
from fedshift.core.setup import Round
from fedshift.core.tensors import Replies
from fedshift.engines.choice import requested_engine
from fedshift.engines.engine import Job, ServerJob
from fedshift.engines.lane import shorten, steps_of, steps_of_job
from fedshift.engines.sequential import Sequential
from fedshift.engines.timings import seconds_a_step
from fedshift.errors import DivergedError
from fedshift.experiments import Experiment
from fedshift.runs.events import PlannedStage
from fedshift.runs.simulation import Simulation
from fedshift.written import clock

FEW, SAMPLES = 40, 64  # environments by which an evaluation is timed, and about how many of their samples


@dataclass(frozen=True)
class StageCost:
    """The cost of a stage of a run."""

    name: str
    rounds: int
    steps: int  # local steps of all clients, and of the server, in all rounds
    bytes_down: int  # bytes sent to clients in a round
    bytes_up: int  # bytes sent by clients in a round
    scored: int  # how often models are evaluated
    seconds: float | None = None  # of its steps in one process, without evaluation; None if no step was timed


@dataclass(frozen=True, kw_only=True)
class Estimate(StageCost):
    """The cost of a run: rounds, steps and seconds of all stages, and bytes of a round of the main stage."""

    clients: tuple[int, int]  # how many clients there are, and how many take part in a round of the main stage
    stages: tuple[StageCost, ...]
    # bytes: the peak so far (:func:`fedshift.memory.peak`), with the data and the model, and a round's messages; a
    # batch in training comes on top
    memory: int
    notes: list[str]  # what a reader of the results must know
    scoring: float | None = None  # seconds of an evaluation in one process; None if it could not be timed


def estimate(experiment: Experiment) -> Estimate:
    """Build the run, and count the bytes and steps of a round of each stage.

    Raises a FedshiftError if the experiment cannot run.
    """
    simulation, options = Simulation(experiment), experiment.run
    requested_engine(simulation.setup, options)  # or it gives the reason it cannot be had
    main, peak = simulation.main_stage, memory.peak(simulation.setup.device) or 0
    step = _step(simulation)
    costs = {stage: _cost(simulation, stage, step if stage is main else None) for stage in simulation.setup.stages}
    cost, stages = costs[main], tuple(costs.values())
    scoring, clients = _scoring(simulation, main), len(simulation.federated.clients)
    notes, most = [*simulation.notes], experiment.evaluate.clients
    if scoring is not None and clients > most:
        every = clock(scoring * clients / most)
        notes.append(f"An evaluation takes about {clock(scoring)}; of all {clients:,} clients it would take {every}.")
    return Estimate(
        name=experiment.run_name,
        rounds=sum(stage.rounds for stage in stages),
        steps=sum(stage.steps for stage in stages),
        scored=sum(stage.scored for stage in stages),
        seconds=sum(stage.seconds for stage in stages if stage.seconds is not None) or None,
        clients=(clients, simulation.coordinator.cohort(main)),
        stages=stages,
        bytes_down=cost.bytes_down,
        bytes_up=cost.bytes_up,
        memory=peak + cost.bytes_down + cost.bytes_up,
        notes=notes,
        scoring=scoring,
    )


def _step(simulation: Simulation) -> float | None:
    plain = requested_engine(simulation.setup, simulation.experiment.run.replace(engine="sequential"))
    try:
        return seconds_a_step(simulation.example(), plain)
    except DivergedError:
        return None


def _scoring(simulation: Simulation, stage: Stage) -> float | None:
    """Seconds of an evaluation, extrapolated from a few samples of a few environments.

    None if the loss is not finite.
    """
    coordinator, federated = simulation.coordinator, simulation.federated
    environments, sizes = federated.environments, federated.scored_sizes
    places = range(0, len(environments), -(-len(environments) // FEW))
    most = max(SAMPLES // len(places), 4)
    few = [_cut(environments[place], most) for place in places]
    # Small environments cost by their number, large ones by their samples.
    part = min(len(few) / len(environments), sum(len(each.samples) for each in few) / sum(sizes))
    engine = Sequential()
    score = partial(
        simulation.evaluation.rows,
        coordinator.state,
        lambda client: coordinator.down(stage.training, client),
        Round(stage, 1),
        engine,
    )
    try:
        score(few[:1])  # modules are created, and what environments share is computed
        started = time.perf_counter()
        score(few)
        return (time.perf_counter() - started) / part
    except DivergedError:
        return None
    finally:
        engine.close()


def _cut(environment: Environment, most: int) -> Environment:
    return replace(environment, samples=environment.samples.subset(torch.arange(min(most, len(environment.samples)))))


def _cost(simulation: Simulation, stage: Stage, step: float | None) -> StageCost:
    """Count the first round of a stage, and take it for each of the stage's rounds."""
    round, down, up, steps = Round(stage, 1), 0, 0, 0
    for exchange, orders in simulation.coordinator.first_orders(round):
        jobs = [simulation.site.job(order) for order in orders]
        replies = _replies(simulation, exchange, jobs)
        server = ServerJob(simulation.setup, exchange, round, simulation.coordinator.state, replies)
        steps += sum(map(steps_of_job, jobs)) + steps_of_job(server)
        down += sum(order.down.nbytes for order in orders)
        sizes = [Up(reply).nbytes for reply in replies.ups]
        up += sum(sizes) if sizes else len(jobs) * _declared_bytes(simulation, exchange)
    steps *= stage.rounds
    return StageCost(
        name=stage.name,
        rounds=stage.rounds,
        steps=steps,
        bytes_down=down,
        bytes_up=up,
        scored=-(-stage.rounds // simulation.setup.evaluate.every_in(stage.rounds)) if stage.scored else 0,
        seconds=None if steps and step is None else steps * (step or 0.0),
    )


def _replies(simulation: Simulation, exchange: Exchange, jobs: Sequence[Job]) -> Replies:
    """What clients would send without a step, if they declare no length or the server trains on it; empty if not."""
    declared = simulation.setup.declaration(exchange).reply.values()
    of_any_length = any(None in shape for _, shape in declared)
    trained_on = any(isinstance(phase, Phase) and phase.samples is not None for phase in exchange.server_phases)
    if not (of_any_length or trained_on):
        return Replies()
    replies = []
    for outcome in Sequential().train(shorten(jobs, 0)):
        if isinstance(outcome, Exception):
            raise outcome
        replies.append((outcome.client, outcome.up))
    return Replies(replies)


def _declared_bytes(simulation: Simulation, exchange: Exchange) -> int:
    declared = simulation.setup.declaration(exchange).reply.items()
    return wire_bytes(tuple((name, dtype, cast(tuple[int, ...], shape)) for name, (dtype, shape) in sorted(declared)))


def planned_stages(simulation: Simulation) -> list[PlannedStage]:
    """The stages of a run, each with a round's mean number of steps over all possible cohorts."""
    sizes = Counter(simulation.federated.trained_sizes)
    return [
        PlannedStage(
            name=stage.name,
            rounds=simulation.coordinator.rounds_of(stage),
            steps=_steps_of_round(simulation, stage, sizes),
        )
        for stage in simulation.setup.stages
    ]


def _steps_of_round(simulation: Simulation, stage: Stage, sizes: Mapping[int, int]) -> float:
    setup, part = simulation.setup, simulation.coordinator.cohort(stage) / sum(sizes.values())
    steps = 0.0
    for exchange in stage.exchanges:
        for phase in exchange.phases:
            if isinstance(phase, Phase):
                for size, count in sizes.items():
                    steps += part * count * steps_of(phase, setup.train, size)
        for phase in exchange.server_phases:
            if isinstance(phase, Phase) and (phase.samples is None or type(phase.steps) is int):
                steps += steps_of(phase, setup.train, None)
    return steps
