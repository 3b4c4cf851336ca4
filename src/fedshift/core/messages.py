"""Named-tensor messages: the only things on the wire, and the place where bytes are counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Self

import torch
from safetensors.torch import load, save
from torch import Tensor

Tensors = Mapping[str, Tensor]
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
Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


class Message(Mapping[str, Tensor]):
    """An immutable mapping from names to tensors, as it crosses the wire.

    It keeps the tensors it is given, detached and in name order; whoever builds one hands over tensors
    that nobody changes afterwards. The wire format is safetensors, which keeps every bit, NaN included.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = {name: tensors[name].detach() for name in sorted(tensors)}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def signature(self) -> Signature:
        """Name, type and shape of every tensor: what an auditor reads."""
        return tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.items())

    @property
    def nbytes(self) -> int:
        """The bytes this message takes on the wire, equal to ``len(self.to_bytes())``."""
        return _wire_bytes(self.signature) if self else 0

    def to_bytes(self) -> bytes:
        """Serialise to safetensors; an empty message is not sent, so it has no bytes."""
        return pack(self) if self else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a message back, bit for bit.

        Raises:
            safetensors.SafetensorError: the bytes are not a whole message.
        """
        return cls(load(data) if data else {})


class Down(Message):
    """What the server sends to one client."""


class Up(Message):
    """What one client sends back."""


def pack(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """Serialise named tensors, whatever their layout or shared storage, to safetensors bytes."""
    packed = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    data: bytes = save(packed, metadata)
    return data


def pack_in_pieces(likes: Tensors, tensors: Iterable[Tensor]) -> Iterator[bytes]:
    """A safetensors file, piece by piece, of tensors that need not be in memory together.

    Args:
        likes: for each name, in order, a tensor of the type and shape of the one that will come.
        tensors: the tensors, in that order.
    """
    header, offset = {}, 0
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
def _wire_bytes(signature: Signature) -> int:
    return len(save({name: torch.empty(shape, dtype=dtype) for name, dtype, shape in signature}))
