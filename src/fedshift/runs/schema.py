"""The content of a run folder's JSON files and lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    RootModel,
    StringConstraints,
    field_validator,
    model_validator,
)

from fedshift.core.metrics import ACCURACY
from fedshift.manifest import checked, parsed, read_lines
from fedshift.spec import RunName

Record = dict[str, Any]  # a line of records.jsonl
Share = Annotated[float, Ge(0), Le(1)]
Id = Annotated[str, StringConstraints(pattern=r"^\d{1,9}$")]  # a client's, as JSON has it
Size = Annotated[int, Ge(0), Le(2**63 - 1)]
Few = Annotated[int, Ge(0), Le(10**6)]  # what a display counts one by one


class File(BaseModel):
    """A JSON file, or a line of one; what else stands there does no harm."""

    model_config = ConfigDict(frozen=True, strict=True)


class Identity(File):
    """run.json: which run a folder is of; written when it is made and never changed.

    Attributes:
        format: the version of the folder's layout.
        fingerprint: a digest of all that decides the result.
        series: as the fingerprint, but for seed and held-out domain.
        table: a digest of experiment.toml without [run].
        contents: digests of what decides the result and is no setting; see :attr:`Experiment.contents`.
        plugins: digests of the plugins, by path.
        host: what carries it out, which alone can go on with it.
    """

    format: Literal[3] = 3  # raised whenever a file changes its meaning
    fingerprint: str
    series: str
    table: str
    contents: dict[str, str]
    plugins: dict[str, str]
    host: Literal["simulation", "federation"] = "simulation"


class Scored(File):
    """A row of a record: a model's score on an environment; see :class:`Evaluation`."""

    environment: str
    role: Literal["validation", "test"]
    model: Literal["global", "own", "unseen"]
    models: PositiveInt
    accuracy: Share
    loss: float
    n: PositiveInt | None = None  # where a site does not tell
    metrics: dict[str, Share | None] = {}
    undefined: dict[str, str] = {}  # why a metric is, of some of the models or of all


class Unscored(File):
    """What a record of a federation lacks: a site, or one of its environments, and why."""

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
    environments: list[Scored]

    @field_validator("environments")
    @classmethod
    def _of_both_roles(cls, rows: list[Scored]) -> list[Scored]:
        if lacking := sorted({"validation", "test"} - {row.role for row in rows}):
            raise ValueError(f"no environment has the role '{lacking[0]}'")
        return rows

    @model_validator(mode="after")
    def _measured_alike(self) -> Self:
        names = self.environments[0].metrics.keys()
        if self.select not in (ACCURACY, *names) or any(row.metrics.keys() != names for row in self.environments):
            raise ValueError("its rows have not the same metrics, or lack the one that selects")
        return self


class Machine(File):
    """environment.json: the versions and the machine that a run was made with."""

    python: str
    platform: str
    processor: str
    accelerator: str | None
    cores: PositiveInt | None
    threads: PositiveInt
    packages: dict[str, str]


class DataFacts(File):
    """data.json: what modules are made from, and each client's domain and number of training samples, by id."""

    shape: list[Size]
    classes: list[str]
    clients: dict[Id, str]
    inputs: dict[str, Any]
    environments: list[str]
    type: str
    columns: list[str]
    domains: dict[Id, str]
    samples: dict[Id, Size]


class MessageCount(File):
    """How many messages, of which clients, in which rounds; the latter two as ranges."""

    messages: Size
    clients: str
    rounds: str


class CountedTensor(MessageCount):
    """A tensor of messages: its type and its largest shape."""

    type: str
    shape: list[Size]
    varies: bool = False


class CountedDirection(MessageCount):
    """All messages of an exchange in one direction: their bytes, and those of the largest."""

    bytes: Size
    largest: Size
    tensors: dict[str, CountedTensor]


class MessageTable(RootModel[dict[str, dict[Literal["down", "up", "telemetry"], CountedDirection]]]):
    """messages.json: what crossed the wire, by exchange and direction."""


class Timed(File):
    """A line of timings.jsonl: what a stretch of rounds took.

    Attributes:
        start: rounds done before.
        stop: rounds done after.
        seconds: of training, on the clock.
        evaluation: seconds of scoring, on the clock.
        together: how many runs went on in that time.
        engine: in words.
        notes: what the engine said meanwhile, such as that a worker process died.
    """

    start: NonNegativeInt
    stop: NonNegativeInt
    seconds: Annotated[float, Ge(0)]
    evaluation: Annotated[float, Ge(0)]
    together: PositiveInt
    engine: str
    notes: list[str] = []


class Summary(File):
    """summary.json, for readers: what each selection rule picks, and notes.

    Attributes:
        selected: by rule: the round, its means over test and validation, and whether it looks at the test data.
        notes: what a reader of the results must know.
        ended: where stages ended early and why, by the stage's name.
    """

    selected: dict[str, dict[str, Any]]
    notes: list[str]
    ended: dict[str, str] = {}


class GridRun(File):
    """A run of a comparison: its folder's name, its fingerprint, digests of its plugins, its experiment as a table."""

    folder: RunName
    fingerprint: str
    plugins: dict[str, str]
    experiment: dict[str, Any]


class Grid(File):
    """grid-*.json: every run of a comparison, in order."""

    format: Literal[2] = 2
    runs: list[GridRun]


def read_records(path: Path, data: bytes) -> list[Record]:
    """The records of a file, of which ``data`` is the part that a manifest names.

    Raises:
        DamagedError: a line is no record.
    """
    read_lines(path, data, Recorded)
    return [json.loads(line) for line in data.splitlines()]


def whole_records(data: bytes) -> list[Record]:
    """The records of lines that no manifest has yet, up to the first that a crash cut off or that is none."""
    found: list[Record] = []
    for line in data.split(b"\n")[:-1]:
        try:
            record = parsed(line)
            checked(record, Recorded)
        except ValueError:
            break
        found.append(record)
    return found
