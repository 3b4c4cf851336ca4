"""Persistent worker processes of one thread each: the clients of a cohort side by side.

A worker is a fork of this process, so it knows every run's method, data and modules without a copy. What a client
receives, keeps and answers goes through memory that both processes map; a pipe says what lies where, and whoever has
nothing to do waits in a blocking read of it. A worker is handed the state of the client it works for and no other's.

Choices: fork and not spawn, since it starts in milliseconds, shares the data, and needs no method to be importable by
name (a notebook's are not); so it is for CPUs, on systems whose processes can fork safely. A worker that dies is
replaced and its client tried once more. Workers end with this process, after the client that they work for.
"""

from __future__ import annotations

import io
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
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from fedshift.core.messages import Down
from fedshift.core.setup import Round
from fedshift.engines.engine import Job, Outcome, Question, Score
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.errors import FedshiftError

ALIGNMENT = 64  # bytes; vector loads like it
AHEAD = 1  # jobs that a worker is handed before it has answered the one it works on
ATTEMPTS = 2  # how often a client's work is begun before its worker's death is reported

Attempt = tuple[int, int]  # a job's number and how often it has been begun, this time included
Place = tuple[torch.dtype, tuple[int, ...], int]  # of a tensor: its type, its shape and where it begins


def can_fork() -> bool:
    """Whether worker processes can be had here: on Linux, whose system libraries survive a fork."""
    return sys.platform == "linux"


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
    return job.setup, job.federated, job.exchange, job.round.stage


def _ready(pool: Sequence[_Worker]) -> list[_Worker]:
    by_connection = {worker.connection: worker for worker in pool if worker.queue}
    return [by_connection[connection] for connection in wait(list(by_connection))]  # type: ignore[index]  # what went in comes out


def _ending(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _died(job: Job, code: int | None) -> FedshiftError:
    return FedshiftError(
        f"The worker process of client '{job.client.name}' died twice in round {job.round.number} ({_ending(code)}): "
        "most often the machine is out of memory. The last checkpoint, if there is one, is kept. Fewer processes "
        "need less: workers = 1, or engine = 'sequential', in [run] of the run folder's experiment.toml"
    )


class _Arena:
    """A file in memory that two processes map, into which one writes tensors that the other reads; it grows."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("fedshift"), "r+b", buffering=0)
        self._memory: mmap.mmap | None = None
        self._used = 0

    def close(self) -> None:
        self._file.close()

    def clear(self) -> None:
        self._used = 0

    def put(self, tensor: Tensor) -> Place:
        place = tensor.dtype, tuple(tensor.shape), self._used
        self.get(place).copy_(tensor.detach())
        self._used += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return place

    def get(self, place: Place) -> Tensor:
        """The tensor that lies there, as a view."""
        dtype, shape, offset = place
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


class _Pickler(pickle.Pickler):
    """Writes tensors to an arena, and the number of what both processes know."""

    def __init__(self, file: io.BytesIO, arena: _Arena, known: Mapping[int, object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._arena, self._known = arena, known

    def persistent_id(self, obj: object) -> Place | int | None:
        if isinstance(obj, Tensor):
            return self._arena.put(obj)
        return id(obj) if id(obj) in self._known else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arena: _Arena, known: Mapping[int, object], copy: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._arena, self._known, self._copy = arena, known, copy

    def persistent_load(self, pid: Any) -> object:
        if isinstance(pid, int):
            return self._known[pid]
        tensor = self._arena.get(pid)
        return tensor.clone() if self._copy else tensor


class _Channel:
    """One end of a pipe: what one process sends the other receives in the same order, each in the next arena."""

    def __init__(
        self,
        connection: Connection,
        known: Mapping[int, object],
        outgoing: Sequence[_Arena],
        incoming: Sequence[_Arena],
        copy: bool,
    ) -> None:
        self.connection, self._known, self._copy = connection, known, copy
        self._outgoing, self._incoming = deque(outgoing), deque(incoming)

    def send(self, message: object) -> None:
        """Send an object that can be pickled, but for the tensors in it and what both processes know."""
        arena, file = self._outgoing[0], io.BytesIO()
        arena.clear()
        _Pickler(file, arena, self._known).dump(message)
        self._outgoing.rotate(-1)
        self.connection.send_bytes(file.getbuffer())

    def receive(self) -> Any:
        """What was sent; its tensors are copies, or valid until as many more messages came as there are arenas."""
        data, arena = self.connection.recv_bytes(), self._incoming[0]
        self._incoming.rotate(-1)
        return _Unpickler(data, arena, self._known, self._copy).load()


class _Worker:
    """A process that does one job after the other, seen from this one.

    Attributes:
        queue: the jobs it was handed and has not answered, the one at work first.
    """

    def __init__(self, known: Mapping[int, object], kernels: Kernels, others: Sequence[Connection]) -> None:
        self.queue: deque[Attempt] = deque()
        jobs, answers = ([_Arena() for _ in range(AHEAD + 1)] for _ in range(2))
        self._arenas = (*jobs, *answers)
        context, known = multiprocessing.get_context("fork"), dict(known)
        self.connection, theirs = context.Pipe()
        self._channel = _Channel(self.connection, known, jobs, answers, copy=True)
        # The child must not hold the other ends, or nobody would hear of this process's end.
        closing = [*others, self.connection]
        channel = _Channel(theirs, known, answers, jobs, copy=False)
        self._process = context.Process(target=_live, args=(channel, kernels, closing), daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads; this child takes no lock that one of them may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def ask(self, attempt: Attempt, job: Job) -> None:
        """Hand over a job. That the worker is dead shows when it should answer."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send((*_refers(job), job.round.number, job.client.id, dict(job.down), job.state))
        self.queue.append(attempt)

    def answer(self) -> Outcome | Exception:
        """What came of the first job in the queue.

        Raises:
            EOFError: the worker died.
        """
        try:
            answer: Outcome | Exception = self._channel.receive()
        except OSError as error:  # it died, perhaps in the middle of its answer
            raise EOFError from error
        self.queue.popleft()
        return answer

    def stop(self) -> int | None:
        """End it, and say how it ended."""
        self.connection.close()
        self._process.join(0.05)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        for arena in self._arenas:
            arena.close()
        return code


def _live(channel: _Channel, kernels: Kernels, closing: Sequence[Connection]) -> None:
    """A worker's life: one job after the other, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process hears of Ctrl-C and ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the other process does when it is asked to end
    for other in closing:
        other.close()
    torch.set_num_threads(1)
    engine = Sequential(kernels)
    with suppress(EOFError, OSError):  # nobody wants the answer
        while True:
            setup, federated, exchange, stage, number, client, down, state = channel.receive()
            when = Round(stage, number)
            job = Job(setup, federated, exchange, when, federated.client(client), Down(down), state)
            (outcome,) = engine.train([job])
            try:
                channel.send(outcome if isinstance(outcome, Outcome) else _portable(outcome))
            except Exception as error:  # a sparse tensor, say
                channel.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """An exception that the other process can read; where it happened goes with it as a note."""
    error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception with a constructor of its own, say; its text must do
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return plain
    return error
