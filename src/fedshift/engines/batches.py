"""Which samples are in a client's next batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedshift.core.streams import Streams


@dataclass(frozen=True)
class BatchOrder:
    """A client's endless sequence of batches: epoch after epoch, each in a new random order.

    An epoch's incomplete last batch is left out, so that every batch has the same size. The sequence
    runs on from round to round, and any place in it can be found from its number alone.
    """

    streams: Streams
    client: int
    samples: int
    size: int

    @property
    def per_epoch(self) -> int:
        """Whole batches in one epoch."""
        return self.samples // self.size

    def indices(self, number: int) -> Tensor:
        """The samples of batch ``number`` (from 0), int64 of shape (size,)."""
        epoch, place = divmod(number, self.per_epoch)
        order = self.streams.permutation(self.samples, "batches", self.client, epoch)
        return order[place * self.size : (place + 1) * self.size]
