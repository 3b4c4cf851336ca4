"""Clients of one shape side by side: one forward under vmap, one backward, one optimiser for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fedshift.core.contract import ServerState
from fedshift.engines.banks import Stacked
from fedshift.engines.engine import Job, Outcome, Question, Score, ServerJob
from fedshift.engines.kernels import Kernels
from fedshift.engines.local import Lane, work
from fedshift.engines.sequential import Sequential, lane_of, outcome_of
from fedshift.errors import FedshiftError


class Vectorised:
    """Stacks the clients of a cohort that have the same shape; what does not stack runs sequentially."""

    def __init__(self, kernels: Kernels | None = None, tell: Callable[[str], None] = lambda text: None) -> None:
        self._one_by_one = Sequential(kernels)
        self._tell = tell
        self._unstackable: set[tuple[str, str]] = set()

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let all clients work; those that stack, together."""
        answers: dict[Job, Outcome | Exception] = {}
        for together in _alike([(job, lane_of(job)) for job in jobs]):
            alone = [job for job, _ in together]
            if len(together) > 1 and _kind(together[0][0]) not in self._unstackable:
                try:
                    answers |= self._stacked(together)
                    continue
                except FedshiftError:
                    pass  # the sequential engine says more precisely which client it is
                except RuntimeError as error:
                    self._give_up(together[0][0], error)
            answers |= dict(zip(alone, self._one_by_one.train(alone), strict=True))
        yield from (answers[job] for job in jobs)

    def _stacked(self, together: Sequence[tuple[Job, Lane]]) -> dict[Job, Outcome | Exception]:
        """Let clients of one shape work side by side."""
        # Those with the most steps first, as the loop wants them.
        ordered = sorted(together, key=lambda pair: -len(pair[0].client.train))
        jobs, lanes = [job for job, _ in ordered], [lane for _, lane in ordered]
        bank = Stacked(self._one_by_one.resident(jobs[0].setup), len(jobs))
        for number, job in enumerate(jobs):
            bank.load(number, job.down)
            bank.load(number, job.state.tensors)
        work(bank, lanes)
        answers: dict[Job, Outcome | Exception] = {}
        for number, (job, lane) in enumerate(ordered):
            try:
                answers[job] = outcome_of(job, lane, bank, number)
            except Exception as error:  # it is this job's answer
                answers[job] = error
        return answers

    def _give_up(self, job: Job, error: RuntimeError) -> None:
        """Say once that clients of this method and model cannot be stacked; if it is a mistake, it shows again."""
        self._unstackable.add(_kind(job))
        reason = str(error).strip().splitlines()[0]
        self._tell(f"Clients cannot be stacked and run one after the other ({' and '.join(_kind(job))}): {reason}")

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        """As the sequential engine."""
        return self._one_by_one.serve(job)

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """As the sequential engine."""
        return self._one_by_one.score(questions)

    def close(self) -> None:
        """Let go of the modules."""
        self._one_by_one.close()


def _kind(job: Job) -> tuple[str, str]:
    return type(job.setup.method).__name__, type(job.setup.spec.model).__name__


def _alike(jobs: Iterable[tuple[Job, Lane]]) -> list[list[tuple[Job, Lane]]]:
    """Jobs that can be stacked: of one run, exchange and round, with batches of one shape."""
    groups: dict[object, list[tuple[Job, Lane]]] = {}
    for job, lane in jobs:
        key = (job.setup, job.exchange.name, job.moment.key, tuple(job.down), lane.shape())
        groups.setdefault(key, []).append((job, lane))
    return list(groups.values())
