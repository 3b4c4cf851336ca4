"""A report on a data set and its division: counts, values, duplicates, drift, and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from rich.console import Console
from torch import Tensor

from fedshift.clients.columns import ColumnScore, score_columns
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.oddities import Notify, silent
from fedshift.clients.preparation import Column
from fedshift.errors import FedshiftError, MissingExtraError
from fedshift.reporting.data_report.data_tables import KINDS, ColumnValues, Kind, facts, kind_of, measure, tables
from fedshift.reporting.data_report.drift import Difference, feature_drift
from fedshift.reporting.data_report.duplicates import Duplicates, Roles, by_class, find_duplicates
from fedshift.reporting.data_report.findings import Finding, find
from fedshift.reporting.table import render, write_page_to
from fedshift.streams import Streams
from fedshift.written import printable

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
JUDGED = "Test samples are judged as well, as requested: anyone who chooses by that chooses on the test."
NOT_JUDGED = (
    "Of test samples no more is inspected than how many there are of each class, and whether they are equal to others, "
    "bit by bit."
)


@dataclass(frozen=True)
class SiteCounts:
    """The samples of a site (a domain of the data)."""

    name: str  # the site's
    samples: int  # how many it has
    clients: int  # how many clients train on samples of it
    roles: dict[str, int]  # the number of samples for training, validation and test, and of unused samples
    classes: dict[str, int]  # how many samples it has of each class, whatever they are used for


@dataclass(frozen=True)
class ClientCounts:
    """The training samples of a client."""

    name: str  # the client's name; the site's name if the site is one client
    site: str  # the site's
    samples: int  # how many it trains on
    classes: dict[str, int]  # how many samples of each class


@dataclass(frozen=True)
class EnvironmentCounts:
    """The samples of the environments of one name."""

    name: str  # the environment's
    role: str  # "validation" or "test"
    clients: int  # how many clients are scored on separate samples; 0: it is of a client that never trains
    samples: int  # how many samples there are


@dataclass(frozen=True, repr=False)
class DataReport:
    """A report on a data set and its division; prints as tables and findings, and writes an HTML page.

    Attributes:
        experiment: the experiment's name.
        data: the data set's name in the catalogue.
        kind: the kind of samples: "images", "signals", "rows" (of numbers), "text", "tokens" or "arrays".
        samples: the number of samples.
        shape: the shape of a sample.
        dtype: the type of samples.
        bytes: the size of all samples in memory.
        originals: the number of groups of samples from one original, which a split keeps whole.
        tested: whether test samples are judged as well; otherwise only their labels and digests are read.
        sites: the sites (domains).
        clients: the clients that train.
        scored: the environments.
        trained: the number of training samples of each class.
        batch: the number of samples in a training batch; 0 if unknown.
        values: ranges and moments of the inputs, by column and site.
        alone: for rows of numbers, how well each column alone separates the classes, on training rows.
        duplicates: equal samples.
        features: how well a classifier distinguishes sites; None without scikit-learn.
        refused: why a run of the experiment would be refused; may be empty.
        notes: further notes.
        settled: columns for which settings define the treatment of missing cells.
        findings: problems, with fixes.
    """

    experiment: str
    data: str
    kind: Kind
    samples: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    originals: int
    tested: bool
    sites: tuple[SiteCounts, ...]
    clients: tuple[ClientCounts, ...]
    scored: tuple[EnvironmentCounts, ...]
    trained: dict[str, int]
    batch: int
    values: tuple[ColumnValues, ...]
    alone: tuple[ColumnScore, ...]
    duplicates: tuple[Duplicates, ...]
    features: tuple[Difference, ...] | None
    refused: tuple[str, ...]
    notes: tuple[str, ...]
    settled: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def table(self) -> dict[str, Any]:
        """The report as JSON."""
        return asdict(self)

    def report(self, path: str | Path) -> Path:
        """Write the page to a file, or as data.html into a folder, and return its path.

        Raises:
            FedshiftError: it cannot be written.
        """
        page = render("data.html.jinja", title=f"The data of {self.experiment}", body=Markup(self._repr_html_()))
        return write_page_to(Path(path), "data.html", page)

    def show(self, console: Console) -> None:
        """Print the whole report."""
        found = [f"{number}. {finding}" for number, finding in enumerate(self.findings, 1)]
        heading = f"Found: {len(found)}" if found else "Nothing odd was found."
        console.print(*(f"{name}: {value}" for name, value in facts(self).items()), "", sep="\n", **PLAIN)
        console.print(*(table.rich() for table in tables(self)))
        lines = [heading, *found, *(f"Note: {note}" for note in self.notes)]
        console.print(*map(printable, lines), sep="\n", **PLAIN)

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=120, force_terminal=False, force_jupyter=False, color_system=None)
        with console.capture() as captured:
            self.show(console)
        return captured.get()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return render("data_body.html.jinja", facts=facts(self), report=self, tables=tables(self), kinds=KINDS)


def look_at(
    data: DomainData,
    federation: FederatedData,
    inputs: Inputs,
    *,
    seed: int,
    experiment: str = "",
    dataset: str = "",
    batch: int = 0,
    test: bool = False,
    refused: Sequence[FedshiftError] = (),
    notes: Sequence[str] = (),
    notify: Notify = silent,
) -> DataReport:
    """Inspect a data set and its division by a protocol.

    Args:
        data: the samples, on the CPU.
        federation: the clients and environments, as views of these samples.
        inputs: how samples become inputs.
        seed: the seed of the samples that are compared.
        experiment: the experiment's name.
        dataset: the data set's name.
        batch: the number of samples in a training batch.
        test: whether test samples are judged.
        refused: why a run of the experiment would be refused.
        notes: further notes.
        notify: called with the step, the samples done and all samples.
    """
    kind, roles = kind_of(data, inputs), Roles.of(federation, len(data.y))
    looked = roles.judged(test=test)
    scored = _scored(federation)
    notes = [*data.notes, *federation.notes, *notes]
    duplicates = find_duplicates(data, roles, notify)
    features = None
    try:
        features = feature_drift(data, looked, kind, Streams(seed), notify)
    except MissingExtraError as error:
        notes.append(f"Sites were not compared. {error}")
    if any(each.role == "test" for each in scored):
        notes.append(JUDGED if test else NOT_JUDGED)
    known = {data.domains[number] for number in set(data.domain[looked].tolist())}
    left = known - {name for each in features or () for name in (each.one, each.other)}
    if features is not None and left and len(known) > 1:
        notes.append(
            f"{len(left)} of {len(known)} sites have too few samples of common classes (or too few groups) to be "
            "compared by a classifier."
        )
    report = DataReport(
        experiment=experiment,
        data=dataset,
        kind=kind,
        samples=len(data.y),
        shape=tuple(data.x.shape[1:]),
        dtype=str(data.x.dtype).removeprefix("torch."),
        bytes=data.x.nbytes,
        originals=len(torch.unique(data.group)),
        tested=test,
        sites=_sites(data, federation, roles),
        clients=_clients(data, federation, roles),
        scored=scored,
        trained=by_class(data.y[roles.masks["training"]], data.classes),
        batch=batch,
        values=measure(data, looked, kind, notify),
        alone=_alone(data, roles.masks["training"], seed) if kind == "rows" else (),
        duplicates=duplicates,
        features=features,
        refused=tuple(map(str, refused)),
        notes=tuple(dict.fromkeys(notes)),
        settled=() if inputs.preparation is None else inputs.preparation.settled,
    )
    return replace(report, findings=tuple(find(report)))


def _alone(data: DomainData, trained: Tensor, seed: int) -> tuple[ColumnScore, ...]:
    columns = data.columns or tuple(Column(str(number)) for number in range(data.x.shape[1]))
    rows = trained.nonzero().flatten()
    return score_columns(
        data.x[rows], data.y[rows], data.group[rows], columns, Streams(seed).generator("columns alone")
    )


def _sites(data: DomainData, federation: FederatedData, roles: Roles) -> tuple[SiteCounts, ...]:
    masks = {**roles.masks, "nobody": ~torch.stack([*roles.masks.values()]).any(dim=0)}
    trains, found = Counter(client.domain for client in federation.clients), []
    for site, name in enumerate(data.domains):
        own = data.domain == site
        by_role = {role: int((mask & own).sum()) for role, mask in masks.items()}
        found.append(SiteCounts(name, int(own.sum()), trains[name], by_role, by_class(data.y[own], data.classes)))
    return tuple(found)


def _clients(data: DomainData, federation: FederatedData, roles: Roles) -> tuple[ClientCounts, ...]:
    labels = [data.y[roles.client == place] for place in range(len(federation.clients))]
    return tuple(
        ClientCounts(client.name, client.domain, len(y), by_class(y, data.classes))
        for client, y in zip(federation.clients, labels, strict=True)
    )


def _scored(federation: FederatedData) -> tuple[EnvironmentCounts, ...]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for each in sorted(federation.environments, key=lambda each: each.role == "test"):
        clients, samples = found.get((each.role, each.name), (0, 0))
        found[each.role, each.name] = (clients + (each.client is not None), samples + len(each.samples))
    return tuple(EnvironmentCounts(name, role, *counts) for (role, name), counts in found.items())
