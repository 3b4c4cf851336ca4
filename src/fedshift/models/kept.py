"""A module of the user's, or what makes one, kept in a file that any process can read it from.

cloudpickle writes it, so it may be defined in a script or a notebook. What it writes differs from process to process,
so a file is named, and counts in a run's fingerprint, by what the object *means*: the source text of the user's classes
and functions, and the values of all else.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import get_instructions
from functools import cache
from hashlib import blake2b
from importlib.metadata import packages_distributions
from io import BytesIO
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedshift import files
from fedshift.content import KEPT, digest, ran_here, remember_code
from fedshift.core.frozen import checksum
from fedshift.errors import FedshiftError

SUFFIX = ".kept"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NOT_OF_A_CLASS = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("__annotations__", "__dataclass_fields__", "__dataclass_params__"),  # which functions are made of, that count
}


def keep(given: Any, name: str, folder: Path) -> Path:
    """Write an object into a file that is named by what it means, unless it is there; it may be run here from now on.

    Raises:
        FedshiftError: it cannot be pickled.
        DiskError: the file cannot be written.
    """
    try:
        meaning = Meaning.of(given)
        path = folder / f"{name}-{meaning[:12]}{SUFFIX}"
        if not _is_whole(path, meaning):
            pickled = _pickled(given)
            head = b"%s%s %s python %s\n" % (KEPT, meaning.encode(), files.digest_of(pickled).encode(), PYTHON.encode())
            files.make_folder(folder)
            files.write(path, [head, pickled])
    except FedshiftError:
        raise
    except Exception as error:  # whatever the user's objects raise
        raise FedshiftError(
            f"'{name}' cannot be kept for the processes that run it ({type(error).__name__}: {error}). Give a function "
            "that makes the module, and make in it what cannot be pickled."
        ) from error
    remember_code(path)
    return path


def read(path: Path) -> Any:
    """What a file holds, made anew.

    Raises:
        FedshiftError: it is not whole, or of another Python, or what it needs is not here.
    """
    head, _, pickled = path.read_bytes().partition(b"\n")
    words = head.removeprefix(KEPT).decode(errors="replace").split()
    if not head.startswith(KEPT) or len(words) != 4 or files.digest_of(pickled) != words[1]:
        raise FedshiftError(f"'{path}' is not what fedshift.own_model wrote. Make it again with that.")
    if words[3] != PYTHON:
        raise FedshiftError(
            f"'{path}' was written by Python {words[3]}, whose compiled code Python {PYTHON} cannot run: use that, or "
            "make it again with fedshift.own_model."
        )
    try:
        return pickle.loads(pickled)
    except Exception as error:  # whatever the user's code raises
        raise FedshiftError(f"'{path}' cannot be opened here ({type(error).__name__}: {error}).") from error


def _is_whole(path: Path, meaning: str) -> bool:
    """Whether a file is there, and is what this Python once wrote for that, on this machine."""
    if digest(path) != meaning or not ran_here(path):  # its first line is its own word
        return False
    head, _, pickled = path.read_bytes().partition(b"\n")
    return head.split()[-3:] == [files.digest_of(pickled).encode(), b"python", PYTHON.encode()]


# Pickled ----------------------------------------------------------------------------------------------


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Tensors are written as they are on the CPU."""

    def reducer_override(self, obj: Any) -> Any:
        """How an object is written, if not as usual."""
        if type(obj) in (Tensor, nn.Parameter) and obj.layout is torch.strided and not is_lazy(obj):
            held = save({"": obj.detach().cpu().contiguous()})
            return _tensor, (held, type(obj) is nn.Parameter, obj.requires_grad)
        return super().reducer_override(obj)


def _tensor(held: bytes, parameter: bool, requires_grad: bool) -> Tensor:
    tensor = load(held)[""]
    return nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def _pickled(given: Any) -> bytes:
    """An object with all that other processes lack: what is installed is named, and what is the user's is written."""
    buffer = BytesIO()
    with _by_value():
        _Pickler(buffer).dump(given)
    return buffer.getvalue()


@contextmanager
def _by_value() -> Iterator[None]:
    """Write modules of the user's, which another process may not find, as those of a script are written."""
    as_given = {*cloudpickle.list_registry_pickle_by_value(), "__main__"}  # which is always written
    yours = {getattr(sys.modules[name], "__name__", "") for name in [*sys.modules] if _is_yours(name)}
    added = [sys.modules[name] for name in sorted(yours - as_given) if name in sys.modules]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _is_yours(module: str | None) -> bool:
    """Whether a module is the user's own: neither Python's, nor of an installed package, nor fedshift's."""
    return not module or module.partition(".")[0] not in _installed()


def _is_known(value: type | FunctionType) -> bool:
    """Whether a class or function is of a module that is not the user's, where it is found by its name."""
    return "<locals>" not in value.__qualname__ and not _is_yours(value.__module__)


@cache
def _installed() -> frozenset[str]:
    return frozenset({"fedshift", *sys.stdlib_module_names, *packages_distributions()} - {"__main__"})


# What it means ----------------------------------------------------------------------------------------


class Meaning:
    """A digest of what an object means, equal in every process: functions and classes of the user's by their source."""

    def __init__(self) -> None:
        self._total = blake2b(digest_size=16)
        self._seen: dict[int, tuple[int, Any]] = {}  # by id: which in order it was, and itself, so that it stays

    @classmethod
    def of(cls, value: Any) -> str:
        """The digest.

        Raises:
            Exception: whatever an object raises that cannot be pickled.
        """
        meaning = cls()
        meaning._add(value)
        return meaning._total.hexdigest()

    def _say(self, *words: object) -> None:
        self._total.update(repr(words).encode(errors="surrogateescape") + b"\n")

    def _add(self, value: Any) -> None:
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            self._say(value)
            return
        if type(value) not in (tuple, frozenset):  # which may be one object or two, and mean the same
            known = id(value) in self._seen
            number, _ = self._seen.setdefault(id(value), (len(self._seen), value))
            self._say(type(value).__qualname__, number)
            if known:
                return
        self._way(value)(value)

    def _way(self, value: Any) -> Callable[[Any], None]:
        """How a value is added."""
        ways: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys((tuple, list), self._add_each),
            **dict.fromkeys((set, frozenset), self._add_set),
            **dict.fromkeys((staticmethod, classmethod), lambda value: self._add(value.__func__)),
            dict: lambda value: self._add_each(list(value.items())),
            property: lambda value: self._add((value.fget, value.fset, value.fdel)),
            FunctionType: self._add_function,
            CodeType: lambda code: self._add_each((code.co_code, code.co_consts, code.co_names, code.co_varnames)),
            ModuleType: self._add_module,
        }
        if isinstance(value, type):
            return self._add_class
        return self._add_tensor if isinstance(value, Tensor) else ways.get(type(value), self._add_reduced)

    def _add_tensor(self, tensor: Tensor) -> None:
        lazy = is_lazy(tensor)
        held = "" if lazy else checksum(tensor.detach().cpu().reshape(-1))
        self._say(tensor.dtype, None if lazy else tuple(tensor.shape), tensor.requires_grad, held)

    def _add_each(self, values: Any) -> None:
        self._say(type(values).__qualname__, len(values))
        for value in values:
            self._add(value)

    def _add_set(self, values: Any) -> None:
        self._say("set", sorted(map(Meaning.of, values)))

    def _add_module(self, module: ModuleType) -> None:
        own = getattr(module, "__file__", None) if _is_yours(module.__name__) else None
        self._say("module", digest(own) if own else module.__name__)

    def _add_class(self, cls: type) -> None:
        self._say("class", cls.__qualname__, cls.__module__ if _is_known(cls) else "")
        if _is_known(cls):
            return
        self._add(cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if name not in NOT_OF_A_CLASS and not name.startswith("_abc_"):
                self._say(name)
                self._add(value)

    def _add_function(self, function: FunctionType) -> None:
        self._say("function", function.__qualname__, function.__module__ if _is_known(function) else "")
        if _is_known(function):
            return
        try:
            self._say(inspect.cleandoc(inspect.getsource(function)))
        except (OSError, TypeError):  # what was typed into a prompt has no text
            self._add(function.__code__)
        self._add((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            self._add(_content(cell))
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            self._say(name)
            self._add(function.__globals__[name])

    def _add_reduced(self, value: Any) -> None:
        """Whatever else there is: as pickle would take it apart."""
        reducer = cloudpickle.CloudPickler.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            self._say(type(value).__module__, reduced)
            return
        for piece in reduced:
            self._add(list(piece) if isinstance(piece, Iterator) else piece)


def _content(cell: CellType) -> Any:
    """What a function reads from around it; None where that is not there yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code: CodeType) -> set[str]:
    """The global names that code reads, that of functions within it too."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    own = {each.argval for each in get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*map(_names, inner))
