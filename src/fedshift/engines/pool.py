"""The clients of a cohort side by side: each goes to the next member of a pool that is free.

A member that dies is replaced and its client tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import torch

from fedshift.engines.engine import Job, Outcome, Question, Score
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.errors import FedshiftError

AHEAD = 1  # jobs that a member is handed before it has answered the one it works on
ATTEMPTS = 2  # how often a client's work is started before its member's death is reported

Attempt = tuple[int, int]  # a job's number and how often it has been started, this time included


class Member(Protocol):
    """Does one job after the other in another process.

    Attributes:
        queue: the jobs it was handed and has not answered, the one running first.
    """

    queue: deque[Attempt]

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""

    def ask(self, attempt: Attempt, job: Job) -> None:
        """Hand over a job. That the member is dead shows when it should answer."""

    def answer(self) -> Outcome | Exception:
        """The result of the first job in the queue.

        Raises:
            EOFError: the member died.
        """

    def stop(self) -> str:
        """End it; how it ended."""


M = TypeVar("M", bound=Member)


class WorkerPool(Sequential, Generic[M]):
    """Gives each client of a cohort to the next member that is free."""

    member: ClassVar[str]  # what one is, as the beginning of a sentence
    advice: ClassVar[str]  # what to do where clients cannot be trained because members die

    def __init__(self, kernels: Kernels, count: int, threads: int, tell: Callable[[str], None]) -> None:
        super().__init__(kernels)
        self._count, self._threads, self._tell = count, threads, tell
        self._deaths = 0
        self._known: dict[int, object] = {}  # by id(): what members have
        self._pool: list[M] = []

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let every client work; answers come in the order of the jobs, whichever is ready first."""
        self._know({id(thing): thing for job in jobs for thing in refers(job)})
        while len(self._pool) < self._count:
            self._pool.append(self._begin())
        answers: dict[int, Outcome | Exception] = {}
        longest_first = sorted(range(len(jobs)), key=lambda number: -len(jobs[number].client.train))
        waiting = deque((number, 1) for number in longest_first)
        try:
            for due in range(len(jobs)):
                while due not in answers:
                    self._hand_out(jobs, waiting)
                    for member in self._answered():
                        answers |= self._hear(member, jobs, waiting)
                yield answers.pop(due)
        finally:
            if any(member.queue for member in self._pool):  # nobody wants the other answers
                self._stop()

    def _know(self, refers: dict[int, object]) -> None:
        raise NotImplementedError

    def _begin(self) -> M:
        raise NotImplementedError

    def _answered(self) -> list[M]:
        raise NotImplementedError

    def _hand_out(self, jobs: Sequence[Job], waiting: deque[Attempt]) -> None:
        """Give work to every member that has none, and then one job more to each, so that none waits for it."""
        ready = [member for member in self._pool if member.ready]
        for ahead in range(AHEAD + 1):
            for member in ready:
                if not waiting:
                    return
                if len(member.queue) <= ahead:
                    attempt = waiting.popleft()
                    member.ask(attempt, jobs[attempt[0]])

    def _hear(self, member: M, jobs: Sequence[Job], waiting: deque[Attempt]) -> dict[int, Outcome | Exception]:
        """A member's answer, by the job's number; none if the job is to be tried again, by another in its place."""
        (number, attempt), *unbegun = member.queue
        try:
            return {number: member.answer()}
        except EOFError:
            ending = self._replace(member)
            job = jobs[number]
            self._tell(
                f"{self.member} died in round {job.round.number} ({ending}), while it trained client "
                f"'{job.client.name}', and was replaced; {self._deaths} so far. The results do not change."
            )
            waiting.extendleft(reversed(unbegun))
            if attempt < ATTEMPTS:
                waiting.appendleft((number, attempt + 1))
                return {}
            return {
                number: FedshiftError(
                    f"{self.member} died twice in round {job.round.number}, while it trained client "
                    f"'{job.client.name}' ({ending}): most often the machine is out of memory. The last checkpoint, "
                    f"if there is one, is kept. {self.advice}"
                )
            }

    def _replace(self, member: M) -> str:
        ending = member.stop()
        self._pool[self._pool.index(member)] = self._begin()
        self._deaths += 1
        return ending

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score models, in this process, while members have nothing to do."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield from super().score(questions)
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        """Stop all members."""
        self._stop()
        super().close()

    def _stop(self) -> None:
        for member in self._pool:
            member.stop()
        self._pool.clear()


def refers(job: Job) -> tuple[object, ...]:
    """What a job has in common with others, which members have once."""
    return job.setup, job.federated, job.exchange, job.round.stage
