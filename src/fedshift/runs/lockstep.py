"""Advances runs by a round each: the work of all their clients goes to one engine together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from fedshift.core.contract import Stage
from fedshift.core.frozen import Embedding, silent
from fedshift.core.messages import Order
from fedshift.engines.choice import open_engine
from fedshift.engines.engine import Engine, Job, Outcome, ServerJob
from fedshift.engines.lane import steps_of_job
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.methods import INDEXING
from fedshift.runs.dry_run import planned_stages
from fedshift.runs.events import Progress, RunEvents
from fedshift.runs.simulation import Simulation


class _Round:
    """A run within its round: its coordinator's current request, and its error."""

    def __init__(self, simulation: Simulation, events: RunEvents) -> None:
        coordinator = simulation.coordinator
        events.begin_round(coordinator.next_round)
        simulation.site.store.begin(coordinator.position + 1)
        self.simulation, self.events = simulation, events
        self.orders: list[Order] = []
        self.jobs: list[Job] = []
        self.server: ServerJob | None = None
        self.error: Exception | None = None
        self._asking = coordinator.round()
        self.proceed(None)

    def proceed(self, result: Any) -> None:
        """Pass the coordinator the results of its request (outcomes, or a server's), and take the next request."""
        orders, jobs = self.orders, self.jobs
        self.orders, self.jobs, self.server = [], [], None
        try:
            if jobs:
                result = self.simulation.received(orders, jobs, result)
            request = self._asking.throw(result) if isinstance(result, Exception) else self._asking.send(result)
            while not isinstance(request, ServerJob):
                self.orders, self.jobs = request, self.simulation.jobs(request)
                if self.jobs:
                    return
                request = self._asking.send(self.simulation.received(request, [], []))
            self.server = replace(request, notify=self.events.steps)
        except StopIteration:
            pass
        except Exception as error:  # a run's failure does not stop the others
            self.error = error

    def begin_task(self, jobs: Sequence[Job | ServerJob]) -> None:
        sent = self.simulation.coordinator.sent
        self.events.begin_task(jobs[0].exchange.name, len(self.jobs), sum(map(steps_of_job, jobs)), *sent)


class _Steps:
    """Counts a client's steps while it works, if its engine reports them, and the rest when it has answered."""

    def __init__(self, events: RunEvents) -> None:
        self._events, self._counted = events, 0

    def __call__(self, count: int) -> None:
        self._counted += count
        self._events.steps(count)

    def answered(self, answer: Outcome | Exception) -> None:
        if isinstance(answer, Outcome):
            self._events.steps(answer.steps - self._counted)
        self._events.answered()


def advance(
    simulations: Sequence[Simulation], engine: Engine, events: Mapping[Simulation, RunEvents] | None = None
) -> dict[Simulation, Exception]:
    """Advance every run by its next round, with one engine for all.

    Returns the error of each failed run; such a run has not advanced, and its state must be discarded.
    """
    rounds = [_Round(simulation, (events or {}).get(simulation, RunEvents())) for simulation in simulations]
    while under_way := [each for each in rounds if each.jobs or each.server]:
        _train([each for each in under_way if each.jobs], engine)
        for each in under_way:
            if each.server:
                _serve(each, each.server, engine)
    return {each.simulation: each.error for each in rounds if each.error is not None}


def _train(rounds: Sequence[_Round], engine: Engine) -> None:
    steps = [[_Steps(each.events) for _ in each.jobs] for each in rounds]
    jobs: list[Job] = []
    for each, of_run in zip(rounds, steps, strict=True):
        each.begin_task(each.jobs)
        jobs += [replace(job, notify=notify) for job, notify in zip(each.jobs, of_run, strict=True)]
    answers = engine.train(jobs)
    for each, of_run in zip(rounds, steps, strict=True):
        outcomes: list[Outcome | Exception] = []
        for notify in of_run:
            outcomes.append(next(answers))
            notify.answered(outcomes[-1])
        each.proceed(outcomes)


def _serve(round: _Round, job: ServerJob, engine: Engine) -> None:
    if job.exchange.server_phases:
        round.begin_task([job])
    try:
        result: Any = engine.serve(job)
    except Exception as error:  # it is this run's
        result = error
    round.proceed(result)


# Stages before training -----------------------------------------------------------------------------


def prepare(experiment: Experiment, label: str, progress: Progress) -> Simulation:
    """Run, in memory, the stages at a run's beginning after which no model is scored."""
    simulation, unscored = _preparation_stages(experiment, progress.embedded)
    coordinator, stages = simulation.coordinator, planned_stages(simulation)[: len(unscored)]
    events = RunEvents(f"{label}-seed{experiment.seed}", progress)
    events.begin(stages)
    with open_engine(simulation.choice(progress.note), progress.note) as engine:
        while coordinator.position < sum(stage.rounds for stage in stages):
            for error in advance([simulation], engine, {simulation: events}).values():
                raise error
            events.round(coordinator.position, *coordinator.sent)
    events.end()
    return simulation


def describe(experiment: Experiment) -> str:
    simulation, unscored = _preparation_stages(experiment)
    clients = simulation.federated.clients
    lines = [
        f"Seed {experiment.seed}: {len(clients)} clients of {len({client.domain for client in clients})} domains, "
        f"{sum(len(client.train) for client in clients)} samples"
    ]
    for stage in unscored:
        rounds = "1 round" if stage.rounds == 1 else f"{stage.rounds} rounds"
        lines.append(f"  stage '{stage.name}': {rounds} with {simulation.coordinator.cohort(stage)} clients")
    return "\n".join([*lines, "Nothing was written."])


def _preparation_stages(experiment: Experiment, notify: Embedding = silent) -> tuple[Simulation, list[Stage]]:
    """A run, and the stages at its beginning after which no model is scored."""
    if experiment.method.prepares is None:
        raise FedshiftError(
            f"The method '{experiment.method_name}' has no index of clients: --set method.name={INDEXING}"
        )
    simulation = Simulation(experiment, notify)
    return simulation, list(takewhile(lambda stage: not stage.scored, simulation.setup.stages))
