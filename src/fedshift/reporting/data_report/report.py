"""A report on a data set and on how it is divided: counts, values, duplicates, drift, and what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedshift.errors import FedshiftError, MissingExtraError
from fedshift.federation.domains import DomainData
from fedshift.federation.federation import Federation
from fedshift.federation.inputs import Inputs
from fedshift.reporting.data_report.drift import feature_drift, label_drift
from fedshift.reporting.data_report.duplicates import Tell, find_duplicates, silent
from fedshift.reporting.data_report.examples import draw_examples
from fedshift.reporting.data_report.findings import find
from fedshift.reporting.data_report.inspection import ClientCounts, Inspection, Scored, SiteCounts
from fedshift.reporting.data_report.page import as_table, as_text, body, write_data_page
from fedshift.reporting.data_report.roles import Roles
from fedshift.reporting.data_report.values import column_names, kind_of, measure
from fedshift.streams import Streams


@dataclass(frozen=True, repr=False, eq=False)
class DataReport(Inspection):
    """An inspection of a data set that prints as tables and findings, and writes its page."""

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
        streams, kind = Streams(seed), kind_of(data, inputs)
        roles = Roles.of(federation, len(data.y))
        looked = roles.judged(test=test)
        sites, clients = _sites(data, federation, roles), _clients(data, federation, roles)
        divided = any(site.clients > 1 for site in sites)
        features, labels, client_labels, untested = None, None, None, list[str]()
        duplicates = find_duplicates(data, roles, tell)
        try:
            labels = label_drift(data, data.domain.where(looked, -1), data.domains)
            if divided:
                client_labels = label_drift(data, roles.client, [client.name for client in clients])
            features = feature_drift(data, looked, kind, streams, tell)
        except MissingExtraError as error:
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
            labels=labels,
            client_labels=client_labels,
            examples=draw_examples(data, looked, streams),
            notes=tuple(dict.fromkeys([*data.notes, *federation.notes, *untested, *notes])),
            data=data,
            inputs=inputs,
        )
        return replace(report, findings=tuple(find(report, roles, refused)))

    def table(self) -> dict[str, Any]:
        """What was found, as JSON can hold it."""
        return as_table(self)

    def report(self, path: str | Path) -> Path:
        """Write the page, with samples to look at, into a folder that is made if need be, and return its path.

        Raises:
            FedshiftError: it cannot be written.
        """
        return write_data_page(self, Path(path))

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
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
