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
# Users limit the threads of numerical programs with these; fedshift uses them as the total number of cores.
LIMITS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS")
# mallopt's parameters and values (malloc.h of the GNU C library), in bytes: from how much unused memory at the end of
# the heap some is released, and from what size (this is the maximum) a tensor gets separate pages, cleared each time.
_KEEP = {-1: 2**28, -3: 2**25}


@dataclass(frozen=True)
class Choice:
    """An engine and how it runs."""

    engine: Name
    workers: Processors  # processes of the engine 'workers'; actors of 'ray', 0: as many as fit; 1 for the others
    threads: Annotated[Processors, Ge(1)]  # threads of each process
    kernels: Kernels  # how modules are prepared
    gpus: Probability = 0.0  # the part of a GPU that an actor of 'ray' uses
    address: str = "auto"  # the cluster of 'ray'

    @property
    def together(self) -> int:
        """The default number of a table's runs that advance together."""
        return {"sequential": 1, "workers": self.workers, "vectorised": 16, "ray": 1}[self.engine]

    def __str__(self) -> str:
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''} of"
        runners = {"workers": workers, "ray": f"{self.workers or 'all'} Ray actors of"}.get(
            self.engine, f"{self.engine} on"
        )
        layout = ", channels last" if self.kernels.channels_last else ""
        linear = ", oneDNN for linear layers" if self.kernels.linear == "onednn" else ""
        return f"{runners} {self.threads} thread{'s' if self.threads > 1 else ''}{layout}{linear}"

    def table(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Self:
        return cls(**{**table, "kernels": Kernels(**table["kernels"])})


def requested_engine(setup: Setup, options: RunOptions) -> Choice:
    """The engine that options request, without timing: channels last for convolutions; a FedshiftError if absent."""
    kernels = Kernels(channels_last=has_layer(setup, nn.Conv2d))
    if options.engine == "workers":
        if setup.device.type != "cpu" or not can_fork():
            raise FedshiftError(
                f"run.engine = 'workers' forks processes on a CPU, which is not possible on '{setup.device}' of this "
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
    """Number of cores for threads or processes, by affinity, container quota, LOKY_MAX_CPU_COUNT and LIMITS."""
    import joblib

    here: int = joblib.cpu_count()
    return min([here, *(limit for name in LIMITS if (limit := _limit(name)))])


def _limit(name: str) -> int:
    value = os.environ.get(name, "").partition(",")[0].strip()
    return int(value) if value.isascii() and value.isdecimal() else 0  # as OpenMP ignores what is not a number


@contextmanager
def open_engine(choice: Choice, notify: Callable[[str], None] = lambda text: None) -> Iterator[Engine]:
    """The engine of a choice, whose resources and number of threads are released at the end.

    ``notify`` is called with messages for the user, such as that clients could not be stacked, or a worker died.
    """
    _keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(choice.threads)
    match choice.engine:
        case "sequential":
            engine = Sequential(choice.kernels)
        case "vectorised":
            engine = Vectorised(choice.kernels, notify)
        case "workers":
            engine = Workers(choice.kernels, choice.workers, notify)
        case "ray":
            from fedshift.engines.ray_actors import RayActors

            engine = RayActors(
                choice.kernels,
                choice.workers,
                min(choice.workers or cores(), cores()),
                choice.gpus,
                choice.address,
                notify,
            )
    try:
        yield engine
    finally:
        engine.close()
        torch.set_num_threads(before)


def _keep_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries lack mallopt
        for parameter, value in _KEEP.items():
            mallopt(parameter, value)
