"""The floating-point operations of a run's rounds: a step of each phase is repeated, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch.utils.flop_counter import FlopCounterMode

from fedshift.core.contract import Exchange, Measure, Phase, Phases, Stage
from fedshift.core.setup import Round
from fedshift.core.tensors import Replies
from fedshift.engines.engine import Job, ServerJob
from fedshift.engines.lane import Lane, shorten, steps_by_phase
from fedshift.engines.sequential import Sequential
from fedshift.runs.simulation import Simulation


class Flops(NamedTuple):
    """Floating-point operations of all clients, and of the server."""

    clients: int
    server: int


class FlopCounter:
    """Counts the operations of a simulation's rounds, client after client, for any engine.

    Matrix products, convolutions and attention count, forward and backward, a multiplication with an addition as 2:
    see :class:`torch.utils.flop_counter.FlopCounterMode`. Activations, norms, optimisers, aggregation and other
    elementwise
    operations do not count, nor do evaluation and the embedding by a frozen network before training. Jobs whose batches
    have the same lengths are counted once; the trained weights are discarded.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._engine = simulation, Sequential()
        self._by_client: dict[tuple[object, ...], int] = {}
        self._by_server: dict[tuple[object, ...], int] = {}
        self._counted: dict[tuple[object, ...], tuple[int, list[int]]] = {}

    def of_round(self, round: Round) -> Flops:
        """The operations of a round, as if no client were unavailable in it."""
        alike = Round(round.stage, max(since for since in _changes(round.stage) if since <= round.number))
        clients = server = 0
        for exchange, cohort in self._simulation.coordinator.cohorts(round):
            chosen = list(dict.fromkeys(cohort))
            clients += sum(self._of_client(alike, exchange, client) for client in chosen)
            if exchange.server_phases:
                server += self._of_server(alike, exchange, chosen)
        return Flops(clients, server)

    def _of_client(self, round: Round, exchange: Exchange, client: int) -> int:
        key = *round.key, exchange.name, client
        if key not in self._by_client:
            (job,) = self._jobs(round, exchange, [client])
            self._by_client[key] = self._of_job(job, exchange.phases)
        return self._by_client[key]

    def _of_server(self, round: Round, exchange: Exchange, cohort: Sequence[int]) -> int:
        """The operations of the server's phases, for replies of the first cohort without a step."""
        key = *round.key, exchange.name
        if key not in self._by_server:
            replies = []
            for outcome in self._engine.train(shorten(self._jobs(round, exchange, cohort), 0)):
                if isinstance(outcome, Exception):
                    raise outcome
                replies.append((outcome.client, outcome.up))
            state = self._simulation.coordinator.state
            job = ServerJob(self._simulation.setup, exchange, round, state, Replies(replies))
            self._by_server[key] = self._of_job(job, exchange.server_phases)
        return self._by_server[key]

    def _jobs(self, round: Round, exchange: Exchange, cohort: Sequence[int]) -> list[Job]:
        orders = self._simulation.coordinator.orders(exchange, round, cohort)
        return [self._simulation.site.job(order) for order in orders]

    def _of_job(self, job: Job | ServerJob, phases: Phases) -> int:
        steps = steps_by_phase(job)
        one, two = ([min(count, most) for count in steps] for most in (1, 2))
        samples = len(job.client.train) if isinstance(job, Job) and any(isinstance(p, Measure) for p in phases) else 0
        key = *job.round.key, job.exchange.name, isinstance(job, Job), Lane(job).shape(), samples, *two
        if key not in self._counted:
            base = self._count(job, phases, one)
            more = [
                self._count(job, phases, [*one[:place], count, *one[place + 1 :]]) - base if count == 2 else 0
                for place, count in enumerate(two)
            ]
            self._counted[key] = base, more
        base, more = self._counted[key]
        return base + sum((count - 1) * flops for count, flops in zip(steps, more, strict=True) if flops)

    def _count(self, job: Job | ServerJob, phases: Phases, steps: Sequence[int]) -> int:
        cut = tuple(
            replace(phase, steps=count) if isinstance(phase, Phase) else phase
            for phase, count in zip(phases, steps, strict=True)
        )
        with FlopCounterMode(display=False) as counter:
            if isinstance(job, ServerJob):
                self._engine.serve(replace(job, exchange=replace(job.exchange, server_phases=cut)))
            else:
                for outcome in self._engine.train([replace(job, exchange=replace(job.exchange, phases=cut))]):
                    if isinstance(outcome, Exception):
                        raise outcome
        return int(counter.get_total_flops())


def _changes(stage: Stage) -> set[int]:
    """The rounds of a stage at which its losses change their terms."""
    return {1} | {
        term.first(stage.rounds)
        for exchange in stage.exchanges
        for phase in (*exchange.phases, *exchange.server_phases)
        if isinstance(phase, Phase)
        for objective in phase.objectives
        for term in objective.terms.values()
    }
