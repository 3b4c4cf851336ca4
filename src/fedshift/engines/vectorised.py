"""Clients of one shape side by side: one forward under vmap, one backward, one optimiser for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from fedshift.core.setup import Setup
from fedshift.engines.banks import Stacked
from fedshift.engines.engine import Job, Outcome
from fedshift.engines.kernels import Kernels
from fedshift.engines.lane import Lane
from fedshift.engines.local import work
from fedshift.engines.merging import kind, merged_phases
from fedshift.engines.sequential import Sequential, load, outcome_of
from fedshift.errors import FedshiftError
from fedshift.streams import global_states

NO_BATCHING_RULE = "There is a performance drop because we have not yet implemented the batching rule"


Work = tuple[Job, Lane]


class Vectorised(Sequential):
    """Stacks clients of the same shape, of one run or of several; what does not stack runs sequentially."""

    def __init__(self, kernels: Kernels | None = None, tell: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(kernels)
        self._tell = tell
        self._kinds: dict[Setup, object] = {}
        self._apart: set[tuple[object, str]] = set()  # kinds of runs that cannot be merged in an exchange
        self._unstackable: set[object] = set()

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let all clients work; those that stack, together."""
        answers: dict[Job, Outcome | Exception] = {}
        for together in _groups([(job, Lane(job)) for job in jobs], self._merge_key):
            answers |= self._group(together)
        yield from (answers[job] for job in jobs)

    def _merge_key(self, job: Job) -> object:
        """What jobs of several runs must have in common."""
        if job.setup not in self._kinds:
            self._kinds[job.setup] = kind(job.setup)
        together = self._kinds[job.setup]
        return job.setup if (together, job.exchange.name) in self._apart else together

    def _group(self, together: Sequence[Work]) -> dict[Job, Outcome | Exception]:
        """Let jobs of one shape work side by side, or one by one if that is not possible."""
        jobs = [job for job, _ in together]
        setups = {job.setup for job in jobs}
        mistake: Exception | None = None
        if len(jobs) > 1 and _name(jobs[0]) not in self._unstackable:
            try:
                return self._stacked(together)
            except Exception as error:  # told below, or the answer of whoever makes it without a stack
                mistake = error.with_traceback(None)  # which would keep the whole stack in memory
            if len(setups) > 1 and not isinstance(mistake, FedshiftError):
                return self._stacked_apart(jobs, mistake)
        answers = dict(zip(jobs, super().train(jobs), strict=True))
        # What goes wrong without a stack, too, says more precisely there which client it is.
        if mistake is not None and not _made_again(mistake, answers):
            self._give_up(_name(jobs[0]), mistake)
        return answers

    def _stacked_apart(self, jobs: Sequence[Job], mistake: Exception) -> dict[Job, Outcome | Exception]:
        """Let each run's clients work side by side, now and from now on, and say so if that is what helps."""
        self._apart.add((self._kinds[jobs[0].setup], jobs[0].exchange.name))
        anew = _groups([(job, Lane(job)) for job in jobs], self._merge_key)
        answers = dict(chain.from_iterable(self._group(work).items() for work in anew))
        method, model, exchange = name = _name(jobs[0])
        if name not in self._unstackable and not _made_again(mistake, answers):
            self._tell(
                f"Runs of {method} with the model {model} cannot share a stack in the exchange '{exchange}', so each "
                f"has its own: {_reason(mistake)}"
            )
        return answers

    def _stacked(self, together: Sequence[Work]) -> dict[Job, Outcome | Exception]:
        """Let clients of one shape work side by side."""
        # Those with the most steps first, as the loop wants them; runs that share an optimiser, in a row.
        ordered = sorted(together, key=lambda one: (-len(one[0].client.train), one[0].setup.train.lr))
        jobs, lanes = [job for job, _ in ordered], [lane for _, lane in ordered]
        phases, varying = merged_phases(jobs)
        first = jobs[0]
        bank = Stacked(self.resident(first.setup), len(jobs), varying)
        for number, job in enumerate(jobs):
            load(bank, number, job)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", NO_BATCHING_RULE)
            with first.setup.lend("work of a stack"):
                before = global_states(first.setup.device)
                work(bank, lanes, phases)
                if global_states(first.setup.device) != before:
                    raise RuntimeError("a loss draws from a global generator, which is random for all clients at once")
        answers: dict[Job, Outcome | Exception] = {}
        for number, (job, lane) in enumerate(ordered):
            try:
                answers[job] = outcome_of(job, lane, bank, number)
            except Exception as error:  # it is this job's answer
                answers[job] = error
        return answers

    def _give_up(self, name: tuple[str, str, str], error: Exception) -> None:
        """Say once that clients cannot be stacked in an exchange, and do not try it again."""
        self._unstackable.add(name)
        method, model, exchange = name
        self._tell(
            f"The clients of {method} with the model {model} cannot be stacked in the exchange '{exchange}', so they "
            f"work one after the other: {_reason(error)}"
        )


def _made_again(mistake: Exception, answers: Mapping[Job, Outcome | Exception]) -> bool:
    """Whether what went wrong in a stack goes wrong without it, too."""
    return any(isinstance(answer, type(mistake)) for answer in answers.values())


def _reason(error: Exception) -> str:
    """The first sentence of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].partition(". Please")[0]


def _name(job: Job) -> tuple[str, str, str]:
    return job.setup.method.label, type(job.setup.model.model).__name__, job.exchange.name


def _groups(work: Iterable[Work], merge_key: Callable[[Job], object]) -> list[list[Work]]:
    """Jobs that can be stacked: of runs of one kind, an exchange and a round, with batches of one shape."""
    groups: dict[object, list[Work]] = {}
    for job, lane in work:
        when = (job.exchange.name, job.round.key, job.round.stage.rounds)
        groups.setdefault((merge_key(job), *when, tuple(job.down), lane.shape()), []).append((job, lane))
    return list(groups.values())
