"""A user's module, or a function that creates it, kept in a file that any process can load.

cloudpickle writes it, so it may be defined in a script or a notebook. Its bytes differ from process to process, so the
file's name and a run's fingerprint use what the object *means*: the source text of the user's classes and functions,
and the values of everything else.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dis import get_instructions
from functools import cache
from importlib.metadata import packages_distributions
from io import BytesIO
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from fedshift import files
from fedshift.content import KEPT, digest, ran_here, remember_code
from fedshift.core.frozen import checksum
from fedshift.errors import FedshiftError

SUFFIX = ".kept"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NOT_OF_A_CLASS = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("__annotations__", "__dataclass_fields__", "__dataclass_params__"),  # attributes of functions that count
}


def keep(given: Any, name: str, folder: Path) -> Path:
    """Write an object into a file named by its meaning, unless the file exists, and trust it on this machine."""
    try:
        meaning = meaning_of(given)
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
            "that makes the module, and create in it what cannot be pickled."
        ) from error
    remember_code(path)
    return path


def read(path: Path) -> Any:
    """Load an object; raises a FedshiftError if the file is damaged, of another Python, or needs a missing package."""
    words, pickled = _parts(path)
    if len(words) != 4 or files.digest_of(pickled) != words[1]:
        raise FedshiftError(f"'{path}' is not a file of fedshift.own_model. Write it again with that function.")
    if words[3] != PYTHON:
        raise FedshiftError(
            f"'{path}' was written by Python {words[3]}, whose compiled code Python {PYTHON} cannot run: use that "
            "version, or write it again with fedshift.own_model."
        )
    try:
        return torch.load(BytesIO(pickled), map_location="cpu", weights_only=False)
    except Exception as error:  # whatever the user's code raises
        raise FedshiftError(f"'{path}' cannot be opened here ({type(error).__name__}: {error}).") from error


def _is_whole(path: Path, meaning: str) -> bool:
    if digest(path) != meaning or not ran_here(path):  # the first line identifies the format
        return False
    words, pickled = _parts(path)
    return words[1:] == [files.digest_of(pickled), "python", PYTHON]


def _parts(path: Path) -> tuple[list[str], bytes]:
    head, _, pickled = path.read_bytes().partition(b"\n")
    return head.removeprefix(KEPT).decode(errors="replace").split(), pickled


# Pickled ----------------------------------------------------------------------------------------------


def _pickled(given: Any) -> bytes:
    buffer = BytesIO()
    with _by_value():
        torch.save(given, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


@contextmanager
def _by_value() -> Iterator[None]:
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
    return not module or module.partition(".")[0] not in _installed()


@cache
def _installed() -> frozenset[str]:
    return frozenset({"fedshift", *sys.stdlib_module_names, *packages_distributions()} - {"__main__"})


# What it means ----------------------------------------------------------------------------------------


def meaning_of(value: Any) -> str:
    """A digest of an object's meaning, equal in every process; raises what an object raises that cannot be pickled."""
    buffer = BytesIO()
    _Meaning(buffer).dump(value)
    return files.digest_of(buffer.getvalue())


class _Meaning(pickle.Pickler):
    """Writes an object as pickle does, but the user's code by its source and tensors by their values."""

    dispatch_table = cloudpickle.CloudPickler.dispatch_table

    def __init__(self, buffer: BytesIO) -> None:
        super().__init__(buffer, protocol=4)
        self.fast = True  # writes equal strings equally, whether they are the same object or not
        self._seen: dict[int, tuple[int, Any]] = {}  # by id: which in order it was, and itself, so that it stays

    def persistent_id(self, value: Any) -> Any:
        """What is written in place of a value; None: the value itself."""
        if value is None or type(value) in (bool, int, float, complex, str, bytes, tuple):
            return None
        count = len(self._seen)
        number, _ = self._seen.setdefault(id(value), (count, value))
        if number < count and type(value) is not frozenset:
            return number
        parts: Any = None
        if isinstance(value, frozenset | set):
            parts = "set", sorted(map(meaning_of, value))
        elif isinstance(value, Tensor):
            lazy = is_lazy(value)
            content = () if lazy else (value.shape, checksum(value.detach().cpu().reshape(-1)))
            parts = str(value.dtype), value.requires_grad, *map(str, content)
        elif isinstance(value, ModuleType):
            file = getattr(value, "__file__", None) if _is_yours(value.__name__) else None
            parts = "module", digest(file) if file else value.__name__
        elif isinstance(value, CodeType):
            parts = value.co_code, value.co_consts, value.co_names, value.co_varnames
        elif isinstance(value, type | FunctionType):
            known = "<locals>" not in value.__qualname__ and not _is_yours(value.__module__)
            own = _class_parts if isinstance(value, type) else _function_parts
            parts = value.__qualname__, value.__module__ if known else own(value)
        return parts


def _class_parts(cls: Any) -> list[Any]:
    names = sorted(name for name in vars(cls) if name not in NOT_OF_A_CLASS and not name.startswith("_abc_"))
    return [cls.__bases__, *((name, vars(cls)[name]) for name in names)]


def _function_parts(function: Any) -> list[Any]:
    parts: list[Any] = [function.__defaults__, function.__kwdefaults__]
    try:
        parts.append(inspect.cleandoc(inspect.getsource(function)))
    except (OSError, TypeError):  # what was typed into a prompt has no text
        parts.append(function.__code__)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty yet
            parts.append(cell.cell_contents)
    names = sorted(_names(function.__code__) & function.__globals__.keys())
    return [*parts, *((name, function.__globals__[name]) for name in names)]


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    own = {each.argval for each in get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*map(_names, inner))
