"""The engine of a run, with its processes, threads and kernels, as requested."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge
from torch import nn

from fedshift.core.setup import Setup
from fedshift.core.training import RunOptions
from fedshift.engines.engine import Engine
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.engines.workers import Workers, can_fork
from fedshift.errors import FedshiftError
from fedshift.spec import Probability, Processors

Name = Literal["sequential", "vectorised", "workers", "ray"]
# What users limit the threads of numerical programs with; fedshift takes it for the cores that it may use in all.
LIMITS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS")
# mallopt's parameters and values (malloc.h of the GNU C library), in bytes: from how much unused memory at the end of
# the heap some is given back, and from what size (this is the most) a tensor gets separate pages, cleared each time.
_KEEP = {-1: 2**28, -3: 2**25}


@dataclass(frozen=True)
class Choice:
    """An engine and how it runs.

    Attributes:
        engine: its name.
        workers: processes of the engine 'workers'; actors of 'ray', or 0 for as many as there is room for; 1 for the
            others.
        threads: threads of each process.
        kernels: how modules are prepared.
        gpus: the part of a GPU that an actor of 'ray' takes.
        address: of the cluster of 'ray'.
    """

    engine: Name
    workers: Processors
    threads: Annotated[Processors, Ge(1)]
    kernels: Kernels
    gpus: Probability = 0.0
    address: str = "auto"

    @property
    def together(self) -> int:
        """How many runs of a table advance together by default: as many as gain from it."""
        return {"sequential": 1, "workers": self.workers, "vectorised": 16, "ray": 1}[self.engine]

    def __str__(self) -> str:
        """In a few words, for people."""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''} of"
        who = {"workers": workers, "ray": f"{self.workers or 'all'} Ray actors of"}.get(
            self.engine, f"{self.engine} on"
        )
        layout = ", channels last" if self.kernels.channels_last else ""
        linear = ", oneDNN for linear layers" if self.kernels.linear == "onednn" else ""
        return f"{who} {self.threads} thread{'s' if self.threads > 1 else ''}{layout}{linear}"

    def table(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Self:
        """The inverse of :meth:`table`."""
        return cls(**{**table, "kernels": Kernels(**table["kernels"])})


def asked_for(setup: Setup, options: RunOptions) -> Choice:
    """An engine without measuring: channels last for convolutions, everything else as PyTorch does it.

    Raises:
        FedshiftError: the engine requested cannot be had here.
    """
    kernels = Kernels(channels_last=has_layer(setup, nn.Conv2d))
    if options.engine == "workers":
        if setup.device.type != "cpu" or not can_fork():
            raise FedshiftError(
                f"run.engine = 'workers' forks processes on a CPU, which cannot be had on '{setup.device}' of this "
                f"{sys.platform} system: --set run.device=cpu on Linux, or try auto."
            )
        return Choice("workers", options.workers or cores(), 1, kernels)
    if options.engine == "ray" and options.spread == "clients":
        return Choice("ray", options.workers, 1, kernels, options.gpus, options.address)
    engine: Any = "sequential" if options.engine in ("auto", "ray") else options.engine
    return Choice(engine, 1, options.threads or cores(), kernels)


def has_layer(setup: Setup, kind: type[nn.Module]) -> bool:
    """Whether a layer of that kind is among the parts."""
    return any(isinstance(layer, kind) for part in setup.parts.values() for layer in part.module.modules())


def cores() -> int:
    """How many cores this process may use, for threads or for worker processes.

    By its affinity, its container's quota, ``LOKY_MAX_CPU_COUNT``, and :data:`LIMITS`. What an experiment sets itself
    (``run.threads``, ``run.workers``) is taken as it is.
    """
    import joblib

    here: int = joblib.cpu_count()
    return min([here, *(limit for name in LIMITS if (limit := _limit(name)))])


def _limit(name: str) -> int:
    value = os.environ.get(name, "").partition(",")[0].strip()
    return int(value) if value.isascii() and value.isdecimal() else 0  # as OpenMP ignores what is not a number


@contextmanager
def open_engine(choice: Choice, tell: Callable[[str], None] = lambda text: None) -> Iterator[Engine]:
    """The engine of a choice; its resources, and the number of threads, are released at the end.

    Args:
        choice: which engine.
        tell: called with what a user should know, such as that clients could not be stacked, or a worker died.
    """
    _keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(choice.threads)
    match choice.engine:
        case "sequential":
            engine = Sequential(choice.kernels)
        case "vectorised":
            engine = Vectorised(choice.kernels, tell)
        case "workers":
            engine = Workers(choice.kernels, choice.workers, tell)
        case "ray":
            from fedshift.engines.ray_actors import RayActors

            engine = RayActors(
                choice.kernels,
                choice.workers,
                min(choice.workers or cores(), cores()),
                choice.gpus,
                choice.address,
                tell,
            )
    try:
        yield engine
    finally:
        engine.close()
        torch.set_num_threads(before)


def _keep_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have none
        for parameter, value in _KEEP.items():
            mallopt(parameter, value)
