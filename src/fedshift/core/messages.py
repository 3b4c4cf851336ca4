"""Messages between coordinator and client: orders, answers, and their named tensors, whose bytes are counted."""

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
_DTYPES = {  # safetensors' names
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
    """Named tensors in name order, as they cross the wire in safetensors, which keeps every bit; immutable."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        given = tensors or {}
        super().__init__({name: given[name].detach() for name in sorted(given)})

    @cached_property
    def signature(self) -> Signature:
        """Name, type and shape of every tensor, for audits."""
        return tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.items())

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, equal to ``len(self.to_bytes())``."""
        return wire_bytes(self.signature)

    def to_bytes(self) -> bytes:
        """Serialise to safetensors; an empty message is not sent, so it has no bytes."""
        return pack(self) if self else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a message bit for bit; safetensors.SafetensorError if the bytes are incomplete."""
        return cls(unpack(data) if data else {})


class Down(Message):
    """What the server sends to a client."""


class Up(Message):
    """What a client sends back."""


class Telemetry(Message):
    """What a client reports about its work besides its reply: the number of steps, and the mean of each loss term."""

    @classmethod
    def from_numbers(cls, terms: Mapping[str, float], steps: int) -> Self:
        means = {f"{TERM}{name}": torch.tensor(value, dtype=torch.float64) for name, value in terms.items()}
        return cls({"steps": torch.tensor(steps), **means})

    @property
    def terms(self) -> dict[str, float]:
        return {name.removeprefix(TERM): float(value) for name, value in self.items() if name.startswith(TERM)}


@dataclass(frozen=True)
class Trip:
    """An exchange of a round with a client, from order to answer; ``run`` is the run's agreed name."""

    run: str
    stage: str
    round: int
    exchange: str
    client: int

    def __str__(self) -> str:
        return f"exchange '{self.exchange}' of round {self.round} of the stage '{self.stage}'"

    @property
    def trip(self) -> Trip:
        return Trip(self.run, self.stage, self.round, self.exchange, self.client)


@dataclass(frozen=True)
class Order(Trip):
    """What the coordinator sends to a client: an exchange to run, and its Down."""

    down: Down

    def to_bytes(self) -> bytes:
        return pack(self.down, {"order": json.dumps(vars(self.trip))})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(**json.loads(metadata(data)["order"]), down=Down(unpack(data)))


@dataclass(frozen=True)
class Answer(Trip):
    """What a client returns: its reply and its telemetry (empty if telemetry is off)."""

    up: Up
    telemetry: Telemetry

    def to_bytes(self) -> bytes:
        tensors = self.up.under("up") | self.telemetry.under("telemetry")
        return pack(tensors, {"answer": json.dumps(vars(self.trip))})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        tensors = unpack(data)
        about = json.loads(metadata(data)["answer"])
        return cls(**about, up=Up(tensors.of("up")), telemetry=Telemetry(tensors.of("telemetry")))


@dataclass(frozen=True)
class Missing:
    """A client that did not answer, and the reason, if known."""

    client: int
    why: str


def metadata(data: bytes) -> dict[str, str]:
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
    """Read tensors from safetensors bytes into torch's memory: the alignment of operands changes how products round."""
    return Tensors({name: tensor.clone() for name, tensor in load(data).items()})


def pack_in_pieces(
    likes: Mapping[str, Tensor], tensors: Iterable[Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """A safetensors file in pieces, of tensors that need not fit into memory; ``likes`` has their types and shapes."""
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
    """Bytes on the wire of a message with a signature; an empty message is not sent."""
    if not signature:
        return 0
    return len(save({name: torch.empty(shape, dtype=dtype) for name, dtype, shape in signature}))
