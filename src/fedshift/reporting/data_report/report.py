"""What is found of a data set and of how it is divided: counts, values, duplicates, drift, and what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedshift.errors import FedshiftError
from fedshift.federation.domains import DomainData
from fedshift.federation.federation import Federation
from fedshift.federation.inputs import Inputs
from fedshift.reporting.data_report.drift import Drift, feature_drift, label_drift
from fedshift.reporting.data_report.duplicates import Duplicates, Tell, find_duplicates, silent
from fedshift.reporting.data_report.examples import Examples, draw_examples
from fedshift.reporting.data_report.roles import Roles
from fedshift.reporting.data_report.values import Kind, Values, column_names, kind_of, measure
from fedshift.streams import Streams


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
class DataReport:
    """What a data set holds, who has it and what is odd about it; prints as tables and findings.

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
        labels: how sites differ in their classes.
        client_labels: how clients differ in their classes, where a site is divided among several; else None.
        examples: samples to look at.
        findings: what is odd, and what to do.
        notes: what else a reader must know.
        data: the samples.
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
    labels: Drift
    client_labels: Drift | None
    examples: tuple[Examples, ...]
    notes: tuple[str, ...]
    data: DomainData
    inputs: Inputs
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(
        cls,
        data: DomainData,
        federation: Federation,
        inputs: Inputs,
        *,
        seed: int,
        batch: int,
        experiment: str = "",
        dataset: str = "",
        test: bool = False,
        refused: Sequence[FedshiftError] = (),
        notes: Sequence[str] = (),
        tell: Tell = silent,
    ) -> DataReport:
        """Look at a data set and at what a protocol made of it.

        Args:
            data: the samples, on the CPU.
            federation: who trains and what is scored, as views of these samples.
            inputs: how samples become inputs.
            seed: from which examples, and what is compared, are drawn.
            batch: how many samples a training batch has.
            experiment: the experiment's name.
            dataset: the data set's name.
            test: whether test samples are judged and shown.
            refused: why a run of the experiment would not begin.
            notes: what else a reader must know.
            tell: hears how far the work is: what is done, samples done, samples in all.
        """
        from fedshift.reporting.data_report.findings import find

        streams, kind = Streams(seed), kind_of(data, inputs)
        roles = Roles.of(federation, len(data.y))
        looked = roles.judged(test=test)
        sites, clients = _sites(data, federation, roles), _clients(data, federation, roles)
        divided = any(site.clients > 1 for site in sites)
        features, untested = None, list[str]()
        duplicates = find_duplicates(data, roles, tell)
        try:
            features = feature_drift(data, looked, kind, streams, tell)
        except FedshiftError as error:  # an extra that is not installed
            untested = [f"Sites were not compared. {error}"]
        report = cls(
            experiment=experiment,
            dataset=dataset,
            kind=kind,
            shape=tuple(data.x.shape[1:]),
            dtype=str(data.x.dtype).removeprefix("torch."),
            bytes=data.x.nbytes,
            originals=len(torch.unique(data.group)),
            classes=data.classes,
            sites=sites,
            clients=clients,
            batch=batch,
            scored=_scored(federation),
            trained=tuple(roles.counts(data.y, len(data.classes))["training"]),
            tested=test,
            columns=column_names(data, kind),
            values=measure(data, looked, kind, tell),
            duplicates=duplicates,
            features=features,
            labels=label_drift(data, data.domain.where(looked, -1), data.domains),
            client_labels=label_drift(data, roles.client, [client.name for client in clients]) if divided else None,
            examples=draw_examples(data, looked, streams),
            notes=tuple(dict.fromkeys([*data.notes, *federation.notes, *untested, *notes])),
            data=data,
            inputs=inputs,
        )
        return replace(report, findings=tuple(find(report, roles, refused)))

    def table(self) -> dict[str, Any]:
        """What was found, as JSON can hold it."""
        from fedshift.reporting.data_report.page import as_table

        return as_table(self)

    def report(self, path: str | Path) -> Path:
        """Write the page, with samples to look at, into a folder that is made if need be, and return its path.

        Raises:
            FedshiftError: it cannot be written.
        """
        from fedshift.reporting.data_report.page import write_data_page

        return write_data_page(self, Path(path))

    def __str__(self) -> str:
        from fedshift.reporting.data_report.page import as_text

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedshift.reporting.data_report.page import body

        return body(self)


def _sites(data: DomainData, federation: Federation, roles: Roles) -> tuple[SiteCounts, ...]:
    classes, sites = len(data.classes), len(data.domains)
    table = torch.bincount(data.domain * classes + data.y, minlength=sites * classes).view(sites, classes)
    nobody = ~torch.stack([*roles.masks.values()]).any(dim=0)
    by_role = {
        role: torch.bincount(data.domain[mask], minlength=sites).tolist()
        for role, mask in {**roles.masks, "nobody": nobody}.items()
    }
    trains = Counter(client.domain for client in federation.clients)
    return tuple(
        SiteCounts(
            name, trains[name], {role: counts[site] for role, counts in by_role.items()}, tuple(table[site].tolist())
        )
        for site, name in enumerate(data.domains)
    )


def _clients(data: DomainData, federation: Federation, roles: Roles) -> tuple[ClientCounts, ...]:
    classes, held = len(data.classes), roles.masks["training"]
    counts = torch.bincount(roles.client[held] * classes + data.y[held], minlength=len(federation.clients) * classes)
    return tuple(
        ClientCounts(client.name, client.domain, tuple(own.tolist()))
        for client, own in zip(federation.clients, counts.view(-1, classes), strict=True)
    )


def _scored(federation: Federation) -> tuple[Scored, ...]:
    found: dict[tuple[str, str], list[tuple[bool, int]]] = {}
    for each in federation.environments:
        found.setdefault((each.role, each.name), []).append((each.client is not None, len(each.samples)))
    scored = []
    for (role, name), own in sorted(found.items(), key=lambda item: item[0][0] == "test"):
        sizes = [size for _, size in own]
        scored.append(Scored(name, role, sum(trains for trains, _ in own), sum(sizes), min(sizes), max(sizes)))
    return tuple(scored)
