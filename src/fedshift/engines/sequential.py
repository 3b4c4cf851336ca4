"""The reference engine: one resident model, one client after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from fedshift.core.contract import LocalWork, ServerState
from fedshift.core.messages import Up
from fedshift.core.setup import Setup
from fedshift.core.state import ClientState
from fedshift.core.tensors import SAMPLES, Tensors, full_name
from fedshift.engines.banks import Bank, Resident
from fedshift.engines.engine import Job, Outcome, Question, Score, ServerJob
from fedshift.engines.kernels import Kernels
from fedshift.engines.lane import Lane
from fedshift.engines.local import work
from fedshift.engines.scoring import alike, score


class Sequential:
    """Loads each client's tensors into resident modules and trains it there."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or Kernels()
        self._residents: dict[Setup, Resident] = {}

    def resident(self, setup: Setup) -> Resident:
        """The modules of a run, made when they are first asked for."""
        if setup not in self._residents:
            self._residents[setup] = Resident(setup, self.kernels)
        return self._residents[setup]

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let every client work, one after the other."""
        for job in jobs:
            try:
                yield self._work(job)
            except Exception as error:  # it is this job's answer
                yield error

    def _work(self, job: Job) -> Outcome:
        bank, lane = self.resident(job.setup).client, Lane(job)
        load(bank, 0, job)
        with job.lend("work"):
            work(bank, [lane])
        return outcome_of(job, lane, bank, 0)

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        """Let the server work; returns its state, and by name each term's mean and the scalars that it measured."""
        state = job.state
        if not job.exchange.server:
            return state, {}
        bank = self.resident(job.setup).server
        bank.load(0, state.tensors)
        lane = Lane(job)
        with job.setup.lend("server phases", *job.round.key, job.exchange.name):
            work(bank, [lane])
        if lane.error:
            raise lane.error
        state = state.updated(bank.copy(0, [*state.down, *state.server]))
        scalars = {name: float(value) for name, value in lane.measured.items() if not value.ndim}
        return replace(state, optimisers=lane.optimisers, measured=Tensors(lane.measured)), lane.means | scalars

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score model after model; small environments of one model are predicted for together."""
        for together in alike(questions):
            bank = self.resident(together[0].setup).client
            bank.load(0, together[0].model)
            yield from score(bank.net, together)

    def close(self) -> None:
        """Let go of the modules."""
        self._residents.clear()


def load(bank: Bank, number: int, job: Job) -> None:
    """Put what a client begins with into a lane of a bank."""
    private = Tensors(job.state.tensors)
    for tensors in (job.down, private):
        bank.load(number, tensors)
    if job.exchange.begin is not None:
        with job.lend("begin"):
            begun = job.exchange.begin(private, job.down)
        bank.load(number, begun)


def outcome_of(job: Job, lane: Lane, bank: Bank, number: int) -> Outcome:
    """What a client sends and keeps after its phases, from its lane in a bank.

    Raises:
        DivergedError: one of its losses was not finite.
    """
    if lane.error:
        raise lane.error
    setup, exchange = job.setup, job.exchange
    private = Tensors(bank.copy(number, [name for name, scope in setup.scopes.items() if scope == "client"]))
    # What was not sent is another client's, left over in the bank.
    shared = [name for name, scope in setup.scopes.items() if scope == "shared" and name in job.down]
    work = LocalWork(
        Tensors(bank.copy(number, shared)),
        private,
        job.down,
        Tensors(lane.measured),
        Tensors(lane.snapshot),
        job.client.train,
        lane.counts,
        lane.steps,
        setup.train.lr_in(job.round.number, job.round.stage.rounds),
        lane.seen,
    )
    with job.lend("keep and upload") if exchange.keep or exchange.upload else nullcontext():
        given = exchange.keep(work) if exchange.keep else {}
        kept = {full_name(name): tensor.detach().clone() for name, tensor in given.items()}
        reply = reply_of(job, work)
    drawn = {**job.state.drawn, job.round.stage.name: lane.drawn}
    trained = job.state.trained or lane.steps > 0 or bool(kept)
    state = ClientState(dict(private | kept), lane.optimisers, drawn, trained)
    return Outcome(job.client.id, reply, state, lane.means, lane.steps)


def reply_of(job: Job, work: LocalWork) -> Up:
    """The parts that the exchange returns, what it uploads besides, and the number of samples where it is counted."""
    uploaded = job.setup.named(job.exchange, job.exchange.upload(work) if job.exchange.upload else {})
    reply = work.trained.only(job.setup.returned(job.exchange)) | uploaded
    count = {SAMPLES: torch.tensor(work.samples)} if job.exchange.counted else {}
    return Up(reply | count)
