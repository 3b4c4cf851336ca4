"""Which engine carries out a run, with how many processes, threads and which kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge

from fedshift.engines.engine import Engine
from fedshift.engines.kernels import Kernels
from fedshift.engines.machine import keep_memory
from fedshift.settings.spec import Processors

Name = Literal["sequential", "vectorised", "workers"]


@dataclass(frozen=True)
class Choice:
    """An engine and how it runs.

    Attributes:
        engine: its name.
        workers: processes of the engine 'workers'; 1 for the others.
        threads: threads of each process.
        kernels: how modules are prepared.
    """

    engine: Name
    workers: Annotated[Processors, Ge(1)]
    threads: Annotated[Processors, Ge(1)]
    kernels: Kernels

    @property
    def together(self) -> int:
        """How many runs of a table advance together if nobody says: as many as there is gain from."""
        return {"sequential": 1, "workers": self.workers, "vectorised": 16}[self.engine]

    def __str__(self) -> str:
        """In a few words, for people."""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''} of"
        who = workers if self.engine == "workers" else f"{self.engine} on"
        layout = ", channels last" if self.kernels.channels_last else ""
        linear = ", oneDNN for linear layers" if self.kernels.linear == "onednn" else ""
        return f"{who} {self.threads} thread{'s' if self.threads > 1 else ''}{layout}{linear}"

    def table(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Self:
        """The inverse of :meth:`table`."""
        return cls(**{**table, "kernels": Kernels(**table["kernels"])})


@contextmanager
def open_engine(choice: Choice, tell: Callable[[str], None] = lambda text: None) -> Iterator[Engine]:
    """The engine of a choice; what it holds, and the number of threads, are given back at the end.

    Args:
        choice: which engine.
        tell: hears what a user should know, such as that clients could not be stacked, or a worker died.
    """
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(choice.threads)
    engine = _make(choice, tell)
    try:
        yield engine
    finally:
        engine.close()
        torch.set_num_threads(before)


def _make(choice: Choice, tell: Callable[[str], None]) -> Engine:
    from fedshift.engines.sequential import Sequential
    from fedshift.engines.vectorised import Vectorised
    from fedshift.engines.workers import Workers

    match choice.engine:
        case "sequential":
            return Sequential(choice.kernels)
        case "vectorised":
            return Vectorised(choice.kernels, tell)
        case "workers":
            return Workers(choice.kernels, choice.workers, tell)
