"""Persistent worker processes of one thread each: the clients of a cohort in parallel.

A worker is a fork of this process, so it has every run's method, data and modules without a copy. Tensors go through
memory that both processes map; a pipe carries their places, and idle processes block on it. A worker receives the state
of its current client only. Choices: fork starts in milliseconds, shares the data, and needs no importable method (a
notebook's is not); so it is for CPUs, on systems that fork safely. A dead worker is replaced. Workers end with this
process, after their current client.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from fedshift.core.messages import Down
from fedshift.core.setup import Round
from fedshift.engines.engine import Job, Outcome
from fedshift.engines.kernels import Kernels
from fedshift.engines.parcels import Place, aligned, portable, read, written
from fedshift.engines.pool import AHEAD, Attempt, WorkerPool, shared_objects
from fedshift.engines.sequential import Sequential


def can_fork() -> bool:
    """Whether worker processes are available: on Linux, whose system libraries survive a fork."""
    return sys.platform == "linux"


class Workers(WorkerPool["_Worker"]):
    """Forks a process for each core, and gives each client of a cohort to the next free one."""

    member = "A worker process"
    advice = (
        "Fewer processes need less: workers = 1, or engine = 'sequential', in [run] of the run folder's experiment.toml"
    )

    def __init__(self, kernels: Kernels, count: int, notify: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(kernels, count, count, notify)

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Train every client; in this process if the device is not a CPU."""
        on_cpu = all(job.setup.device.type == "cpu" for job in jobs)
        yield from super().train(jobs) if on_cpu else Sequential.train(self, jobs)

    def _know(self, shared_objects: dict[int, object]) -> None:
        if not shared_objects.keys() <= self._known.keys():
            self._stop()
            self._known |= shared_objects

    def _begin(self) -> _Worker:
        return _Worker(self._known, self.kernels, [worker.connection for worker in self._pool])

    def _answered(self) -> list[_Worker]:
        by_connection = {worker.connection: worker for worker in self._pool if worker.queue}
        return [by_connection[connection] for connection in wait(list(by_connection))]  # type: ignore[index]  # the same type as went in


class _Arena:
    """A file in memory that two processes map, to which one writes tensors that the other reads; it grows."""

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
        self._used += aligned(tensor.nbytes)
        return place

    def get(self, place: Place) -> Tensor:
        """A view of the tensor at a place."""
        dtype, shape, offset = place
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        memory = self._mapped(offset + count * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)

    def _mapped(self, size: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < size:
            if os.fstat(self._file.fileno()).st_size < size:
                self._file.truncate(2 * size)
            self._memory = mmap.mmap(self._file.fileno(), 0)
        return self._memory


class _Channel:
    """One end of a pipe: messages arrive in order, each in the next arena."""

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
        """Send an object; tensors and objects that both processes have are not pickled."""
        arena = self._outgoing[0]
        arena.clear()
        file = written(message, arena, self._known)
        self._outgoing.rotate(-1)
        self.connection.send_bytes(file.getbuffer())

    def receive(self) -> Any:
        """The next message; its tensors are copies, or valid until all arenas have been used again."""
        data, arena = self.connection.recv_bytes(), self._incoming[0]
        self._incoming.rotate(-1)
        return read(data, arena, self._known, self._copy)


class _Worker:
    """A process that runs one job after the other, seen from this one."""

    ready = True

    def __init__(self, known: Mapping[int, object], kernels: Kernels, others: Sequence[Connection]) -> None:
        self.queue: deque[Attempt] = deque()
        jobs, answers = ([_Arena() for _ in range(AHEAD + 1)] for _ in range(2))
        self._arenas = (*jobs, *answers)
        context, known = multiprocessing.get_context("fork"), dict(known)
        self.connection, theirs = context.Pipe()
        self._channel = _Channel(self.connection, known, jobs, answers, copy=True)
        # The child must close the other ends, or it would not notice the end of this process.
        closing = [*others, self.connection]
        channel = _Channel(theirs, known, answers, jobs, copy=False)
        self._process = context.Process(target=_serve_jobs, args=(channel, kernels, closing), daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads; this child takes no lock that a thread may own.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def submit(self, attempt: Attempt, job: Job) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send((*shared_objects(job), job.round.number, job.client.id, dict(job.down), job.state))
        self.queue.append(attempt)

    def answer(self) -> Outcome | Exception:
        try:
            answer: Outcome | Exception = self._channel.receive()
        except OSError as error:  # it died, perhaps in the middle of its result
            raise EOFError from error
        self.queue.popleft()
        return answer

    def stop(self) -> str:
        self.connection.close()
        self._process.join(0.05)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        for arena in self._arenas:
            arena.close()
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _serve_jobs(channel: _Channel, kernels: Kernels, closing: Sequence[Connection]) -> None:
    """A worker's main loop: one job after the other, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process receives Ctrl-C and ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever handler the other process has
    for other in closing:
        other.close()
    torch.set_num_threads(1)
    engine = Sequential(kernels)
    with suppress(EOFError, OSError):  # the result is not needed
        while True:
            setup, federated, exchange, stage, number, client, down, state = channel.receive()
            when = Round(stage, number)
            job = Job(setup, federated, exchange, when, federated.client(client), Down(down), state)
            (outcome,) = engine.train([job])
            try:
                channel.send(outcome if isinstance(outcome, Outcome) else portable(outcome, "a worker process"))
            except Exception as error:  # for example, a sparse tensor
                channel.send(portable(error, "a worker process"))
