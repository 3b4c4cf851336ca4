"""What is found of a data set and of how it is divided, as numbers, names and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.federation.domains import DomainData
from fedshift.federation.inputs import Inputs
from fedshift.reporting.data_report.drift import Drift
from fedshift.reporting.data_report.duplicates import Duplicates
from fedshift.reporting.data_report.examples import Examples
from fedshift.reporting.data_report.values import Kind, Values


@dataclass(frozen=True)
class Finding:
    """Something odd, and what to do about it.

    Attributes:
        kind: what it is about, such as "duplicates" or "imbalance".
        text: a sentence with numbers.
        remedy: what to do, a sentence or several.
        sites: the sites or clients that it is about; empty: all, or none.
    """

    kind: str
    text: str
    remedy: str
    sites: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"


@dataclass(frozen=True)
class SiteCounts:
    """What a site (a domain of the data) has.

    Attributes:
        name: the site's.
        clients: how many clients train on samples of it.
        roles: how many samples are of training, validation and test, and of "nobody".
        classes: how many samples of each class it has, whatever they are used for.
    """

    name: str
    clients: int
    roles: dict[str, int]
    classes: tuple[int, ...]

    @property
    def samples(self) -> int:
        """All its samples."""
        return sum(self.classes)


@dataclass(frozen=True)
class ClientCounts:
    """What a client trains on.

    Attributes:
        name: the client's; the site's where the site is one client.
        site: the site's.
        classes: how many samples of each class.
    """

    name: str
    site: str
    classes: tuple[int, ...]

    @property
    def samples(self) -> int:
        """All that it trains on."""
        return sum(self.classes)


@dataclass(frozen=True)
class Scored:
    """What models are scored on under one name.

    Attributes:
        name: the environment's.
        role: "validation" or "test".
        clients: how many clients are scored on samples of their own; 0: it is of a client that never trains.
        samples: how many samples there are.
        least: how many of one client, at least.
        most: how many of one client, at most.
    """

    name: str
    role: str
    clients: int
    samples: int
    least: int
    most: int


@dataclass(frozen=True, repr=False, eq=False)
class Inspection:
    """What a data set holds, who has it and what is odd about it.

    Attributes:
        experiment: the experiment's name.
        dataset: the data set's name in the catalogue.
        kind: what a sample is: "images", "signals", "rows" (of numbers), "text", "tokens" or "arrays".
        shape: of one sample.
        dtype: its type, such as "uint8".
        bytes: the inputs' size in memory.
        originals: how many groups of samples made from one original there are, which a split keeps whole.
        classes: the classes' names.
        sites: the sites (domains).
        clients: who trains.
        batch: how many samples a training batch has.
        scored: what models are scored on.
        trained: how many samples of each class somebody trains on.
        tested: whether test samples are judged, and shown, as well; else nothing but their labels and digests is read.
        columns: what the columns of the values are called.
        values: what the inputs look like.
        duplicates: equal samples.
        features: how sites differ in what samples of a class look like; None: it was not tested.
        labels: how sites differ in their classes; None if they were not compared.
        client_labels: how clients differ in their classes, where a site is divided among several; else None.
        examples: samples to look at.
        findings: what is odd, and what to do.
        notes: what else a reader must know.
        data: the samples.
        inputs: how samples become inputs.
    """

    experiment: str
    dataset: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    originals: int
    classes: tuple[str, ...]
    sites: tuple[SiteCounts, ...]
    clients: tuple[ClientCounts, ...]
    batch: int
    scored: tuple[Scored, ...]
    trained: tuple[int, ...]
    tested: bool
    columns: tuple[str, ...]
    values: Values
    duplicates: tuple[Duplicates, ...]
    features: Drift | None
    labels: Drift | None
    client_labels: Drift | None
    examples: tuple[Examples, ...]
    notes: tuple[str, ...]
    data: DomainData
    inputs: Inputs
    findings: tuple[Finding, ...] = ()
