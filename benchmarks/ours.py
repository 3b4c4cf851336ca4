"""fedshift's side of the benchmarks: experiments, made data as registered data sets, and opening an engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import fedshift
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column, Preparation
from fedshift.datasets.dataset import Dataset
from fedshift.engines.choice import open_engine
from fedshift.engines.engine import Engine
from fedshift.experiments import Experiment
from fedshift.runs.events import RunEvents
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from fedshift.spec import Count
from fedshift.streams import Streams
from fedshift.study.grid import expand
from workloads import LR, MOMENTUM, WORKLOADS, Workload

ENDLESS = 10**4  # rounds; no benchmark gets there


@fedshift.DATASETS.register("benchmark")
class Made(Dataset):
    """A workload's data: each client a domain, all of its samples for training; one more of each is there to score."""

    workload: str = fedshift.setting(help="the workload's name")

    def domain_names(self) -> tuple[str, ...]:
        """One a client."""
        return tuple(f"{client:03d}" for client in range(WORKLOADS[self.workload].clients))

    def load(self, streams: Streams) -> DomainData:
        """The tensors that everybody gets."""
        work = WORKLOADS[self.workload]
        x, y = work.data()
        domain = torch.arange(work.clients)
        trained = domain.repeat_interleave(work.samples)
        return DomainData(
            x=torch.cat([x.flatten(0, 1), x[:, 0]]),
            y=torch.cat([y.flatten(), y[:, 0]]),
            domain=torch.cat([trained, domain]),
            domains=self.domain_names(),
            classes=tuple(f"class {label}" for label in range(work.classes)),
            group=torch.arange(len(trained) + len(domain)),
            environment=torch.cat([torch.zeros_like(trained), torch.ones_like(domain)]),
            environments=("trained", "scored"),
            columns=tuple(Column(f"column {place}") for place in range(25)) if self._is_table else (),
        )

    def inputs(self) -> Inputs:
        """Numbers of a table are standardised."""
        return Inputs(preparation=Preparation("pooled") if self._is_table else None)

    @property
    def _is_table(self) -> bool:
        return self.workload == "table"


@fedshift.DATASETS.register("benchmark-many")
class Many(Dataset):
    """One domain of small images, enough for many clients: class patterns under noise."""

    clients: Count = fedshift.setting(help="how many clients the samples are for")
    trained: Count = fedshift.setting(20, help="training samples of each")
    scored: Count = fedshift.setting(2, help="samples of each that are scored")

    def domain_names(self) -> tuple[str, ...]:
        """One domain, which a partition divides."""
        return ("all",)

    def load(self, streams: Streams) -> DomainData:
        """uint8 images (1, 14, 14) of ten classes, mapped from a file that nobody else sees."""
        each = self.trained + self.scored
        total = self.clients * each
        generator = streams.generator("benchmark")
        y = torch.arange(total) % 10
        pattern = torch.randint(0, 128, (10, 1, 14, 14), generator=generator, dtype=torch.uint8)
        with tempfile.NamedTemporaryFile() as file:
            for labels in y.split(10_000):
                noise = torch.randint(0, 128, (len(labels), 1, 14, 14), generator=generator, dtype=torch.uint8)
                file.write((noise + pattern[labels]).numpy().tobytes())
            file.flush()
            x = torch.from_file(file.name, size=total * 196, dtype=torch.uint8)
        return DomainData(
            x=x.view(total, 1, 14, 14),
            y=y,
            domain=torch.zeros(total, dtype=torch.int64),
            domains=self.domain_names(),
            classes=tuple(str(label) for label in range(10)),
            group=torch.arange(total),
            environment=(torch.arange(total) >= self.clients * self.trained).long(),
            environments=("trained", "scored"),
        )


def experiment(workload: Workload, precision: str, engine: str, threads: int, device: str = "cpu") -> Experiment:
    """FedAvg on a workload; the threads are those of an engine of one process."""
    alone = engine in ("sequential", "vectorised")
    train = {"steps": workload.steps, "batch": workload.batch, "participation": workload.participation}
    return _experiment(
        data={"name": "benchmark", "workload": workload.name},
        model=workload.fedshift,
        method={"name": "fedavg", "optimiser_state": "fresh"},
        train=train | {"precision": precision},
        run={"engine": engine, "device": device} | ({"threads": threads} if alone else {}),
    )


def many(clients: int, cohort: int, method: str, engine: str) -> Experiment:
    """A method with a small network (batch norm included), and many clients of 20 images each."""
    return _experiment(
        data={"name": "benchmark-many", "clients": clients},
        partition={"name": "iid", "clients": clients},
        model={"name": "cnn", "channels": [8, 16], "dim": 32, "norm": "batch"},
        method={"name": method},
        train={"steps": 5, "batch": 10, "participation": cohort / clients},
        run={"engine": engine},
    )


def _experiment(train: Mapping[str, Any], run: Mapping[str, Any], **tables: Mapping[str, Any]) -> Experiment:
    document = {
        "name": "benchmark",
        "protocol": {"name": "personal-under-shift", "validation": "scored"},
        "train": {"rounds": ENDLESS, "lr": LR, "momentum": MOMENTUM, **train},
        "evaluate": {"every": ENDLESS},
        "run": {"device": "cpu", **run},
        **tables,
    }
    (made,) = expand(document)
    return made


class Steps(RunEvents):
    """Counts steps."""

    taken = 0

    def steps(self, count: int) -> None:
        """Count the steps of a client or of the server."""
        self.taken += count


@dataclass
class Opened:
    """A simulation and the engine that carries it."""

    simulation: Simulation
    engine: Engine
    about: str

    def round(self) -> int:
        """Carry out a round; how many local steps its clients took."""
        heard = Steps()
        for error in advance([self.simulation], self.engine, {self.simulation: heard}).values():
            raise error
        return heard.taken

    def evaluate(self) -> None:
        """Score every environment."""
        self.simulation.record(self.simulation.coordinator.schedule[0], self.engine)

    def note(self) -> str:
        """Which engine it is."""
        return self.about


@contextmanager
def opened(simulation: Simulation) -> Iterator[Opened]:
    """Open the engine that the simulation's experiment asks for; 'auto' is decided first."""
    told: list[str] = []
    choice = simulation.choice(told.append)
    with open_engine(choice) as engine:
        yield Opened(simulation, engine, str(choice))
