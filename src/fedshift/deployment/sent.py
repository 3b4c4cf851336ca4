"""sent.jsonl: a line for each message that leaves a site, chained so that a changed or moved line is detected.

A line has the time, the purpose, and for the message and each tensor the size and SHA-256, so that the owner of a
message can match it. It ends with ``chain``, a digest of the line and of the previous chain. Lines cut off at the end
leave no gap: keep a copy, or the last chain, elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import StringConstraints
from safetensors.torch import load
from torch import Tensor

from fedshift import files
from fedshift.core.contract import Category
from fedshift.core.messages import Trip
from fedshift.errors import DamagedError
from fedshift.manifest import checked, parsed
from fedshift.runs.schema import File, Size

SENT = "sent.jsonl"
START = ""  # of the chain
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class LoggedTensor(File):
    """A tensor of a message, with the SHA-256 of its bytes in the message."""

    name: str
    type: str
    shape: list[Size]
    bytes: Size
    sha256: Sha256
    category: Category


class SentMessage(File):
    """A line of sent.jsonl, without its chain."""

    time: str  # when it was written, in UTC, in ISO 8601
    run: str  # the run's name
    what: str  # the kind of message, such as "answer"
    stage: str  # the stage of the answered order; empty if it answers none
    round: Size  # the round of the stage, from 1; 0 if it answers no order
    exchange: str  # the exchange; empty if it answers no order
    bytes: Size  # the message's size
    sha256: Sha256  # of the whole message
    tensors: list[LoggedTensor]  # every tensor in it


@dataclass(frozen=True)
class SentLog:
    """The log of what leaves a site; only one process at a time may write it."""

    path: Path  # the file

    def add(
        self, data: bytes, category: Callable[[str], Category], *, run: str, what: str, trip: Trip | None = None
    ) -> None:
        """Log a message durably, before it is sent.

        Args:
            data: the message, in safetensors.
            category: returns the category of a tensor by name; it raises if the tensor may not leave.
            run: the run's name.
            what: the kind of message, such as "answer".
            trip: the exchange that it answers, if any.

        Raises:
            DamagedError: the end of the file was changed.
            DiskError: it could not be written.
        """
        line = SentMessage(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            run=run,
            what=what,
            stage=trip.stage if trip else "",
            round=trip.round if trip else 0,
            exchange=trip.exchange if trip else "",
            bytes=len(data),
            sha256=sha256(data).hexdigest(),
            tensors=[_describe(name, tensor, category(name)) for name, tensor in sorted(load(data).items())],
        ).model_dump()
        files.append(self.path, dumps(line | {"chain": _link(self._end(), line)}))

    def _end(self) -> str:
        """The end of the chain; a line that a crash cut off is dropped, as its message was not sent."""
        *lines, cut_off = _lines(self.path)
        if cut_off:
            files.write(self.path, b"".join(line + b"\n" for line in lines))
        if not lines:
            return START
        try:
            return str(parsed(lines[-1])["chain"])
        except (ValueError, LookupError, TypeError) as error:
            raise DamagedError(
                f"The last line of '{self.path}' is not what was written ({error}): nothing is sent before somebody "
                "has checked it. Rename the file to continue."
            ) from error


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise DamagedError(f"'{path}' cannot be read ({error.strerror or error}).") from error


def _describe(name: str, tensor: Tensor, category: Category) -> LoggedTensor:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    kind, digest = str(tensor.dtype).removeprefix("torch."), sha256(data).hexdigest()
    return LoggedTensor(
        name=name, type=kind, shape=list(tensor.shape), bytes=tensor.nbytes, sha256=digest, category=category
    )


def _link(chain: str, record: dict[str, Any]) -> str:
    return files.digest_of(f"{chain} {dumps(record, sort_keys=True)}".encode())


def read_sent(path: Path) -> list[SentMessage]:
    """Every logged message; a line that a crash cut off at the end is skipped.

    Raises:
        DamagedError: a line was changed, or does not continue the line before it.
    """
    *lines, _cut_off = _lines(path)
    messages, chain = list[SentMessage](), START
    for number, line in enumerate(lines, start=1):
        try:
            record = parsed(line)
            messages.append(checked(record, SentMessage))
            written = record.pop("chain", None)
            chain = _link(chain, record)
            if written != chain:
                raise ValueError("it, or one before it, was changed, moved or cut")  # noqa: TRY301
        except ValueError as error:
            raise DamagedError(f"Line {number} of '{path}' is not what was written ({error}).") from error
    return messages


# In short -----------------------------------------------------------------------------------------


@dataclass
class Total:
    """What left in one exchange and category."""

    exchange: str  # its name; empty for messages that answer no order
    category: Category  # the tensors' category
    first: str  # when the first such message left
    last: str = ""  # when the last one did
    messages: int = 0  # their number
    tensors: int = 0  # the number of tensors
    bytes: int = 0  # the tensors' bytes


def totals(messages: Iterable[SentMessage]) -> list[Total]:
    """What has left so far, by exchange and category, in the order in which each left first."""
    found: dict[tuple[str, Category], Total] = {}
    for message in messages:
        for category in dict.fromkeys(tensor.category for tensor in message.tensors):
            of_it = [tensor.bytes for tensor in message.tensors if tensor.category == category]
            new = Total(message.exchange, category, message.time)
            total = found.setdefault((message.exchange, category), new)
            total.last, total.messages = message.time, total.messages + 1
            total.tensors, total.bytes = total.tensors + len(of_it), total.bytes + sum(of_it)
    return list(found.values())
