"""Messages between processes: pickles, and tensors in memory that both can read."""

from __future__ import annotations

import io
import pickle
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

ALIGNMENT = 64  # bytes, as torch allocates; a product rounds by how its operands are aligned

Place = tuple[torch.dtype, tuple[int, ...], int]  # of a tensor: its type, its shape and its offset
Bytes = NDArray[np.uint8]


def aligned(size: int) -> int:
    """The next multiple of the alignment, in bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Writable(Protocol):
    """Memory to which the tensors of messages are written."""

    def put(self, tensor: Tensor) -> Any:
        """Write a tensor; returns its place."""


class Readable(Protocol):
    """Memory from which the tensors of messages are read."""

    def get(self, place: Any) -> Tensor:
        """The tensor at a place."""


class _Numbered:
    """References that picklers write in place of tensors, and of objects that both processes have."""

    def __init__(self, memory: Writable, known: Mapping[int, object]) -> None:
        self._memory, self._known = memory, known

    def __call__(self, obj: object) -> Any:
        if isinstance(obj, Tensor) and not isinstance(obj, Parameter):  # a parameter is pickled around its tensor
            return self._memory.put(obj)
        return id(obj) if id(obj) in self._known else None


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbered: _Numbered) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbered = numbered

    def persistent_id(self, obj: object) -> Any:
        return self._numbered(obj)


class _CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # the library has no types
    def __init__(self, file: io.BytesIO, numbered: _Numbered) -> None:
        super().__init__(file)
        self._numbered = numbered

    def persistent_id(self, obj: object) -> Any:
        return self._numbered(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, memory: Readable, known: Mapping[int, object], copy: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._memory, self._known, self._copy = memory, known, copy

    def persistent_load(self, pid: Any) -> object:
        if isinstance(pid, int):
            return self._known[pid]
        tensor = self._memory.get(pid)
        return tensor.clone() if self._copy else tensor


def written(message: object, memory: Writable, known: Mapping[int, object], *, code: bool = False) -> io.BytesIO:
    """A message as bytes, with its tensors in the memory.

    ``known`` are objects by ``id()`` that the reader has, written as numbers; ``code``: whether functions and classes
    that the reader cannot import are included.
    """
    file, numbered = io.BytesIO(), _Numbered(memory, known)
    pickler = _CodePickler(file, numbered) if code else _Pickler(file, numbered)
    pickler.dump(message)
    return file


def read(data: bytes, memory: Readable, known: Mapping[int, object], copy: bool) -> Any:
    """The inverse of :func:`written`; tensors are copies, or views of the memory."""
    return _Unpickler(data, memory, known, copy).load()


def portable(error: Exception, where: str) -> Exception:
    """An exception that another process can unpickle, with its location as a note."""
    error.add_note(f"In {where}:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # for example, an exception with a custom constructor: send its text
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return plain
    return error


class Packing:
    """A memory that is written once and sent as a whole.

    ``begins`` is the first offset, after parcels that the reader has; ``placed`` their tensors' places by ``id()``.
    """

    def __init__(self, begins: int = 0, placed: Mapping[int, Any] | None = None) -> None:
        self._begins = self.ends = begins
        self._placed = dict(placed or {})
        self._tensors: list[tuple[Tensor, int]] = []

    @property
    def placed(self) -> Mapping[int, Any]:
        """The tensors' places, by ``id()``."""
        return self._placed

    def put(self, tensor: Tensor) -> tuple[Place, bool]:
        """Add a tensor; returns its place, and whether it is on an accelerator."""
        if id(tensor) not in self._placed:
            place = tensor.dtype, tuple(tensor.shape), self.ends
            self._tensors.append((tensor, self.ends))  # kept, so that its id stays unique
            self._placed[id(tensor)] = place, tensor.device.type != "cpu"
            self.ends += aligned(tensor.nbytes)
        found: tuple[Place, bool] = self._placed[id(tensor)]
        return found

    def packed(self) -> Bytes:
        """All tensors, in one piece."""
        memory = np.zeros(self.ends - self._begins, dtype=np.uint8)
        whole = torch.from_numpy(memory)
        for tensor, place in self._tensors:
            if tensor.nbytes:
                begins = place - self._begins
                its = whole[begins : begins + tensor.nbytes].view(tensor.dtype)
                its.view(tensor.shape).copy_(tensor.detach())
        return memory


class Packed:
    """Read-only parcels, one after the other, from :meth:`Packing.packed`; ``device`` is the accelerator."""

    def __init__(self, *parcels: Bytes, device: torch.device | None = None) -> None:
        self._parcels, self._device = parcels, device

    def get(self, place: tuple[Place, bool]) -> Tensor:
        """The tensor at a place, as a view if it stays on the CPU."""
        (dtype, shape, begins), moves = place
        size = torch.Size(shape).numel() * dtype.itemsize
        if not size:
            found = torch.empty(shape, dtype=dtype)
        else:
            number = 0
            while begins >= len(self._parcels[number]):
                begins -= len(self._parcels[number])
                number += 1
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                whole = torch.from_numpy(self._parcels[number])
            found = whole[begins : begins + size].view(dtype).view(shape)
            if found.data_ptr() % ALIGNMENT:  # of a parcel within a message
                found = found.clone()
        return found.to(self._device) if moves and self._device else found
