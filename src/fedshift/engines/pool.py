"""The clients of a cohort in parallel: each goes to the next free member of a pool.

A member that dies is replaced, and its client tried again.
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

AHEAD = 1  # jobs in a member's queue, including the current one
ATTEMPTS = 2  # attempts at a client's work before its member's death is an error

Attempt = tuple[int, int]  # a job's number, and the number of its attempts including this one


class Member(Protocol):
    """Runs one job after the other in another process; ``queue`` has its unfinished jobs, the current one first."""

    queue: deque[Attempt]

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""

    def submit(self, attempt: Attempt, job: Job) -> None:
        """Submit a job; a dead member fails on :meth:`answer` only."""

    def answer(self) -> Outcome | Exception:
        """The result of the first job in the queue; EOFError if the member died."""

    def stop(self) -> str:
        """End it; returns how it ended."""


M = TypeVar("M", bound=Member)


class WorkerPool(Sequential, Generic[M]):
    """Gives each client of a cohort to the next free member."""

    member: ClassVar[str]  # a member, at the start of a sentence
    advice: ClassVar[str]  # the remedy if members die

    def __init__(self, kernels: Kernels, count: int, threads: int, notify: Callable[[str], None]) -> None:
        super().__init__(kernels)
        self._count, self._threads, self._notify = count, threads, notify
        self._deaths = 0
        self._known: dict[int, object] = {}  # by id(): objects that members have
        self._pool: list[M] = []

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        self._know({id(thing): thing for job in jobs for thing in shared_objects(job)})
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
                        answers |= self._receive(member, jobs, waiting)
                yield answers.pop(due)
        finally:
            if any(member.queue for member in self._pool):  # the other results are not needed
                self._stop()

    def _know(self, shared_objects: dict[int, object]) -> None:
        raise NotImplementedError

    def _begin(self) -> M:
        raise NotImplementedError

    def _answered(self) -> list[M]:
        raise NotImplementedError

    def _hand_out(self, jobs: Sequence[Job], waiting: deque[Attempt]) -> None:
        """Give a job to every idle member, and then one more to each, so that none waits."""
        ready = [member for member in self._pool if member.ready]
        for ahead in range(AHEAD + 1):
            for member in ready:
                if not waiting:
                    return
                if len(member.queue) <= ahead:
                    attempt = waiting.popleft()
                    member.submit(attempt, jobs[attempt[0]])

    def _receive(self, member: M, jobs: Sequence[Job], waiting: deque[Attempt]) -> dict[int, Outcome | Exception]:
        """A member's result, by the job's number; empty if the member died and its job is tried again."""
        (number, attempt), *unbegun = member.queue
        try:
            return {number: member.answer()}
        except EOFError:
            ending = self._replace(member)
            job = jobs[number]
            self._notify(
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
        """Score models in this process, while members are idle."""
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


def shared_objects(job: Job) -> tuple[object, ...]:
    """The objects of a job that other jobs share, which members receive once."""
    return job.setup, job.federated, job.exchange, job.round.stage
