"""A lane of a bank: one client's training, and its way through a phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count, islice, repeat

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.contract import Batch, Context, Epochs, Measure, Phase
from fedshift.core.state import OptimiserState
from fedshift.core.tensors import Replies, Tensors
from fedshift.core.training import Train
from fedshift.engines.engine import SERVER, Job, ServerJob
from fedshift.errors import FedshiftError
from fedshift.streams import Draws, Key, Streams, sample_draws

Purpose = tuple[str, *tuple[Key, ...]]
GATHERED = 2**18  # maximum numbers in batches that are gathered at once, unless one batch has more


class Lane:
    """A job of a client or the server while it runs.

    Attributes:
        name: its name in messages.
        key: the client's id, or SERVER.
        notify: callback with the number of finished steps.
    """

    def __init__(self, job: Job | ServerJob) -> None:
        self.setup, self.round, self.notify = job.setup, job.round, job.notify
        self.optimisers: OptimiserState = dict(job.state.optimisers)  # stored optimiser state, updated at the end
        if isinstance(job, Job):
            self.name, self.key, self.phases = job.client.name, job.client.id, job.exchange.phases
            self.samples: Samples | None = job.client.train  # its training samples; the server has none
            self.inputs, self.replies = job.inputs, Replies()
            self.received: Tensors = job.down
            self.drawn = job.state.drawn.get(job.round.stage.name, 0)  # number of batches drawn before
        else:
            self.name, self.key, self.phases = "the server", SERVER, job.exchange.server_phases
            self.samples = None
            self.inputs, self.replies = Inputs(), job.replies
            self.received = Tensors()
            self.drawn = 0
        self.means: dict[str, float] = {}  # at the end, the mean of each loss term over the steps
        self.measured: dict[str, Tensor] = {}  # at the end, the sums of every measure
        self.seen: dict[str, int] = {}  # at the end, the number of samples behind each of these
        self.steps = 0  # number of finished steps
        self.read: set[str] = set()  # what its objectives read of weighted batches: "y", "weight", both or neither
        self.error: Exception | None = None  # an error of this lane alone

    @property
    def number(self) -> Tensor:
        """The key as a tensor for objectives."""
        return _number(self.key, self.setup.device)

    @cached_property
    def counts(self) -> Tensor:
        """Number of training samples of each class, (classes,)."""
        device = self.setup.device
        labels = self.samples.y if self.samples else torch.zeros(0, dtype=torch.int64, device=device)
        return torch.bincount(labels, minlength=self.setup.model.classes)

    @cached_property
    def class_weights(self) -> Tensor | None:
        """The weight of each class's samples, (classes,), with mean 1 over the client's samples; None: all 1."""
        given = self.setup.class_weights
        if given == "none" or self.samples is None:
            return None
        counts = self.counts.double()
        weights = 1 / counts.clamp(min=1) if given == "balanced" else counts.new_tensor(given)
        weighted = (weights * counts).sum()
        if not weighted:
            raise FedshiftError(
                f"train.class_weights = {list(given)}: all samples of {self.place} are of classes with a weight of 0. "
                "Give these classes a weight, or exclude the client."
            )
        return (weights * (len(self.samples) / weighted)).to(self.setup.dtype)

    @property
    def place(self) -> str:
        """Its name in a message."""
        return self.name if self.key == SERVER else f"client '{self.name}'"

    def source_of(self, phase: Phase) -> Samples | None:
        """The samples from which a phase draws batches: the lane's, or computed from the replies."""
        return self.samples if phase.samples is None else phase.samples(self.replies)

    def order(
        self, phase: Phase | Measure, samples: Samples | None, purpose: Purpose = ("batches",)
    ) -> BatchOrder | None:
        """The batches that a phase draws from samples, balanced only for a client's samples; None without samples."""
        if samples is None:
            return None
        train = self.setup.train
        drawn = self.setup.streams, self.key, len(samples), phase.batch or train.batch, purpose
        if train.batches == "balanced" and samples is self.samples:
            return BalancedOrder(*drawn, samples.y.cpu())
        return BatchOrder(*drawn)

    def count(self, phase: Phase, samples: Samples | None) -> int:
        return steps_of(phase, self.setup.train, None if samples is None else len(samples))

    def shape(self) -> tuple[object, ...]:
        """What stacked lanes must share: the batch length of each phase."""
        orders = (self.order(phase, self.samples) for phase in self.phases if isinstance(phase, Phase))
        return tuple(order.length for order in orders if order)

    def noise(self, draws: Draws, *key: str | int) -> dict[str, Tensor]:
        """The requested draws of an objective or a measure, drawn in float32 whatever the run's type."""
        if not draws:
            return {}
        generator = self.setup.streams.generator("noise", *self.round.key, self.key, *key)
        drawn = sample_draws(draws, generator, self.setup.device)
        return {name: self.setup.typed(value) for name, value in drawn.items()}

    def context(self, noise: Mapping[str, Tensor]) -> Context:
        when = self.round.number, self.round.stage.rounds
        known = self.received, Tensors(self.measured), self.counts
        return Context(*known, *when, noise, self.number, self.replies)

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        weights = self.class_weights
        return Batch(self.setup.typed(x), y, weight=None if weights is None else weights[y])

    def no_batch(self) -> Batch:
        """The batch of a server without samples."""
        device = self.setup.device
        return Batch(torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device))

    def measured_batches(self, phase: Measure) -> Iterator[Batch]:
        """Batches to measure, not augmented: every sample once, or a number drawn for the round."""
        order = self.order(phase, self.samples, ("measured batches", *self.round.key, phase.name))
        if order is None or self.samples is None:
            yield self.no_batch()
            return
        every = even_chunks(order.samples, self.setup.evaluate.batch)
        for rows in every if phase.steps is None else islice(order.from_number(0), phase.steps):
            x, y = self.samples.batch(rows.to(self.setup.device))
            yield self.batch(self.inputs.evaluation(x), y)


@lru_cache(maxsize=4096)
def _number(key: int, device: torch.device) -> Tensor:
    return torch.tensor(key, device=device)  # a copy to a GPU waits for the GPU's work


class Course:
    """A lane's way through one phase."""

    def __init__(self, lane: Lane, phase: Phase | Measure) -> None:
        assert isinstance(phase, Phase)
        self.lane, self.phase = lane, phase
        self.samples = lane.source_of(phase)
        order = lane.order(phase, self.samples)
        self.steps = lane.count(phase, self.samples)
        self.batches = self._gathered(order) if order else repeat(lane.no_batch())
        self.optimisers = {o.name: lane.optimisers.get(f"{phase.name}.{o.name}", {}) for o in phase.objectives}
        self.terms: dict[str, tuple[list[str], list[Tensor]]] = {}  # by objective: their names, and their tables

    def _gathered(self, order: BatchOrder) -> Iterator[Batch]:
        """The batches of the steps, several gathered and prepared at once unless each is augmented separately."""
        lane, samples = self.lane, self.samples
        assert samples is not None
        number, end = lane.drawn, lane.drawn + self.steps
        size = order.length * samples.pool.x[0].numel()
        most = 1 if lane.inputs.augment else max(1, GATHERED // max(1, size))
        rows_of_batches = order.from_number(number)
        while number < end:
            rows = torch.cat(list(islice(rows_of_batches, min(most, end - number)))).to(lane.setup.device)
            x, y = samples.batch(rows)
            together = lane.batch(lane.inputs.training(x, lane.setup.streams, lane.key, number), y)
            if self.phase.environments:
                environments = one_hot(samples.subset(rows).environment, lane.setup.model.environments)
                together = together._replace(environment=environments.to(lane.setup.dtype))
            for start in range(0, len(rows), order.length):
                yield together.part(slice(start, start + order.length))
                number += 1


def steps_of(phase: Phase, train: Train, samples: int | None) -> int:
    """The number of steps of a phase on a number of samples; None: on a server without samples."""
    if phase.steps is not None and not isinstance(phase.steps, Epochs):
        return phase.steps
    if phase.steps is not None:
        return phase.steps * train.per_epoch(samples, phase.batch)
    return train.steps_on(samples, phase.batch)


def even_chunks(length: int, size: int) -> Iterator[Tensor]:
    """0..length-1 in chunks of nearly equal size, so that re-estimated statistics weight every sample equally."""
    return iter(torch.arange(length).tensor_split(-(-length // size)))


def steps_of_job(job: Job | ServerJob) -> int:
    return sum(steps_by_phase(job))


def shorten(jobs: Sequence[Job], steps: int) -> list[Job]:
    """The jobs of an exchange with at most ``steps`` steps per phase; measures over all samples stay."""
    most = [max(counts) for counts in zip(*map(steps_by_phase, jobs), strict=True)]
    phases = zip(jobs[0].exchange.phases, most, strict=True)
    cut = [replace(p, steps=min(steps, n)) if isinstance(p, Phase) else p for p, n in phases]
    exchange = replace(jobs[0].exchange, phases=tuple(cut))
    return [replace(job, exchange=exchange) for job in jobs]


def steps_by_phase(job: Job | ServerJob) -> tuple[int, ...]:
    """The number of steps of each of the job's phases; 0 for measures."""
    lane = Lane(job)
    counts = []
    for phase in lane.phases:
        samples = lane.samples
        if isinstance(phase, Phase) and phase.samples is not None:
            with job.setup.global_draws("counting steps", *job.round.key, job.exchange.name):
                samples = phase.samples(lane.replies)
        counts.append(lane.count(phase, samples) if isinstance(phase, Phase) else 0)
    return tuple(counts)


# Batches ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchOrder:
    """A client's endless sequence of batches: epoch after epoch, each in a new random order, from round to round.

    An epoch's incomplete last batch is dropped; a client with fewer samples than a batch draws all of them. Any
    position can be computed from its number. ``purpose`` keys its stream.
    """

    streams: Streams
    client: int
    samples: int
    size: int
    purpose: Purpose = ("batches",)

    @property
    def length(self) -> int:
        """Samples in a batch."""
        return min(self.size, self.samples)

    @property
    def per_epoch(self) -> int:
        """Whole batches in one epoch."""
        return self.samples // self.length

    def from_number(self, number: int) -> Iterator[Tensor]:
        """The samples of batch ``number`` (from 0) and of all later ones, each int64 of shape (length,)."""
        epoch, place = divmod(number, self.per_epoch)
        while True:
            order = self.streams.permutation(self.samples, *self.purpose, self.client, epoch)
            yield from order[: self.per_epoch * self.length].view(self.per_epoch, self.length)[place:]
            epoch, place = epoch + 1, 0


@dataclass(frozen=True)
class BalancedOrder(BatchOrder):
    """A client's endless sequence of batches with equally many samples of each class, or one more.

    Classes take turns across batches, and each cycles through its samples in new random orders. A batch is in random
    order, as some objectives compare its halves or neighbours. An epoch has as many batches as without balance.
    """

    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def from_number(self, number: int) -> Iterator[Tensor]:
        own = [((self.labels == label).nonzero().squeeze(1), label) for label in sorted(set(self.labels.tolist()))]
        orders: dict[int, tuple[int, list[int]]] = {}  # per class, the pass through its samples, and its order
        for turn in count(number * self.length, self.length):
            batch = []
            for place in range(turn, turn + self.length):
                drawn, which = divmod(place, len(own))
                samples, label = own[which]
                time, at = divmod(drawn, len(samples))
                if orders.get(label, (-1,))[0] != time:
                    key = "balanced", *self.purpose, self.client, label, time
                    orders[label] = time, samples[self.streams.permutation(len(samples), *key)].tolist()
                batch.append(orders[label][1][at])
            shuffled = self.streams.permutation(len(batch), "balanced batch", *self.purpose, self.client, turn)
            yield torch.tensor(batch)[shuffled]
