"""Actors of a Ray cluster: the clients of a cohort in parallel, on any number of machines.

Runs and data go to the cluster's object store once, which has one copy per node, read without copying; so do, in each
round, tensors that several clients receive. A client's state travels with its job and outcome: only this process stores
it. Choices: objects are sent with the code of notebooks and plugins, so nodes need only fedshift. An actor sets its
number of threads. A dead actor is replaced by one that waits for a free processor, while the others continue.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fedshift.clients.federated import FederatedData
from fedshift.content import PLUGIN
from fedshift.core.messages import Down
from fedshift.core.setup import Round
from fedshift.engines.engine import Job, Outcome
from fedshift.engines.kernels import Kernels
from fedshift.engines.parcels import Bytes, Packed, Packing, portable, read, written
from fedshift.engines.pool import Attempt, WorkerPool, shared_objects
from fedshift.engines.sequential import Sequential
from fedshift.errors import FedshiftError, needs

CHECK_SECONDS = 1.0  # seconds between checks
PATIENCE = 30.0  # seconds without any actor after which a message reports a full cluster
FALSE_STARTS = 3  # consecutive actors that died before they were ready; then give up

Parcel = tuple[bytes, Bytes]  # a message, and its tensors


def connect(address: str) -> Any:
    """Ray, connected to the cluster at an address, or to a new one on this machine; a FedshiftError if that fails.

    "auto": a running cluster or RAY_ADDRESS, else a new one; "local": a new one.
    """
    with needs("ray", "The engine 'ray'"):
        import ray

    if ray.is_initialized():
        return ray
    quiet: Any = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    try:
        try:
            ray.init(None if address == "auto" else address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init("local", include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise FedshiftError(
            f"run.address = '{address}': there is no Ray cluster ({error}); `ray start --head` starts one, and "
            "--set run.address=local one on this machine."
        ) from error
    return ray


class RayActors(WorkerPool["_RemoteActor"]):
    """Has an actor for each processor of a cluster, or for a part of each GPU."""

    member = "A Ray actor"
    advice = "Fewer actors on a node need less memory: run.workers."

    def __init__(
        self,
        kernels: Kernels,
        count: int,
        threads: int,
        gpus: float = 0.0,
        address: str = "auto",
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Start actors when there is work; 0 actors: one per processor of the cluster, or as many as fit on its GPUs.

        ``threads`` are this process's while it scores; ``notify`` is called with messages on dead actors.
        """
        super().__init__(kernels, count, threads, notify)
        self._ray, self._gpus = connect(address), gpus
        if not count:
            resources = self._ray.cluster_resources()
            self._count = max(int(resources.get("GPU", 0) / gpus if gpus else resources.get("CPU", 1)), 1)
        # References to parcels that actors must read, and whether they copy the tensors.
        self._lessons: list[tuple[Any, Any, bool]] = []
        self._false_starts = 0
        self._broadcast = _Broadcast((), self._ray)

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        """Train every client; idle actors then release memory."""
        self._broadcast = _Broadcast(jobs, self._ray)
        for actor in self._pool[len(jobs) :]:
            actor.release()
        yield from super().train(jobs)

    def _know(self, shared_objects: dict[int, object]) -> None:
        new = {number: thing for number, thing in shared_objects.items() if number not in self._known}
        data = {number: thing for number, thing in new.items() if isinstance(thing, FederatedData)}
        others = {number: thing for number, thing in new.items() if number not in data}
        send_plugins()
        for its, copy in ((data, False), (others, True)):
            if its:
                parcel = _parcel(its, self._known, code=True)
                self._lessons.append((*map(self._ray.put, parcel), copy))
                self._known |= its

    def _begin(self) -> _RemoteActor:
        return _RemoteActor(self)

    def _answered(self) -> list[_RemoteActor]:
        """Wait for actors with results, or dead or newly ready ones."""
        waited = 0.0
        while True:
            awaited = {actor.next: actor for actor in self._pool if actor.queue or not actor.ready}
            done, _ = self._ray.wait([*awaited], num_returns=1, timeout=CHECK_SECONDS)
            found = [awaited[each] for each in done]
            if found and found[0].ready:
                return found
            if found:
                self._accept(found[0])
                return []
            waited += CHECK_SECONDS
            if waited == PATIENCE and not any(actor.ready for actor in self._pool):
                self._notify(f"No actor of {self._count} has started yet: the cluster has no free processor (or GPU).")

    def _accept(self, actor: _RemoteActor) -> None:
        """Accept an actor that has started, or replace it."""
        try:
            actor.greet()
            self._false_starts = 0
        except EOFError as error:
            self._false_starts += 1
            if self._false_starts == FALSE_STARTS:
                raise FedshiftError(f"No actor of the Ray cluster can start: {error}") from error
            self._replace(actor)


class _Broadcast:
    """What several clients of a cohort receive, once in the object store."""

    def __init__(self, jobs: Sequence[Job], ray: Any) -> None:
        counts = Counter(id(tensor) for job in jobs for tensor in job.down.values())
        packing = Packing()
        for tensor in (tensor for job in jobs for tensor in job.down.values() if counts[id(tensor)] > 1):
            packing.put(tensor)
        self.ends, self.placed = packing.ends, packing.placed
        self.parcel = ray.put(packing.packed()) if jobs else None


class _RemoteActor:
    """An actor that runs one job after the other, seen from this process."""

    def __init__(self, engine: RayActors) -> None:
        self.queue: deque[Attempt] = deque()
        self._engine, self._ray = engine, engine._ray
        self._answers: deque[tuple[Any, torch.device]] = deque()
        self._learnt, self.ready, self._rested, self._ending = 0, False, True, "stopped"
        place = self._ray.remote(Actor).options(num_cpus=1, num_gpus=engine._gpus or None)
        self._handle = place.remote(engine.kernels)
        self._started = self._handle.__ray_ready__.remote()

    @property
    def next(self) -> Any:
        """A reference to its next message."""
        return self._answers[0][0] if self.ready else self._started

    def greet(self) -> None:
        """Accept it as ready, once it has started; EOFError if it died."""
        try:
            self._ray.get(self._started)
        except self._ray.exceptions.RayError as error:
            self._ending = first_line(error)
            raise EOFError(self._ending) from error
        self.ready = True

    def submit(self, attempt: Attempt, job: Job) -> None:
        for lesson in self._engine._lessons[self._learnt :]:
            self._handle.read_shared.remote(*lesson)
        self._learnt, self._rested = len(self._engine._lessons), False
        shared = self._engine._broadcast
        message = (*shared_objects(job), job.round.number, job.client.id, dict(job.down), job.state)
        packing = Packing(shared.ends, shared.placed)
        data = written(message, packing, self._engine._known).getvalue()
        answer = self._handle.work.remote(data, shared.parcel, packing.packed(), str(job.setup.device))
        self._answers.append((answer, job.setup.device))
        self.queue.append(attempt)

    def answer(self) -> Outcome | Exception:
        reference, device = self._answers[0]
        try:
            data, tensors = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._ending = first_line(error)
            raise EOFError(self._ending) from error
        self._answers.popleft(), self.queue.popleft()
        # Copies: the store's memory is read-only, and should not be kept alive by a run's state.
        answer: Outcome | Exception = read(data, Packed(tensors, device=device), {}, copy=True)
        return answer

    def release(self) -> None:
        """Release the memory of finished work."""
        if self.ready and not self._rested:
            self._handle.release.remote()
            self._rested = True

    def stop(self) -> str:
        self._ray.kill(self._handle)
        return self._ending


class Actor:
    """What an actor runs in its process."""

    def __init__(self, kernels: Kernels) -> None:
        torch.set_num_threads(1)
        self._engine = Sequential(kernels)
        self._known: dict[int, object] = {}
        self._lacks: Exception | None = None  # why it could not read what its jobs refer to

    def read_shared(self, data: bytes, tensors: Bytes, copy: bool) -> None:
        """Read runs or data, whose tensors may stay views of the object store."""
        device = torch.device("cuda") if torch.cuda.is_available() else None
        try:
            self._known |= read(data, Packed(tensors, device=device), self._known, copy)
        except Exception as error:  # for example, a node with another version of fedshift; no caller waits
            self._lacks = error

    def work(self, data: bytes, shared: Bytes, tensors: Bytes, device: str) -> Parcel:
        """Train a client; returns its outcome, or the exception."""
        if self._lacks is not None:
            return _parcel(portable(self._lacks, "a Ray actor that reads the run"))
        memory = Packed(shared, tensors, device=torch.device(device))
        setup, federated, exchange, stage, number, client, down, state = read(data, memory, self._known, copy=True)
        job = Job(setup, federated, exchange, Round(stage, number), federated.client(client), Down(down), state)
        (outcome,) = self._engine.train([job])
        try:
            return _parcel(outcome if isinstance(outcome, Outcome) else portable(outcome, "a Ray actor"))
        except Exception as error:  # for example, a sparse tensor
            return _parcel(portable(error, "a Ray actor"))

    def release(self) -> None:
        """Release modules and their clients' tensors."""
        self._engine.close()
        gc.collect()


def _parcel(message: object, known: Mapping[int, object] | None = None, *, code: bool = False) -> Parcel:
    packing = Packing()
    return written(message, packing, known or {}, code=code).getvalue(), packing.packed()


def send_plugins() -> None:
    """Send the code of plugins by value, since nodes may lack their files."""
    import cloudpickle

    registered = cloudpickle.list_registry_pickle_by_value()
    for name, module in list(sys.modules.items()):
        if name.startswith(PLUGIN) and name not in registered:
            cloudpickle.register_pickle_by_value(module)


def first_line(error: Exception) -> str:
    """The first line of Ray's message about an error."""
    return str(error).strip().partition("\n")[0]
