"""The content of a run folder's JSON files and lines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    RootModel,
    field_validator,
    model_validator,
)

from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.core.contract import Part
from fedshift.core.messages import TYPES
from fedshift.core.method import make_parts
from fedshift.core.metrics import ACCURACY
from fedshift.core.model import ModelBuilder
from fedshift.core.preparation_part import preparation_part
from fedshift.core.setup import Setup
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.manifest import checked, parsed, read_lines
from fedshift.streams import Streams

MOST_NAMED = 20  # clients that an error lists

Record = dict[str, Any]  # a line of records.jsonl
Share = Annotated[float, Ge(0), Le(1)]
Size = Annotated[int, Ge(0), Le(2**63 - 1)]
Few = Annotated[int, Ge(0), Le(10**6)]  # what a display counts individually


class File(BaseModel):
    """A JSON file, or a line of it; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, ser_json_inf_nan="constants")  # a loss may be infinite


class Machine(File):
    """The versions and the machine that a run was made with."""

    python: str
    platform: str
    processor: str
    accelerator: str | None
    cores: PositiveInt | None
    threads: PositiveInt
    packages: dict[str, str]


class Identity(File):
    """run.json: the identity of a folder's run; written when it is created and never changed."""

    format: Literal[4] = 4  # raised whenever a file changes its meaning
    fingerprint: str  # a digest of all that decides the result
    series: str  # the same without seed and held-out domain
    table: str  # a digest of experiment.toml without [run]
    contents: dict[str, str]  # digests of what decides the result and is not a setting; see :attr:`Experiment.contents`
    plugins: dict[str, str]  # digests of the plugins, by path
    host: Literal["simulation", "federation"] = "simulation"  # the kind of host, which alone can resume it
    environment: Machine  # the versions and the machine at its start


class Scores(File):
    """Scores on an environment: of a model, or the means over clients' models."""

    environment: str
    role: Literal["validation", "test"]
    model: Literal["global", "own", "unseen"]
    accuracy: Share
    loss: float
    metrics: dict[str, Share | None] = {}
    intervals: dict[
        str, Annotated[list[Share], Field(min_length=2, max_length=2)]
    ] = {}  # within the environment; see fedshift.core.uncertainty


class Scored(Scores):
    """A row of a record; see :class:`Evaluation`."""

    models: PositiveInt
    n: PositiveInt | None = None  # if a site withholds it
    undefined: dict[str, str] = {}  # why a metric is, of some of the models or of all


class Unscored(File):
    """A gap in a federation's record: a site, or one of its environments, and the reason."""

    site: str
    environment: str = ""
    why: str


class Recorded(File):
    """A line of records.jsonl: an evaluation, and the bytes, loss terms and missing answers up to it."""

    position: NonNegativeInt
    stage: str
    round: PositiveInt
    bytes_down: NonNegativeInt
    bytes_up: NonNegativeInt
    bytes_telemetry: NonNegativeInt
    terms: dict[str, dict[str, float]]
    missing: list[dict[str, Any]] = []
    unscored: list[Unscored] = []
    only_in_simulation: bool = False
    ended: str = ""  # where its stage ended early, and why
    select: str = ACCURACY
    last: PositiveInt = 1  # evaluations whose mean is the result
    environments: list[Scored]

    @field_validator("environments")
    @classmethod
    def _of_both_roles(cls, rows: list[Scored]) -> list[Scored]:
        if lacking := sorted({"validation", "test"} - {row.role for row in rows}):
            raise ValueError(f"no environment has the role '{lacking[0]}'")
        return rows

    @model_validator(mode="after")
    def _check_same_metrics(self) -> Self:
        names = self.environments[0].metrics.keys()
        if self.select not in (ACCURACY, *names) or any(row.metrics.keys() != names for row in self.environments):
            raise ValueError("its rows differ in their metrics, or lack the metric that selects")
        return self


class Blueprint(BaseModel):
    """data.json: what modules are rebuilt from in addition to the experiment, and the numbers of samples."""

    model_config = ConfigDict(frozen=True)

    shape: tuple[Size, ...]  # of a sample as the data set stores it
    classes: tuple[str, ...]
    clients: dict[int, str]  # names, by id
    inputs: Inputs  # how samples become inputs of a network
    environments: tuple[str, ...] = ()  # the names of the environments that clients trained in
    type: str = ""  # of a stored sample, such as "uint8"; empty where only sites know it, as are the fields below
    columns: tuple[str, ...] = ()  # of rows of a table
    domains: dict[int, str] = Field(default_factory=dict)  # each client's domain, by id
    samples: dict[int, Size] = Field(default_factory=dict)  # each client's number of training samples, by id
    # by a client's id, its training samples per class
    trained_classes: dict[int, tuple[Size, ...]] = Field(default_factory=dict)
    # by role and environment, the scored samples per class
    scored_classes: dict[str, dict[str, tuple[Size, ...]]] = Field(default_factory=dict)
    # training samples of each client whose samples a single client contains; empty if not pooled
    pooled: tuple[Size, ...] = ()
    oddity: str | None = None  # the most serious finding about the data, a sentence; None: nothing
    norm_factor: float | None = None  # in a federation, how much larger than usual an answer may be

    @classmethod
    def of(cls, federated: FederatedData) -> Self:
        clients = [(client.id, client.name, client.domain) for client in federated.clients]
        return cls(
            shape=federated.shape,
            classes=federated.classes,
            clients={id: name for id, name, _ in clients},
            inputs=federated.inputs,
            environments=federated.train_environments,
            type=federated.type,
            columns=federated.columns,
            domains={id: domain for id, _, domain in clients},
            samples=dict(zip(federated.ids, federated.trained_sizes, strict=True)),
            trained_classes=federated.trained_classes(),
            scored_classes=federated.scored_classes(),
            pooled=federated.pooled_sizes,
            oddity=federated.oddity or None,
        )

    def modules(self, experiment: Experiment) -> tuple[ModelBuilder, dict[str, Part]]:
        counts = len(self.classes), Streams(experiment.seed), len(self.clients), len(self.environments)
        model = ModelBuilder(experiment.model, self.inputs.shape(self.shape), *counts)
        return model, make_parts(experiment.method, model) | preparation_part(self.inputs.preparation)

    def setup(self, experiment: Experiment, run: str, device: torch.device) -> Setup:
        """What coordinator and sites of an experiment agree on; ``run`` is its name in orders."""
        model, parts = self.modules(experiment)
        train = experiment.train.pooling(self.pooled)
        agreed = train, experiment.evaluate, model.streams, device, self.classes, self.inputs.preparation, self.columns
        return Setup(run, experiment.method, model, parts, *agreed)

    def client(self, requested: int | str) -> int:
        """The id of a client of that name or id; raises a FedshiftError unless exactly one has it."""
        found = [id for id, name in self.clients.items() if requested == (name if isinstance(requested, str) else id)]
        if len(found) == 1:
            return found[0]
        if found:
            raise FedshiftError(
                f"{len(found)} clients are called '{requested}'; give an id: {_listed(map(str, found))}."
            )
        raise FedshiftError(f"There is no client {requested!r}; clients by id: {self.named(self.clients)}.")

    def named(self, ids: Iterable[int]) -> str:
        """Clients for a message: id and name of each."""
        return _listed(f"{id} ('{self.clients[id]}')" for id in ids)


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    more = f", ... ({len(every)} in all)" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


class MessageCount(File):
    """The number of messages, their clients, and their rounds; the latter two as ranges."""

    messages: Size
    clients: str
    rounds: str


class CountedTensor(MessageCount):
    """A tensor of messages: its type and its largest shape."""

    type: Literal[*TYPES]  # type: ignore[valid-type]  # mypy reads no unpacked names
    shape: list[Size]
    varies: bool = False


class CountedDirection(MessageCount):
    """All messages of an exchange in one direction: their bytes, and the largest message's."""

    bytes: Size
    largest: Size
    tensors: dict[str, CountedTensor]


class MessageTable(RootModel[dict[str, dict[Literal["down", "up", "telemetry"], CountedDirection]]]):
    """messages.json: all messages, by exchange and direction."""


class Timed(File):
    """A line of timings.jsonl: the time of consecutive rounds."""

    start: NonNegativeInt  # rounds done before
    stop: NonNegativeInt  # rounds done after
    seconds: Annotated[float, Ge(0)]  # of training, on the clock
    evaluation: Annotated[float, Ge(0)]  # seconds of scoring, on the clock
    together: PositiveInt  # how many runs advanced in that time
    engine: str
    # the peak so far (:func:`fedshift.memory.peak`), in bytes, of the process and so of all its runs
    memory: Size | None = None
    notes: list[str] = []  # messages of the engine, such as that a worker process died


def read_records(path: Path, data: bytes) -> list[Record]:
    """The records in ``data``, the part of a file that a manifest names."""
    read_lines(path, data, Recorded)
    return [json.loads(line) for line in data.splitlines()]


def whole_records(data: bytes) -> list[Record]:
    """The records of lines that no manifest lists yet, up to the first that is incomplete or not a record."""
    found: list[Record] = []
    for line in data.split(b"\n")[:-1]:
        try:
            record = parsed(line)
            checked(record, Recorded)
        except ValueError:
            break
        found.append(record)
    return found


# The machine --------------------------------------------------------------------------------------


def environment() -> Machine:
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's; a GPU that is not used stays so
    packages = ("fedshift", "torch", "numpy", "safetensors", "transformers", "kornia")
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        accelerator=torch.cuda.get_device_name() if used else None,
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        packages={package: _installed(package) for package in packages},
    )


@cache  # a package's metadata are read whole each time
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
