"""Protocols: how a data set becomes a federation, and so which numbers are reported.

A protocol takes clients from a partition (by default each domain is a client) and gives each environment a name and a
role. A role reports, for each environment, the mean over clients, and then the mean and the worst over environments:
in-domain figures are means over domains of means over clients; all-clients figures, with a single environment, means
over clients. A client with samples of several domains has an environment for each.

*Choices.* A split is stratified by client, domain and class, and keeps images from one original on one side. A smaller
training set is a prefix of a larger one, and held-out samples stay the same. A fraction counts what validation and test
leave: of 5,000 samples with half for the test and a tenth for validation, 600 are ``fraction = 0.3``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Interval, MinLen
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import UNASSIGNED, Partition, split
from fedshift.clients.samples import Client, Environment, Kind, Lazy, Role, Samples, environments_of, views
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.spec import Fraction, ProperFraction, Spec, WholeNumber, setting
from fedshift.streams import Streams

HELD_OUT = "held-out"
EXCLUDE = "protocol.exclude_validation=true"
ALL_CLIENTS = "all clients"  # the common name of their environments


class Protocol(Spec):
    """An evaluation protocol: which clients train on which samples, and what is held out.

    Attributes:
        question: the question that it answers.
        test_label: the name of the accuracy on ``test`` environments.
        validation_label: likewise for ``validation`` environments.
    """

    section: ClassVar[str] = "protocol"
    question: ClassVar[str] = ""
    test_label: ClassVar[str]
    validation_label: ClassVar[str]

    @property
    def own_models(self) -> bool:
        """Whether clients are scored with their models; if not, with the model of a client that never trained."""
        return True

    @property
    def caution(self) -> str:
        """A note for readers on the limits of its numbers, if any."""
        return ""

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        """Divide a data set among clients and environments."""
        raise NotImplementedError

    def check_choosing(self) -> None:
        """Raise an error if its validation environments share samples with the test."""

    def folds(self, domains: Sequence[str]) -> list[Self]:
        """The protocol for every fold of a cross-validation over the domains that train."""
        raise FedshiftError(
            "Cross-validation holds out domains that train, each in turn: --set "
            "protocol.name=leave-one-domain-out, or tune without it."
        )


@dataclass(frozen=True)
class Division:
    """The assignment of samples to holders."""

    data: DomainData  # the samples
    holder: Tensor  # each sample's holder, (N,), int64, from 0; -1: unassigned
    domains: tuple[int, ...]  # the index of each holder's home domain
    names: tuple[str, ...]  # the holders' names: the domain's, with the part's number if the domain has several
    untrained: Collection[int] = ()  # the indices of domains in which no client trains

    def __len__(self) -> int:
        return len(self.names)

    def without(self, untrained: Collection[int]) -> Division:
        """The holders of other domains, renumbered in order; samples of these domains become unassigned."""
        kept = [holder for holder, domain in enumerate(self.domains) if domain not in untrained]
        number = torch.full((len(self) + 1,), UNASSIGNED)  # index -1 reads the last entry
        number[kept] = torch.arange(len(kept))
        domains, names = tuple(self.domains[n] for n in kept), tuple(self.names[n] for n in kept)
        return replace(self, holder=number[self.holder], domains=domains, names=names, untrained=untrained)

    @cached_property
    def cells(self) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
        """The (holder, domain of the samples) of each sample, (N,), -1: unassigned; and all of these, in order."""
        held, count = self.holder >= 0, len(self.data.domains)
        pairs, own = torch.unique(self.holder[held] * count + self.data.domain[held], return_inverse=True)
        cell = torch.full_like(self.holder, UNASSIGNED)
        cell[held] = own
        return cell, tuple(divmod(pair, count) for pair in pairs.tolist())

    @cached_property
    def trained_in(self) -> tuple[Tensor, tuple[str, ...]]:
        """The environment in which each sample was collected, (N,), and the names of the clients' environments."""
        environment, names = self.data.train_environment, self.data.train_environments
        if environment is not None:
            return environment, names
        kept = [domain for domain in range(len(self.data.domains)) if domain not in self.untrained]
        number = torch.zeros(len(self.data.domains), dtype=torch.int64)
        number[kept] = torch.arange(len(kept))
        return number[self.data.domain], tuple(self.data.domains[domain] for domain in kept)

    @cached_property
    def whole(self) -> Samples:
        return Samples(self.data.x, self.data.y, None, self.trained_in[0], self.data.group)

    def views(self, mask: Tensor) -> Lazy[Samples]:
        """Each holder's samples where the mask (N,) is true."""
        return views(self.whole, self.holder.where(mask, UNASSIGNED), len(self))

    def kind(self, role: Role, name: str, mask: Tensor) -> Kind:
        """An environment per holder under one name: its samples where the mask (N,) is true."""
        return Kind(role, range(len(self)), (name,) * len(self), self.views(mask))

    def by_domain(self, role: Role, mask: Tensor, own: bool = True) -> Kind:
        """Environments of each holder for each domain of its samples, by the domain's name."""
        cell, cells = self.cells
        names = tuple(self.data.domains[domain] for _, domain in cells)
        samples = views(self.whole, cell.where(mask, UNASSIGNED), len(cells))
        return Kind(role, tuple(holder for holder, _ in cells), names, samples, own)

    def federated(
        self, train: Tensor, environments: Sequence[Environment], inputs: Inputs, *notes: str
    ) -> FederatedData:
        """The holders as clients that train on their samples where the mask (N,) is true."""
        own, homes = self.views(train), [self.data.domains[domain] for domain in self.domains]
        clients = Lazy(lambda id: Client(id, self.names[id], homes[id], own[id]), range(len(self)))
        return FederatedData(clients, environments, self.data.classes, inputs, notes, self.trained_in[1])


def divide(data: DomainData, partition: Partition, streams: Streams, untrained: Collection[int] = ()) -> Division:
    """The (domain, part) pairs that contain samples, in order, including those of domains in which no client trains.

    A FedshiftError if the partition assigns no sample, or not one part to each sample.
    """
    home, parts = partition.assign(data, streams, untrained)
    if parts.shape != data.y.shape or not (parts >= 0).any():
        raise FedshiftError(f"{type(partition).__name__} must give each sample a part, some not -1 (unassigned).")
    held = parts >= 0
    most = int(parts.max()) + 1
    pairs, own = torch.unique(home[held] * most + parts[held], return_inverse=True)
    holder = torch.full_like(parts, UNASSIGNED)
    holder[held] = own
    domains, numbers = pairs // most, pairs % most
    divided = torch.bincount(domains)[domains] > 1
    names = tuple(
        f"{data.domains[domain]}/{part}" if several else data.domains[domain]
        for domain, part, several in zip(domains.tolist(), numbers.tolist(), divided.tolist(), strict=True)
    )
    return Division(data, holder, tuple(domains.tolist()), names)


class PartlyTrained(Protocol):
    """A protocol whose clients may train on a part of what is not held out."""

    fraction: Fraction | Annotated[dict[str, Fraction], MinLen(1)] = setting(
        1.0,
        help="part of the remaining samples that clients train on; or a table of parts by domain, 1 for domains that "
        "it omits",
    )
    per_class: WholeNumber = setting(
        0, help="maximum samples of each class that a client trains on, of that part; 0: no limit"
    )

    def split_off(self, data: DomainData, sides: tuple[float, ...], streams: Streams, holder: Tensor) -> list[Tensor]:
        """Masks (N,) of held-out samples, and last of training samples; UnknownNameError for an unknown domain."""
        table = self.fraction if isinstance(self.fraction, dict) else dict.fromkeys(data.domains, self.fraction)
        for name in table:
            if name not in data.domains:
                raise UnknownNameError("domain in protocol.fraction", name, data.domains)
        shares = [table.get(name, 1.0) for name in data.domains]
        # Domains that train on everything get the rest from rounding.
        parts = {share: 1.0 if share == 1 else share * (1 - sum(sides)) for share in shares}
        splits = {share: split(data, (*sides, part), streams, holder, self.per_class) for share, part in parts.items()}
        trained = [splits[share][-1] & (data.domain == domain) for domain, share in enumerate(shares)]
        return [*splits[shares[0]][:-1], torch.stack(trained).any(dim=0)]


class LeaveOneDomainOut(PartlyTrained):
    """The clients of all domains but one train; the held-out domain is the target (FedSR, Sec. 4.2).

    Every client keeps a part for validation, the only samples that choose hyper-parameters and rounds. It scores the
    model that is scored on the target, since what suits personalised models may ruin that. Another domain may be held
    out for validation instead: what suits the domains that train need not suit a new one.
    """

    question: ClassVar[str] = "How good are models on a domain in which no client trains?"
    test_label: ClassVar[str] = "target"
    validation_label: ClassVar[str] = "source"

    hold_out: str = setting(help='the domain held out; a list or "all" starts a run for each')
    validation: ProperFraction = setting(0.1, help="part of each source client held out", source="FedSR, Sec. 4.2")
    validate_on: str = setting(
        "",
        help="another domain that does not train, and validates in place of these parts; empty: none",
        source="Gulrajani and Lopez-Paz, ICLR 2021, Sec. 2.2",
    )
    scored: Literal["unseen", "clients"] = setting(
        "unseen",
        help="unseen: the whole target, with the model of a client that never trained; clients: each client's model on "
        "the target's samples of the classes it trains on",
        source="FedSR, Sec. 4.2: unseen; FedPIN, App. E.1 (PACS): clients",
    )

    @property
    def own_models(self) -> bool:
        return self.scored == "clients"

    def folds(self, domains: Sequence[str]) -> list[Self]:
        others = [name for name in domains if name != self.hold_out]
        if len(others) < 2:
            raise FedshiftError(f"Cross-validation needs two domains that train; there is {len(others)}.")
        return [self.replace(validate_on=name) for name in others]

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        _refuse_environments(self, data)
        roles: dict[str, Role] = {self.hold_out: "test"}
        if self.validate_on == self.hold_out:
            raise FedshiftError(f"protocol.validate_on = '{self.validate_on}' is the held-out domain; give another.")
        if self.validate_on:
            roles[self.validate_on] = "validation"
        for name in roles:
            if name not in data.domains:
                raise UnknownNameError("domain to hold out", name, data.domains)
        if len(data.domains) <= len(roles):
            raise FedshiftError(
                f"No domain is left to train: {', '.join(roles)} held out, of {len(data.domains)} in all."
            )
        untrained = {data.domains.index(name): role for name, role in roles.items()}
        division = divide(data, partition, streams, untrained)
        held_out, trained = self.split_off(data, (self.validation,), streams, division.cells[0])
        sources = division.without(untrained)
        kinds = [] if self.validate_on else [sources.by_domain("validation", held_out, self.own_models)]
        if self.own_models:
            kinds += [self._of_clients(sources, trained, domain, role) for domain, role in sorted(untrained.items())]
            return sources.federated(trained, environments_of(kinds), inputs)
        unseen = [
            Environment(data.domains[domain], role, None, sources.whole.subset(data.domain == domain))
            for domain, role in sorted(untrained.items())
        ]
        environments = environments_of(kinds, unseen)
        for kind in kinds:  # the target keeps its place among the sources in the order of the domains
            before, last = sum(sources.domains[client] < min(untrained) for client in kind.clients), len(kind.names)
            environments = environments.among((*range(before), last, *range(before, last)))
        return sources.federated(trained, environments, inputs)

    def _of_clients(self, sources: Division, trained: Tensor, domain: int, role: Role) -> Kind:
        """A domain's samples for each client's model, of the classes that the client trains on."""
        known = torch.zeros(len(sources), len(sources.data.classes), dtype=torch.bool)
        seen = (sources.holder >= 0) & trained
        known[sources.holder[seen], sources.data.y[seen]] = True
        unseen = sources.whole.subset(sources.data.domain == domain)
        labels, clients = unseen.y, range(len(sources))
        of_known = Lazy(lambda client: unseen.subset(known[client][labels]), clients)
        return Kind(role, clients, (sources.data.domains[domain],) * len(sources), of_known)


class InDomain(PartlyTrained):
    """Each client is scored on its held-out samples; a domain's figure is its clients' mean (FedCiR, FRAug)."""

    question: ClassVar[str] = "How good are models on new samples of the domains that clients train on?"
    test_label: ClassVar[str] = "test"
    validation_label: ClassVar[str] = "validation"

    test: ProperFraction = setting(0.2, help="part of each client that is scored")
    validation: ProperFraction = setting(0.1, help="part of each client that a selection may inspect")

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        _refuse_environments(self, data)
        if self.test + self.validation >= 1:
            raise FedshiftError("protocol.test + protocol.validation must leave samples to train on.")
        division = divide(data, partition, streams)
        sides = (self.test, self.validation)
        tested, validated, trained = self.split_off(data, sides, streams, division.cells[0])
        kinds = self.kind(division, "validation", validated), self.kind(division, "test", tested)
        return division.federated(trained, environments_of(kinds), inputs)

    def kind(self, division: Division, role: Role, mask: Tensor) -> Kind:
        """The environments of a role: of each client and domain."""
        return division.by_domain(role, mask)


class AllClients(InDomain):
    """As in-domain, but every client counts equally, whatever its domain (Client2Vec)."""

    question: ClassVar[str] = "How good are models on new samples of each client, all clients counted equally?"
    test_label: ClassVar[str] = "all clients"

    def kind(self, division: Division, role: Role, mask: Tensor) -> Kind:
        return division.kind(role, ALL_CLIENTS, mask)


class TrainOnAll(Protocol):
    """Clients train on all their samples except a part for validation if requested; there is no test.

    For a model that is deployed, and evaluated elsewhere.
    """

    question: ClassVar[str] = "How well do models fit the available samples?"
    test_label: ClassVar[str] = "as validation"
    validation_label: ClassVar[str] = "validation"

    validation: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.0, help="part of each client that a selection may inspect; 0: it inspects the training samples"
    )

    @property
    def caution(self) -> str:
        what = "the part for validation" if self.validation else "the training samples"
        return f"No sample was left for a test: all figures are of {what}."

    def check_choosing(self) -> None:
        raise FedshiftError(
            "protocol.name = 'train-on-all' has no test samples, so settings that are chosen on its validation "
            "cannot be judged: --set protocol.name=in-domain"
        )

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        _refuse_environments(self, data)
        division = divide(data, partition, streams)
        nobody = torch.zeros_like(data.y, dtype=torch.bool)
        held_out = split(data, (self.validation,), streams, division.cells[0])[0] if self.validation else nobody
        scored = held_out if self.validation else ~held_out
        kinds = division.by_domain("validation", scored), division.by_domain("test", scored)
        return division.federated(~held_out, environments_of(kinds), inputs, self.caution)


class PersonalUnderShift(Protocol):
    """Each client trains on its distribution and is scored under shifts of it (FedPIN, App. E.1).

    Needs data with custom environments: clients train on the first; each other environment is a test environment of
    every client.
    """

    question: ClassVar[str] = "How good are clients' models where the distribution has shifted away from training?"
    test_label: ClassVar[str] = "test"
    validation_label: ClassVar[str] = "validation"

    validation: str = setting(
        "p=0.1",
        help="the environment that a selection may inspect; or 'held-out': a part of each client's training samples, "
        "which shows no shift",
        source="FedPIN, App. E.3: p=0.1",
    )
    exclude_validation: bool = setting(
        False,
        help="whether that environment is excluded from the test, with originals that no test contains",
        source="FedPIN, App. E.3: false; its validation is one of the tests",
    )
    held_out: ProperFraction = setting(
        0.1, help="part for validation: of each client's training samples if 'held-out', else of its test samples"
    )

    @property
    def caution(self) -> str:
        if self.validation == HELD_OUT or self.exclude_validation:
            return ""
        return (
            f"Validation inspects '{self.validation}', which is a test environment as well (as in FedPIN): "
            f"{EXCLUDE} excludes it from the test; protocol.validation = '{HELD_OUT}' inspects no shift."
        )

    def check_choosing(self) -> None:
        if self.validation != HELD_OUT and not self.exclude_validation:
            raise FedshiftError(
                f"protocol.validation = '{self.validation}' is a test environment as well, and neither settings nor "
                f"the end of training (train.patience) must be chosen on the test: --set {EXCLUDE} excludes it from "
                f"the test, and --set protocol.validation={HELD_OUT} inspects training samples"
            )

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        if data.environment is None or len(data.environments) < 2:
            raise FedshiftError(
                "personal-under-shift needs data with custom environments (colored-mnist or waterbird, "
                "state); for others: --set protocol.name=in-domain or leave-one-domain-out"
            )
        shifts = data.environments[1:]
        if self.validation not in (*shifts, HELD_OUT):
            raise UnknownNameError("environment in protocol.validation", self.validation, [*shifts, HELD_OUT])
        if self.exclude_validation and shifts == (self.validation,):
            raise FedshiftError(f"{EXCLUDE} leaves nothing to test: these data have one test environment.")
        division = divide(data, partition, streams)
        trained, validated, tested = self._masks(data, division.cells[0], streams)
        kinds = [division.kind("validation", self.validation, validated)]
        kinds += [
            division.kind("test", shift, tested & (data.environment == number))
            for number, shift in enumerate(shifts, 1)
            if not (self.exclude_validation and shift == self.validation)
        ]
        notes = filter(None, [self.caution])
        return division.federated(trained, environments_of(kinds), inputs, *notes)

    def _masks(self, data: DomainData, holder: Tensor, streams: Streams) -> tuple[Tensor, Tensor, Tensor]:
        """Masks (N,) of training, validation and all tests, from each sample's holder (N,)."""
        assert data.environment is not None
        native = data.environment == 0
        if self.validation == HELD_OUT:
            held_out = split(data, (self.held_out,), streams, holder.where(native, UNASSIGNED))[0]
            return native & ~held_out, held_out, ~native
        shifted = data.environment == data.environments.index(self.validation)
        if not self.exclude_validation:
            return native, shifted, ~native
        inspected = split(data, (self.held_out,), streams, holder.where(shifted, UNASSIGNED))[0]
        return native, inspected, ~native & ~torch.isin(data.group, data.group[inspected])


def _refuse_environments(protocol: Protocol, data: DomainData) -> None:
    if data.environment is not None:
        raise FedshiftError(
            f"{type(protocol).__name__} creates its own test sets, but these data have custom environments "
            f"({', '.join(data.environments[:4])}, ...): --set protocol.name=personal-under-shift"
        )
