"""What crosses between coordinator and client: orders, answers, and the named tensors in them, whose bytes count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedshift.core.tensors import Tensors

TERM = "term."  # before the name of a loss term in telemetry
_DTYPES = {  # as safetensors calls them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES}  # of tensors in messages, by name
Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


class Message(Tensors):
    """Named tensors as they cross the wire: detached, in name order.

    Anyone who builds a message hands over tensors that nobody changes afterwards. The wire format is safetensors, which
    keeps every bit, NaN included.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        given = tensors or {}
        super().__init__({name: given[name].detach() for name in sorted(given)})

    @cached_property
    def signature(self) -> Signature:
        """Name, type and shape of every tensor: what an auditor reads."""
        return tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.items())

    @property
    def nbytes(self) -> int:
        """The bytes this message takes on the wire, equal to ``len(self.to_bytes())``."""
        return wire_bytes(self.signature)

    def to_bytes(self) -> bytes:
        """Serialise to safetensors; an empty message is not sent, so it has no bytes."""
        return pack(self) if self else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a message back, bit for bit.

        Raises:
            safetensors.SafetensorError: the bytes are not a whole message.
        """
        return cls(unpack(data) if data else {})


class Down(Message):
    """What the server sends to one client."""


class Up(Message):
    """What one client sends back."""


class Telemetry(Message):
    """What a client reports about its work besides its reply: the number of steps, and the mean of each loss term."""

    @classmethod
    def from_numbers(cls, terms: Mapping[str, float], steps: int) -> Self:
        """From numbers."""
        means = {f"{TERM}{name}": torch.tensor(value, dtype=torch.float64) for name, value in terms.items()}
        return cls({"steps": torch.tensor(steps), **means})

    @property
    def terms(self) -> dict[str, float]:
        """The mean of each loss term over the steps."""
        return {name.removeprefix(TERM): float(value) for name, value in self.items() if name.startswith(TERM)}


@dataclass(frozen=True)
class Trip:
    """An exchange of a round with a client, which an order begins and an answer ends.

    Attributes:
        run: what coordinator and site have agreed to call the run.
        stage: the stage's name.
        round: the round of the stage, from 1.
        exchange: the exchange's name.
        client: the client's id.
    """

    run: str
    stage: str
    round: int
    exchange: str
    client: int

    def __str__(self) -> str:
        return f"exchange '{self.exchange}' of round {self.round} of the stage '{self.stage}'"

    @property
    def trip(self) -> Trip:
        """The trip alone, of an order or an answer."""
        return Trip(self.run, self.stage, self.round, self.exchange, self.client)


@dataclass(frozen=True)
class Order(Trip):
    """What the coordinator sends to a client: what is to be done, and the Down to do it with."""

    down: Down

    def to_bytes(self) -> bytes:
        """As safetensors, whose header states what is to be done."""
        return pack(self.down, {"order": json.dumps(vars(self.trip))})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read an order back, bit for bit."""
        return cls(**json.loads(metadata(data)["order"]), down=Down(unpack(data)))


@dataclass(frozen=True)
class Answer(Trip):
    """What a client sends back: its reply, and its telemetry (nothing where telemetry is off)."""

    up: Up
    telemetry: Telemetry

    def to_bytes(self) -> bytes:
        """As safetensors, whose header states what it answers."""
        tensors = self.up.under("up") | self.telemetry.under("telemetry")
        return pack(tensors, {"answer": json.dumps(vars(self.trip))})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read an answer back, bit for bit."""
        tensors = unpack(data)
        about = json.loads(metadata(data)["answer"])
        return cls(**about, up=Up(tensors.of("up")), telemetry=Telemetry(tensors.of("telemetry")))


@dataclass(frozen=True)
class Missing:
    """That a client did not answer, and why, as far as that is known."""

    client: int
    why: str


def metadata(data: bytes) -> dict[str, str]:
    """What the header of a message in safetensors states beside its tensors."""
    header: dict[str, dict[str, str]] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header["__metadata__"]


def pack(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Serialise named tensors, whatever their layout or shared storage, to safetensors bytes."""
    packed = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    data: bytes = save(packed, metadata)
    return data


def unpack(data: bytes) -> Tensors:
    """Read tensors back from safetensors bytes, bit for bit.

    Each gets memory that torch allocates: a product rounds by how its operands are aligned, and safetensors' are not.

    Raises:
        safetensors.SafetensorError: the bytes are not a whole file.
    """
    return Tensors({name: tensor.clone() for name, tensor in load(data).items()})


def pack_in_pieces(
    likes: Mapping[str, Tensor], tensors: Iterable[Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """A safetensors file, piece by piece, of tensors that need not be in memory together.

    Args:
        likes: for each name, in order, a tensor of the type and shape of the one that will come.
        tensors: the tensors, in that order.
        metadata: what the header, which is the first piece, begins with.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, like in likes.items():
        end = offset + like.nbytes
        header[name] = {"dtype": _DTYPES[like.dtype], "shape": list(like.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors:
        yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@lru_cache(maxsize=256)
def wire_bytes(signature: Signature) -> int:
    """The bytes that a message of a signature takes on the wire; an empty one is not sent."""
    if not signature:
        return 0
    return len(save({name: torch.empty(shape, dtype=dtype) for name, dtype, shape in signature}))
