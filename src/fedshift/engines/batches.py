"""Which samples are in a client's next batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from fedshift.streams import Key, Streams

Purpose = tuple[str, *tuple[Key, ...]]


@dataclass(frozen=True)
class BatchOrder:
    """A client's endless sequence of batches: epoch after epoch, each in a new random order.

    An epoch's incomplete last batch is left out, so that every batch has the same size; a client with fewer
    samples than a batch draws all it has. The sequence runs on from round to round, and any place in it can
    be found from its number alone. It is named by what the batches are for, which is ``purpose``.
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
        """The samples of batch ``number`` (from 0) and of all that follow, each int64 of shape (length,)."""
        epoch, place = divmod(number, self.per_epoch)
        while True:
            order = self.streams.permutation(self.samples, *self.purpose, self.client, epoch)
            yield from order[: self.per_epoch * self.length].view(self.per_epoch, self.length)[place:]
            epoch, place = epoch + 1, 0


@dataclass(frozen=True)
class BalancedOrder(BatchOrder):
    """A client's endless sequence of batches with as many samples of each class that it has, or one more.

    Classes take turns, sample by sample, and go on with their turns in the next batch. Each goes through its own
    samples again and again, every time in a new random order, so those of a rare class come more often. An epoch has as
    many batches as without balance. ``labels`` (samples,) are those of the client's samples.
    """

    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def from_number(self, number: int) -> Iterator[Tensor]:
        """The samples of batch ``number`` (from 0) and of all that follow, each int64 of shape (length,)."""
        own = [((self.labels == label).nonzero().squeeze(1), label) for label in sorted(set(self.labels.tolist()))]
        orders: dict[int, tuple[int, list[int]]] = {}  # of each class which time through its samples, in what order
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
            yield torch.tensor(batch)
