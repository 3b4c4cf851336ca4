"""A report on a data set and on how it is divided: counts, values, duplicates, drift, and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.errors import FedshiftError, MissingExtraError
from fedshift.reporting.data_report import data_page
from fedshift.reporting.data_report.drift import Difference, feature_drift
from fedshift.reporting.data_report.duplicates import Duplicates, Tell, find_duplicates, silent
from fedshift.reporting.data_report.findings import Finding, find
from fedshift.reporting.data_report.roles import Roles
from fedshift.reporting.data_report.values import Kind, Values, column_names, kind_of, measure
from fedshift.streams import Streams


@dataclass(frozen=True)
class SiteCounts:
    """The samples of a site (a domain of the data).

    Attributes:
        name: the site's.
        samples: how many it has.
        clients: how many clients train on samples of it.
        roles: how many samples are of training, validation and test, and of "nobody".
        classes: how many samples it has of each class, whatever they are used for.
    """

    name: str
    samples: int
    clients: int
    roles: dict[str, int]
    classes: dict[str, int]


@dataclass(frozen=True)
class ClientCounts:
    """The training samples of a client.

    Attributes:
        name: the client's; the site's where the site is one client.
        site: the site's.
        samples: how many it trains on.
        classes: how many samples of each class.
    """

    name: str
    site: str
    samples: int
    classes: dict[str, int]


@dataclass(frozen=True)
class EnvironmentCounts:
    """The samples that models are scored on under one name.

    Attributes:
        name: the environment's.
        role: "validation" or "test".
        clients: how many clients are scored on samples of their own; 0: it is of a client that never trains.
        samples: how many samples there are.
    """

    name: str
    role: str
    clients: int
    samples: int


@dataclass(frozen=True, repr=False, eq=False)
class DataReport:
    """A look at a data set and at how it is divided, which prints as tables and findings and writes its page.

    Attributes:
        experiment: the experiment's name.
        dataset: the data set's name in the catalogue.
        kind: what a sample is: "images", "signals", "rows" (of numbers), "text", "tokens" or "arrays".
        originals: how many groups of samples made from one original there are, which a split keeps whole.
        sites: the sites (domains).
        clients: who trains.
        scored: what models are scored on.
        trained: how many samples of each class somebody trains on.
        tested: whether test samples are judged as well; else only their labels and digests are read.
        columns: the names of the columns of the values.
        values: ranges and moments of the inputs.
        duplicates: equal samples.
        features: how well sites are told apart; None: scikit-learn is not installed.
        notes: what else a reader must know.
        data: the samples.
        findings: what is odd, and what to do.
    """

    experiment: str
    dataset: str
    kind: Kind
    originals: int
    sites: tuple[SiteCounts, ...]
    clients: tuple[ClientCounts, ...]
    scored: tuple[EnvironmentCounts, ...]
    trained: dict[str, int]
    tested: bool
    columns: tuple[str, ...]
    values: Values
    duplicates: tuple[Duplicates, ...]
    features: tuple[Difference, ...] | None
    notes: tuple[str, ...]
    data: DomainData
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(
        cls,
        data: DomainData,
        federation: FederatedData,
        inputs: Inputs,
        *,
        seed: int,
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
            seed: from which the samples that are compared are drawn.
            experiment: the experiment's name.
            dataset: the data set's name.
            test: whether test samples are judged.
            refused: why a run of the experiment would not begin.
            notes: what else a reader must know.
            tell: takes the progress: what is done, samples done, samples in all.
        """
        kind, roles = kind_of(data, inputs), Roles.of(federation, len(data.y))
        looked = roles.judged(test=test)
        notes = [*data.notes, *federation.notes, *notes]
        duplicates = find_duplicates(data, roles, tell)
        features = None
        try:
            features = feature_drift(data, looked, kind, Streams(seed), tell)
        except MissingExtraError as error:
            notes.append(f"Sites were not compared. {error}")
        report = cls(
            experiment=experiment,
            dataset=dataset,
            kind=kind,
            originals=len(torch.unique(data.group)),
            sites=_sites(data, federation, roles),
            clients=_clients(data, federation, roles),
            scored=_scored(federation),
            trained=_by_class(data, roles.masks["training"]),
            tested=test,
            columns=column_names(data, kind),
            values=measure(data, looked, kind, tell),
            duplicates=duplicates,
            features=features,
            notes=tuple(dict.fromkeys(notes)),
            data=data,
        )
        return replace(report, findings=tuple(find(report, roles, refused)))

    def table(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return data_page.as_table(self)

    def report(self, path: str | Path) -> Path:
        """Write the page to a file, or as data.html into a folder, and return its path.

        Raises:
            FedshiftError: it cannot be written.
        """
        return data_page.write_data_page(self, Path(path))

    def __str__(self) -> str:
        return data_page.as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return data_page.body(self)


def _by_class(data: DomainData, mask: Tensor) -> dict[str, int]:
    counts = torch.bincount(data.y[mask], minlength=len(data.classes))
    return dict(zip(data.classes, counts.tolist(), strict=True))


def _sites(data: DomainData, federation: FederatedData, roles: Roles) -> tuple[SiteCounts, ...]:
    masks = {**roles.masks, "nobody": ~torch.stack([*roles.masks.values()]).any(dim=0)}
    trains, found = Counter(client.domain for client in federation.clients), []
    for site, name in enumerate(data.domains):
        own = data.domain == site
        by_role = {role: int((mask & own).sum()) for role, mask in masks.items()}
        found.append(SiteCounts(name, int(own.sum()), trains[name], by_role, _by_class(data, own)))
    return tuple(found)


def _clients(data: DomainData, federation: FederatedData, roles: Roles) -> tuple[ClientCounts, ...]:
    found = []
    for place, client in enumerate(federation.clients):
        own = roles.client == place
        found.append(ClientCounts(client.name, client.domain, int(own.sum()), _by_class(data, own)))
    return tuple(found)


def _scored(federation: FederatedData) -> tuple[EnvironmentCounts, ...]:
    found: dict[tuple[str, str], list[tuple[bool, int]]] = {}
    for each in federation.environments:
        found.setdefault((each.role, each.name), []).append((each.client is not None, len(each.samples)))
    ordered = sorted(found.items(), key=lambda item: item[0][0] == "test")
    return tuple(
        EnvironmentCounts(name, role, sum(trains for trains, _ in own), sum(size for _, size in own))
        for (role, name), own in ordered
    )
