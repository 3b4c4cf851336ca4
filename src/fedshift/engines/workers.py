"""Persistent worker processes of one thread each: the clients of a cohort side by side.

A worker is a fork of this process, so it knows every run's method, data and modules without a copy. What a client
receives, keeps and answers goes through memory that both processes map; a pipe says what lies where, and whoever has
nothing to do waits in a blocking read of it. A worker is handed the state of the client it works for and no other's.

Choices: fork and not spawn, since it starts in milliseconds, shares the data, and needs no method to be importable by
name (a notebook's are not); so it is for CPUs, on systems whose processes can fork safely. A worker that dies is
replaced and its client tried once more. Workers end with this process, after the client that they work for.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from fedshift.core.contract import Round
from fedshift.core.messages import Down, Up
from fedshift.core.state import ClientState
from fedshift.engines.engine import Job, Outcome, Question, Score
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.errors import FedshiftError

ALIGNMENT = 64  # bytes; vector loads like it
AHEAD = 1  # jobs that a worker is handed before it has answered the one it works on
ATTEMPTS = 2  # how often a client's work is begun before its worker's death is reported

Attempt = tuple[int, int]  # a job's number and how often it has been begun, this time included
Layout = list[tuple[str, torch.dtype, tuple[int, ...], int]]


def can_fork() -> bool:
    """Whether worker processes can be had here: on Linux, whose system libraries survive a fork."""
    return sys.platform == "linux"


def check_workers(device: torch.device) -> None:
    """Refuse worker processes where they cannot be had.

    Raises:
        FedshiftError: processes cannot be forked here, or the device is no CPU.
    """
    if not can_fork():
        raise FedshiftError("run.engine = 'workers' needs a system that forks processes, such as Linux; try auto.")
    if device.type != "cpu":
        raise FedshiftError(
            f"run.engine = 'workers' is for the CPU, not for '{device}': --set run.device=cpu, or try auto."
        )


class Workers(Sequential):
    """Gives each client of a cohort to the next worker that is free."""

    def __init__(self, kernels: Kernels, count: int, tell: Callable[[str], None] = lambda text: None) -> None:
        """Workers start when there is work.

        Args:
            kernels: how modules are prepared.
            count: how many processes.
            tell: hears of a worker that died and was replaced.
        """
        super().__init__(kernels)
        self._count, self._tell = count, tell
        self._deaths = 0
        self._known: dict[int, object] = {}  # by id(): what workers find in their own memory
        self._pool: list[_Worker] = []

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Let every client work; answers come in the order of the jobs, whoever is ready first."""
        if any(job.setup.device.type != "cpu" for job in jobs):
            yield from super().train(jobs)
            return
        self._know(jobs)
        answers: dict[int, Outcome | Exception] = {}
        longest_first = sorted(range(len(jobs)), key=lambda number: -len(jobs[number].client.train))
        waiting = deque((number, 1) for number in longest_first)
        try:
            for due in range(len(jobs)):
                while due not in answers:
                    while waiting and not any(worker.queue for worker in self._pool):
                        self._hand_out(jobs, waiting)  # again, if every worker had to be replaced
                    self._hand_out(jobs, waiting)
                    for worker in _ready(self._pool):
                        answers |= self._hear(worker, jobs, waiting)
                yield answers.pop(due)
        finally:
            if any(worker.queue for worker in self._pool):  # nobody wants the other answers
                self._stop()

    def _know(self, jobs: Sequence[Job]) -> None:
        """Have workers that know what these jobs refer to: they are forked anew when there is something new."""
        refers = {id(thing): thing for job in jobs for thing in _refers(job)}
        if not refers.keys() <= self._known.keys():
            self._stop()
            self._known |= refers
        while len(self._pool) < self._count:
            self._pool.append(self._fork())

    def _fork(self) -> _Worker:
        return _Worker(self._known, self.kernels, [worker.connection for worker in self._pool])

    def _hand_out(self, jobs: Sequence[Job], waiting: deque[Attempt]) -> None:
        """Give work to every worker that has none, and then one job more to each, so that none waits for it."""
        for ahead in range(AHEAD + 1):
            for worker in self._pool:
                if not waiting:
                    return
                if len(worker.queue) <= ahead:
                    attempt = waiting.popleft()
                    worker.ask(attempt, jobs[attempt[0]])

    def _hear(self, worker: _Worker, jobs: Sequence[Job], waiting: deque[Attempt]) -> dict[int, Outcome | Exception]:
        """A worker's answer, by the job's number; none if the job is to be tried again, by another in its place."""
        (number, attempt), *unbegun = worker.queue
        try:
            return {number: worker.answer()}
        except EOFError:
            code = worker.stop()
            self._pool[self._pool.index(worker)] = self._fork()
            self._deaths += 1
            self._tell(
                f"A worker process died in round {jobs[number].round.number} ({_ending(code)}), at work for client "
                f"'{jobs[number].client.name}', and was replaced; {self._deaths} so far. The results do not change."
            )
            waiting.extendleft(reversed(unbegun))
            if attempt < ATTEMPTS:
                waiting.appendleft((number, attempt + 1))
                return {}
            return {number: _died(jobs[number], code)}

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score models, in this process, with a thread for each worker, which have nothing to do meanwhile."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._count)
        try:
            yield from super().score(questions)
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        """Stop the workers."""
        self._stop()
        super().close()

    def _stop(self) -> None:
        for worker in self._pool:
            worker.stop()
        self._pool.clear()


def _refers(job: Job) -> tuple[object, ...]:
    """What a worker looks up instead of being sent it."""
    return job.setup, job.federated, job.exchange, job.round.stage


def _ready(pool: Sequence[_Worker]) -> list[_Worker]:
    """The workers that have answered or died; waits for the first."""
    by_connection = {worker.connection: worker for worker in pool if worker.queue}
    return [by_connection[connection] for connection in wait(list(by_connection))]  # type: ignore[index]  # what went in comes out


def _ending(code: int | None) -> str:
    """How a process ended, for a message."""
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _died(job: Job, code: int | None) -> FedshiftError:
    return FedshiftError(
        f"The worker process of client '{job.client.name}' died twice in round {job.round.number} ({_ending(code)}): "
        "most often "
        "the machine is out of memory. The last checkpoint, if there is one, is kept. Fewer processes need less: "
        "workers = 1, or engine = 'sequential', in [run] of the run folder's experiment.toml"
    )


# One worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """A job as it goes through the pipe: ids of what the worker knows, and in which arena the tensors lie where."""

    arena: int
    refers: tuple[int, ...]
    round: int
    client: int
    down: Layout
    state: Layout


@dataclass(frozen=True)
class _Answer:
    """An outcome as it goes through the pipe."""

    up: Layout
    state: Layout
    terms: dict[str, float]
    steps: int


class _Arena:
    """A file in memory that two processes map, into which one writes tensors that the other reads; it grows."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("fedshift"), "r+b", buffering=0)
        self._memory: mmap.mmap | None = None
        self._used = 0

    def close(self) -> None:
        """Close the file; tensors that lie there stay readable."""
        self._file.close()

    def clear(self) -> None:
        """Begin a new message."""
        self._used = 0

    def put(self, tensors: Mapping[str, Tensor]) -> Layout:
        """Write tensors after those that are there."""
        layout: Layout = []
        for name, tensor in tensors.items():
            place = (name, tensor.dtype, tuple(tensor.shape), self._used)
            self._at(place).copy_(tensor.detach())
            layout.append(place)
            self._used += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return layout

    def get(self, layout: Layout) -> dict[str, Tensor]:
        """The tensors that lie there, as views."""
        return {place[0]: self._at(place) for place in layout}

    def _at(self, place: tuple[str, torch.dtype, tuple[int, ...], int]) -> Tensor:
        _, dtype, shape, offset = place
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        memory = self._mapped(offset + count * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)

    def _mapped(self, size: int) -> mmap.mmap:
        """At least so many bytes of the file, which is made longer where it is too short."""
        if self._memory is None or len(self._memory) < size:
            if os.fstat(self._file.fileno()).st_size < size:
                self._file.truncate(2 * size)
            self._memory = mmap.mmap(self._file.fileno(), 0)
        return self._memory


class _Worker:
    """A process that does one job after the other, seen from this one.

    Attributes:
        connection: this end of the pipe.
        queue: the jobs it was handed and has not answered, the one at work first.
    """

    def __init__(self, known: Mapping[int, object], kernels: Kernels, others: Sequence[Connection]) -> None:
        self.queue: deque[Attempt] = deque()
        self._asked, self._answered = ([_Arena() for _ in range(AHEAD + 1)] for _ in range(2))
        self._arenas = cycle(range(AHEAD + 1))
        self._heard = cycle(self._answered)
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        # The child must not hold the other ends, or nobody would hear of this process's end.
        closing = [*others, self.connection]
        self._process = context.Process(
            target=_live,
            args=(theirs, self._asked, self._answered, dict(known), kernels, closing),
            daemon=True,
        )
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads; this child takes no lock that one of them may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def ask(self, attempt: Attempt, job: Job) -> None:
        """Hand over a job. That the worker is dead shows when it should answer."""
        number = next(self._arenas)
        arena = self._asked[number]
        arena.clear()
        down, state = arena.put(job.down), arena.put(job.state.flat())
        refers = tuple(id(thing) for thing in _refers(job))
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(_Task(number, refers, job.round.number, job.client.id, down, state))
        self.queue.append(attempt)

    def answer(self) -> Outcome | Exception:
        """What came of the first job in the queue.

        Raises:
            EOFError: the worker died.
        """
        try:
            client, answer = self.connection.recv()
        except OSError as error:  # it died, perhaps in the middle of its answer
            raise EOFError from error
        self.queue.popleft()
        arena = next(self._heard)
        if not isinstance(answer, _Answer):
            wrong: Exception = pickle.loads(answer)
            return wrong
        up = Up({name: tensor.clone() for name, tensor in arena.get(answer.up).items()})
        flat = {name: tensor.clone() for name, tensor in arena.get(answer.state).items()}
        return Outcome(client, up, ClientState.from_flat(flat), answer.terms, answer.steps)

    def stop(self) -> int | None:
        """End it, and say how it ended."""
        self.connection.close()
        self._process.join(0.05)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        for arena in (*self._asked, *self._answered):
            arena.close()
        return code


# In the worker ------------------------------------------------------------------------------------


def _live(
    connection: Connection,
    asked: Sequence[_Arena],
    answered: Sequence[_Arena],
    known: Mapping[int, object],
    kernels: Kernels,
    closing: Sequence[Connection],
) -> None:
    """A worker's life: one job after the other, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process hears of Ctrl-C and ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the other process does when it is asked to end
    for other in closing:
        other.close()
    torch.set_num_threads(1)
    engine = Sequential(kernels)
    while True:
        try:
            task = connection.recv()
            connection.send((task.client, _carry_out(task, engine, asked[task.arena], answered[task.arena], known)))
        except (EOFError, OSError):  # nobody wants the answer
            return


def _carry_out(
    task: _Task, engine: Sequential, asked: _Arena, answered: _Arena, known: Mapping[int, object]
) -> _Answer | bytes:
    """The answer to a task: where the outcome's tensors lie, or what went wrong."""
    setup, federated, exchange, stage = (known[key] for key in task.refers)
    state = ClientState.from_flat(asked.get(task.state))
    down = Down(asked.get(task.down))
    when: Any = Round(stage, task.round)  # type: ignore[arg-type]  # looked up by id
    client = federated.client(task.client)  # type: ignore[attr-defined]  # looked up by id
    job = Job(setup, federated, exchange, when, client, down, state)  # type: ignore[arg-type]  # looked up by id
    (outcome,) = engine.train([job])
    if not isinstance(outcome, Outcome):
        return _portable(outcome)
    answered.clear()
    try:
        up, kept = answered.put(outcome.up), answered.put(outcome.state.flat())
    except Exception as error:  # a sparse tensor, say
        return _portable(error)
    return _Answer(up, kept, outcome.terms, outcome.steps)


def _portable(error: Exception) -> bytes:
    """An exception that the other process can read; where it happened goes with it as a note."""
    error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # an exception with a constructor of its own, say; its text must do
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        data = pickle.dumps(plain)
    return data
