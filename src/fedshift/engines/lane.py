"""A lane of a bank: one site at work, and its way through a phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice, repeat

import torch
from torch import Tensor

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.contract import Batch, Context, Measure, Phase
from fedshift.core.state import OptimiserState
from fedshift.core.tensors import Replies, Tensors
from fedshift.core.training import Train
from fedshift.engines.batches import BalancedOrder, BatchOrder, Purpose
from fedshift.engines.engine import SERVER, Job, ServerJob
from fedshift.errors import FedshiftError
from fedshift.streams import Draws, sample_draws

GATHERED = 2**18  # numbers of the batches that are gathered at once, at most, unless one has more


class Lane:
    """A job of a client or the server while it is carried out.

    Attributes:
        setup: the run.
        round: when.
        name: what messages call it.
        key: the client's id, or SERVER.
        phases: what it does.
        samples: its training samples; the server has none.
        inputs: how they become inputs.
        received: the Down's tensors.
        replies: on the server, what the clients sent.
        optimisers: optimiser state that was kept; replaced by what is kept now.
        drawn: how many batches it drew before.
        tell: callback that receives how many steps were taken.
        means: when done, the mean of each loss term over the steps.
        measured: when done, the sums of every measure.
        seen: when done, over how many samples each of these is.
        snapshot: when done, the shared tensors after the drawn step of a phase that takes a snapshot.
        steps: how many steps were done.
        error: what went wrong with this lane alone.
    """

    def __init__(self, job: Job | ServerJob) -> None:
        self.setup, self.round, self.tell = job.setup, job.round, job.tell
        self.optimisers: OptimiserState = dict(job.state.optimisers)
        if isinstance(job, Job):
            self.name, self.key, self.phases = job.client.name, job.client.id, job.exchange.phases
            self.samples: Samples | None = job.client.train
            self.inputs, self.replies = job.inputs, Replies()
            self.received: Tensors = job.down
            self.drawn = job.state.drawn.get(job.round.stage.name, 0)
        else:
            self.name, self.key, self.phases = "the server", SERVER, job.exchange.server
            self.samples = None
            self.inputs, self.replies = Inputs(), job.replies
            self.received = Tensors()
            self.drawn = 0
        self.means: dict[str, float] = {}
        self.measured: dict[str, Tensor] = {}
        self.seen: dict[str, int] = {}
        self.snapshot: dict[str, Tensor] = {}
        self.steps = 0
        self.error: Exception | None = None

    @cached_property
    def number(self) -> Tensor:
        """The key as objectives see it, made once and not in every step."""
        return torch.tensor(self.key, device=self.setup.device)

    @cached_property
    def counts(self) -> Tensor:
        """How many training samples of each class there are, (classes,)."""
        device = self.setup.device
        labels = self.samples.y if self.samples else torch.zeros(0, dtype=torch.int64, device=device)
        return torch.bincount(labels, minlength=self.setup.model.classes)

    @cached_property
    def class_weights(self) -> Tensor | None:
        """How much a sample of each class counts, (classes,), 1 in the mean over the client's samples; None: alike.

        Raises:
            FedshiftError: none of the client's samples counts.
        """
        given = self.setup.train.class_weights
        if given == "none" or self.samples is None:
            return None
        counts = self.counts.double()
        weights = 1 / counts.clamp(min=1) if given == "balanced" else counts.new_tensor(given)
        weighted = (weights * counts).sum()
        if not weighted:
            raise FedshiftError(
                f"train.class_weights = {list(given)}: all samples of {self.place} are of classes with a weight of 0. "
                "Give these classes a weight, or leave the client out."
            )
        return (weights * (len(self.samples) / weighted)).to(self.setup.dtype)

    @property
    def place(self) -> str:
        """Where it is, for a message."""
        return self.name if self.key == SERVER else f"client '{self.name}'"

    def drawn_from(self, phase: Phase) -> Samples | None:
        """The samples that a phase draws its batches from: the lane's own, or those it makes of the replies."""
        return self.samples if phase.samples is None else phase.samples(self.replies)

    def order(
        self, phase: Phase | Measure, samples: Samples | None, purpose: Purpose = ("batches",)
    ) -> BatchOrder | None:
        """The sequence of batches that a phase draws from samples; None for a server without samples.

        Classes are balanced among a client's own samples alone.
        """
        if samples is None:
            return None
        train = self.setup.train
        drawn = self.setup.streams, self.key, len(samples), phase.batch or train.batch, purpose
        if train.batches == "balanced" and samples is self.samples:
            return BalancedOrder(*drawn, samples.y.cpu())
        return BatchOrder(*drawn)

    def count(self, phase: Phase, order: BatchOrder | None) -> int:
        """How many steps a phase has."""
        return steps_of(phase, self.setup.train, order.per_epoch if order else 1)

    def shape(self) -> tuple[object, ...]:
        """What lanes that go together must have in common: the length of the batches of each phase."""
        orders = (self.order(phase, self.samples) for phase in self.phases if isinstance(phase, Phase))
        return tuple(order.length for order in orders if order)

    def typed(self, x: Tensor) -> Tensor:
        """Floating inputs and noise in the type of the run."""
        return x.to(self.setup.dtype) if x.is_floating_point() else x

    def noise(self, draws: Draws, *key: str | int) -> dict[str, Tensor]:
        """What an objective or a measure asked for, drawn in float32 whatever the run's type."""
        if not draws:
            return {}
        generator = self.setup.streams.generator("noise", *self.round.key, self.key, *key)
        drawn = sample_draws(draws, generator, self.setup.device)
        return {name: self.typed(value) for name, value in drawn.items()}

    def context(self, noise: Mapping[str, Tensor]) -> Context:
        """What an objective may know."""
        when = self.round.number, self.round.stage.rounds
        return Context(*when, self.received, noise, self.number, self.counts, Tensors(self.measured), self.replies)

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        """A batch of inputs and labels."""
        weights = self.class_weights
        return Batch(self.typed(x), y, weight=None if weights is None else weights[y])

    def no_batch(self) -> Batch:
        """The batch of a server without samples."""
        device = self.setup.device
        return Batch(torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device))

    def measured_rows(self, phase: Measure) -> Iterator[Tensor]:
        """The samples of each batch that a phase measures on: every sample once, or so many batches of the round's."""
        order = self.order(phase, self.samples, ("measured batches", *self.round.key, phase.name))
        if order is None:
            return iter(())
        if phase.steps is None:
            return even_chunks(order.samples, self.setup.evaluate.batch)
        return islice(order.from_number(0), phase.steps)

    def measured_batches(self, phase: Measure) -> Iterator[Batch]:
        """What a phase measures on, without augmentation."""
        if self.samples is None:
            yield self.no_batch()
            return
        for rows in self.measured_rows(phase):
            x, y = self.samples.batch(rows.to(self.setup.device))
            yield self.batch(self.inputs.evaluation(x), y)


class Course:
    """A lane's way through one phase."""

    def __init__(self, lane: Lane, phase: Phase | Measure) -> None:
        assert isinstance(phase, Phase)
        self.lane, self.phase = lane, phase
        self.samples = lane.drawn_from(phase)
        order = lane.order(phase, self.samples)
        self.steps = lane.count(phase, order)
        self.batches = self._gathered(order) if order else repeat(lane.no_batch())
        self.optimisers = {o.name: lane.optimisers.get(f"{phase.name}.{o.name}", {}) for o in phase.objectives}

    def _gathered(self, order: BatchOrder) -> Iterator[Batch]:
        """The batches of the steps, several of them gathered and prepared at once unless each is augmented apart."""
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
                together = together._replace(environment=samples.subset(rows).environment)
            for start in range(0, len(rows), order.length):
                yield together.part(slice(start, start + order.length))
                number += 1


def steps_of(phase: Phase, train: Train, per_epoch: int) -> int:
    """How many steps a phase has, where an epoch has so many."""
    if phase.steps is not None:
        return phase.steps
    if phase.epochs is not None:
        return phase.epochs * per_epoch
    return train.steps * (per_epoch if train.unit == "epochs" else 1)


def even_chunks(length: int, size: int) -> Iterator[Tensor]:
    """0..length-1 in chunks of nearly equal size, so that re-estimated statistics weigh every sample alike."""
    return iter(torch.arange(length).tensor_split(-(-length // size)))
