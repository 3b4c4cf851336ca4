"""Stacked clients: one forward under vmap, one backward and one optimiser for all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

from fedshift.core.setup import Setup
from fedshift.engines.banks import Stacked
from fedshift.engines.engine import Job, Outcome
from fedshift.engines.kernels import Kernels
from fedshift.engines.lane import Lane
from fedshift.engines.local import run_phases
from fedshift.engines.merging import kind, merged_phases
from fedshift.engines.sequential import Sequential, initial_tensors, outcome_of, trained_names
from fedshift.streams import global_states

NO_BATCHING_RULE = "There is a performance drop because we have not yet implemented the batching rule"


class Vectorised(Sequential):
    """Stacks clients of the same shape, of one run or of several; clients that do not stack run sequentially."""

    def __init__(self, kernels: Kernels | None = None, notify: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(kernels)
        self._notify = notify
        self._kinds: dict[Setup, object] = {}
        self._unstackable: set[tuple[str, str, str, bool]] = set()

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        answers: dict[Job, Outcome | Exception] = {}
        for together in self._groups(jobs):
            answers |= self._group(together)
        yield from (answers[job] for job in jobs)

    def _groups(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Jobs that may be stacked: of runs of one kind, an exchange and a round, with batches of one shape."""
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            if job.setup not in self._kinds:
                self._kinds[job.setup] = kind(job.setup)
            key = self._kinds[job.setup], job.exchange.name, job.round.key, job.round.stage.rounds, tuple(job.down)
            groups.setdefault((*key, Lane(job).shape()), []).append(job)
        return list(groups.values())

    def _group(self, jobs: Sequence[Job]) -> dict[Job, Outcome | Exception]:
        """Train jobs stacked; if that is impossible, stacked per run, or one after the other."""
        setup, exchange = jobs[0].setup, jobs[0].exchange.name
        runs = list(dict.fromkeys(job.setup for job in jobs))
        name = setup.method.label, type(setup.model.model).__name__, exchange, len(runs) > 1
        mistake: Exception | None = None
        if len(jobs) > 1 and name not in self._unstackable:
            try:
                return self._stacked(jobs)
            except Exception as error:  # reported below, or by the engine that runs it without a stack
                mistake = error.with_traceback(None)  # the traceback would keep the whole stack in memory
        answers: dict[Job, Outcome | Exception] = {}
        if len(runs) > 1:
            for run in runs:
                answers |= self._group([job for job in jobs if job.setup is run])
        else:
            answers |= zip(jobs, super().train(jobs), strict=True)
        # Errors that also occur without a stack name the client there.
        if mistake is not None and not any(isinstance(answer, type(mistake)) for answer in answers.values()):
            self._unstackable.add(name)
            if (*name[:-1], False) not in self._unstackable or len(runs) == 1:
                self._notify(_reason(mistake, *name))
        return answers

    def _stacked(self, jobs: Sequence[Job]) -> dict[Job, Outcome | Exception]:
        """Train clients of one shape in a stack."""
        # Most steps first, as the loop requires; runs that share an optimiser, in a row.
        jobs = sorted(jobs, key=lambda job: (-len(job.client.train), job.setup.train.lr))
        lanes = [Lane(job) for job in jobs]
        phases, varying = merged_phases(jobs)
        first = jobs[0]
        bank = Stacked(self.resident(first.setup), len(jobs), varying)
        bank.load([initial_tensors(job) for job in jobs])
        with warnings.catch_warnings():
            warnings.filterwarnings("error", NO_BATCHING_RULE)
            with first.setup.global_draws("work of a stack"):
                before = global_states(first.setup.device)
                run_phases(bank, lanes, phases)
                if global_states(first.setup.device) != before:
                    raise RuntimeError("a loss draws from a global generator, which is random for all clients at once")
        answers: dict[Job, Outcome | Exception] = {}
        for job, lane, tensors in zip(jobs, lanes, bank.copy(trained_names(first)), strict=True):
            try:
                answers[job] = outcome_of(job, lane, tensors)
            except Exception as error:  # it is this job's outcome
                answers[job] = error
        return answers


def _reason(mistake: Exception, method: str, model: str, exchange: str, several: bool) -> str:
    """A message: which clients are not stacked, what happens instead, and the first sentence of the error."""
    stacked, instead = "clients", "train one after the other"
    if several:
        stacked, instead = "runs", "get a stack per run"
    reason = (str(mistake).strip() or type(mistake).__name__).splitlines()[0].partition(". Please")[0]
    return (
        f"The {stacked} of {method} with the model {model} cannot be stacked in the exchange '{exchange}', so they "
        f"{instead}: {reason}"
    )
