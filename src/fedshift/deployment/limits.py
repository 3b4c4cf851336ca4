"""How large a message of a run may be, worked out from what its exchanges declare, before anything is parsed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from torch import Tensor

from fedshift.core.contract import Declared
from fedshift.core.setup import Setup
from fedshift.deployment.agreement import Agreement
from fedshift.errors import FedshiftError

MEGABYTE = 10**6
ABOUT_ONE = 512  # bytes of a header for one tensor: its name, type, shape and place
ABOUT_ALL = 1 << 16  # bytes of a header for everything else
SCORES = 64  # bytes of the numbers of a score, without metrics


class MessageLimits(NamedTuple):
    """How large a message may be, in bytes: all of it, and its header, which is parsed before anything else."""

    message: int
    header: int

    def check(self, data: bytes) -> None:
        """Raise an error where a message is larger than that."""
        header = int.from_bytes(data[:8], "little")
        if len(data) > self.message:
            raise FedshiftError(f"sent {len(data):,} bytes, of {self.message:,} at most")
        if header > self.header:
            raise FedshiftError(f"sent what is no message: a header of {header:,} bytes, of {self.header:,} at most")


def of_replies(agreement: Agreement, setup: Setup) -> MessageLimits:
    """The limits of what a site may send."""
    exchanges = [exchange for stage in setup.stages for exchange in stage.exchanges]
    ups = [setup.declared(exchange) | setup.telemetry(exchange) for exchange in exchanges]
    scores = 2 * len(agreement.environments(agreement.federation.sites[0])) * (SCORES + 8 * len(setup.metrics))
    tensors = max(map(len, ups), default=0) + scores // 8
    return _limits(agreement, [_bytes(up) for up in ups], scores, tensors)


def of_requests(agreement: Agreement, setup: Setup) -> MessageLimits:
    """The limits of what a coordinator may send: an order and a model to be scored, or all that was agreed on."""
    sent: Mapping[str, Tensor] = setup.initial("shared") | setup.initial("down")
    exchanges = [exchange for stage in setup.stages for exchange in stage.exchanges]
    known = all(exchange.send is None for exchange in exchanges)
    size = 2 * sum(tensor.nbytes for tensor in sent.values()) if known else None
    return _limits(agreement, [size], len(json.dumps(agreement.agreed)), 2 * len(sent) + 2 * len(setup.shapes))


def _bytes(declared: Declared) -> int | None:
    """The bytes of declared tensors; None where a length is not known before."""
    if any(length is None for _, shape in declared.values() for length in shape):
        return None
    return sum(prod(length or 0 for length in shape) * dtype.itemsize for dtype, shape in declared.values())


def _limits(agreement: Agreement, sizes: Iterable[int | None], more: int, tensors: int) -> MessageLimits:
    """The limits of messages of some sizes, with more beside them; where a size is not known, what was agreed on."""
    most = agreement.federation.largest * MEGABYTE
    header = ABOUT_ALL + ABOUT_ONE * tensors + 2 * more
    known = [most if size is None else size for size in sizes]
    return MessageLimits(min(most, max(known, default=0) + more + header), header)
