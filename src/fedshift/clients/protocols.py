"""Protocols: how a data set becomes a federation, and so which numbers are reported.

A protocol takes the clients from a partition (each domain one client, by default) and gives each environment a
name and a role. What is reported of a role is, for each environment, the mean over clients, and then the mean and the
worst over environments: so in-domain figures are means over domains of the means over their clients, and all-clients
figures, which have a single environment, means over clients. A client that contains samples of several domains has an
environment for each.

*Choices.* A split is stratified by client, domain and class, and keeps images made from one original on one side
everywhere. Fewer samples to train on are the first of those that more would be, and what is held out stays the same. A
fraction counts of what validation and test leave: of 5,000 samples with half for the test and a tenth for validation,
600 are ``fraction = 0.3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval, MinLen
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import NOBODY, Partition, split
from fedshift.clients.samples import Client, Environment, Kind, Lazy, Role, Samples, environments_of, views
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.spec import Fraction, ProperFraction, Spec, WholeNumber, setting
from fedshift.streams import Streams

HELD_OUT = "held-out"
ALL_CLIENTS = "all clients"  # their environments' one name


class Protocol(Spec):
    """A way to judge: who trains on what, and what is held out.

    Attributes:
        question: what it answers, as a reader would ask.
        test_label: what the accuracy on ``test`` environments is called.
        validation_label: likewise for ``validation`` environments.
    """

    section: ClassVar[str] = "protocol"
    question: ClassVar[str] = ""
    test_label: ClassVar[str]
    validation_label: ClassVar[str]

    @property
    def own_models(self) -> bool:
        """Whether clients are scored with their own models; if not, with that of a client that never trained."""
        return True

    @property
    def caution(self) -> str:
        """What speaks against its own numbers, as a note for readers; empty if nothing does."""
        return ""

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        """Divide a data set among clients and environments."""
        raise NotImplementedError

    def check_choosing(self) -> None:
        """Raise an error if what is chosen on its validation environments would be chosen on samples of the test."""


@dataclass(frozen=True)
class Division:
    """Who contains which samples.

    Attributes:
        data: the samples.
        holder: each sample's holder, (N,), int64, from 0; -1: nobody.
        domains: the index of the domain in which each holder is at home.
        names: the holders' names: the domain's, with the part's number where the domain has several.
        target: the index of the domain in which no client trains; None: there is none.
    """

    data: DomainData
    holder: Tensor
    domains: tuple[int, ...]
    names: tuple[str, ...]
    target: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    def without(self, domain: int) -> Division:
        """The holders of other domains alone, numbered again in order; a domain's samples become nobody's."""
        kept = (torch.tensor(self.domains) != domain).nonzero().flatten()
        number = torch.full((len(self) + 1,), NOBODY)  # the last is where an index of -1 leads
        number[kept] = torch.arange(len(kept))
        holders = kept.tolist()
        domains, names = (tuple(each[n] for n in holders) for each in (self.domains, self.names))
        return replace(self, holder=number[self.holder], domains=domains, names=names, target=domain)

    @cached_property
    def cells(self) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
        """Which (holder, domain of the samples) each sample is of, (N,), -1: nobody's; and all of these, in order."""
        held, count = self.holder >= 0, len(self.data.domains)
        pairs, own = torch.unique(self.holder[held] * count + self.data.domain[held], return_inverse=True)
        cell = torch.full_like(self.holder, NOBODY)
        cell[held] = own
        return cell, tuple(divmod(pair, count) for pair in pairs.tolist())

    @cached_property
    def trained_in(self) -> tuple[Tensor, tuple[str, ...]]:
        """The environment that each sample was collected in, (N,), and the names of those that clients train in."""
        environment, names = self.data.train_environment, self.data.train_environments
        if environment is not None:
            return environment, names
        environment, names = self.data.domain, self.data.domains
        if self.target is not None:  # those behind it move up
            environment = environment - (environment > self.target).long()
            names = names[: self.target] + names[self.target + 1 :]
        return environment, names

    @cached_property
    def whole(self) -> Samples:
        """The pool of all samples."""
        return Samples(self.data.x, self.data.y, None, self.trained_in[0], self.data.group)

    def views(self, mask: Tensor) -> Lazy[Samples]:
        """Each holder's samples where the mask (N,) is true."""
        return views(self.whole, self.holder.where(mask, NOBODY), len(self))

    def kind(self, role: Role, name: str, mask: Tensor) -> Kind:
        """An environment of a name for each holder: its samples where the mask (N,) is true."""
        return Kind(role, range(len(self)), (name,) * len(self), self.views(mask))

    def by_domain(self, role: Role, mask: Tensor, own: bool = True) -> Kind:
        """Environments of each holder for each domain of its samples, by the domain's name; whose model is scored."""
        cell, cells = self.cells
        names = tuple(self.data.domains[domain] for _, domain in cells)
        samples = views(self.whole, cell.where(mask, NOBODY), len(cells))
        return Kind(role, tuple(holder for holder, _ in cells), names, samples, own)

    def federated(
        self, train: Tensor, environments: Sequence[Environment], inputs: Inputs, *notes: str
    ) -> FederatedData:
        """The holders as clients, who train on their samples where the mask (N,) is true."""
        own, homes = self.views(train), [self.data.domains[domain] for domain in self.domains]
        clients = Lazy(lambda id: Client(id, self.names[id], homes[id], own[id]), range(len(self)))
        return FederatedData(clients, environments, self.data.classes, inputs, notes, self.trained_in[1])


def divide(data: DomainData, partition: Partition, streams: Streams, target: int | None = None) -> Division:
    """The (domain, part) pairs that contain samples, in order, including pairs of the target domain.

    Raises:
        FedshiftError: the partition gives no sample to anybody, or not one part for each sample.
    """
    home, parts = partition.assign(data, streams, target)
    if parts.shape != data.y.shape or not (parts >= 0).any():
        raise FedshiftError(f"{type(partition).__name__} must give each sample a part, and some not -1 (nobody).")
    held = parts >= 0
    most = int(parts.max()) + 1
    pairs, own = torch.unique(home[held] * most + parts[held], return_inverse=True)
    holder = torch.full_like(parts, NOBODY)
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
        help="part of the remaining samples that clients train on; or a table of it by domain, and all of those that "
        "it does not name",
    )
    per_class: WholeNumber = setting(
        0, help="samples of each class that a client trains on at most, of that part; 0: no limit"
    )

    def split_off(self, data: DomainData, sides: tuple[float, ...], streams: Streams, holder: Tensor) -> list[Tensor]:
        """Masks (N,) of what is held out, and last that of training.

        Raises:
            UnknownNameError: a fraction is of a domain that there is not.
        """
        table = self.fraction if isinstance(self.fraction, dict) else dict.fromkeys(data.domains, self.fraction)
        for name in table:
            if name not in data.domains:
                raise UnknownNameError("domain in protocol.fraction", name, data.domains)
        shares = [table.get(name, 1.0) for name in data.domains]
        # What rounding leaves over belongs to those who train on all.
        parts = {share: 1.0 if share == 1 else share * (1 - sum(sides)) for share in shares}
        splits = {share: split(data, (*sides, part), streams, holder, self.per_class) for share, part in parts.items()}
        trained = [splits[share][-1] & (data.domain == domain) for domain, share in enumerate(shares)]
        return [*splits[shares[0]][:-1], torch.stack(trained).any(dim=0)]


class LeaveOneDomainOut(PartlyTrained):
    """The clients of all domains but one train; the held-out domain is the target (FedSR, Sec. 4.2).

    Every client keeps a part for validation, on which alone hyper-parameters and rounds may be chosen. The model
    that is scored on it is the one that is scored on the target: what suits clients' own may ruin it.
    """

    question: ClassVar[str] = "How good are models on a domain in which no client trains?"
    test_label: ClassVar[str] = "target"
    validation_label: ClassVar[str] = "source"

    hold_out: str = setting(help='the domain held out; a list or "all" makes a run for each')
    validation: ProperFraction = setting(0.1, help="part of each source client held out", source="FedSR, Sec. 4.2")
    scored: Literal["unseen", "clients"] = setting(
        "unseen",
        help="unseen: the whole target, with the model of a client that never trained; clients: each client, with its "
        "own model, on the target's samples of the classes it trains on",
        source="FedSR, Sec. 4.2: unseen; FedPIN, App. E.1 (PACS): clients",
    )

    @property
    def own_models(self) -> bool:
        """Only where clients are scored on the target."""
        return self.scored == "clients"

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        """Sources are clients; the target belongs to nobody."""
        _refuse_environments(self, data)
        if self.hold_out not in data.domains:
            raise UnknownNameError("domain to hold out", self.hold_out, data.domains)
        if len(data.domains) < 2:
            raise FedshiftError("Leaving one domain out needs at least two domains.")
        target = data.domains.index(self.hold_out)
        division = divide(data, partition, streams, target)
        held_out, trained = self.split_off(data, (self.validation,), streams, division.cells[0])
        sources = division.without(target)
        validation = sources.by_domain("validation", held_out, self.own_models)
        unseen = sources.whole.subset(data.domain == target)
        if self.scored == "clients":
            known = torch.zeros(len(sources), len(data.classes), dtype=torch.bool)
            seen = (sources.holder >= 0) & trained
            known[sources.holder[seen], data.y[seen]] = True
            labels = unseen.y
            of_known = Lazy(lambda client: unseen.subset(known[client][labels]), range(len(sources)))
            test = Kind("test", range(len(sources)), (self.hold_out,) * len(sources), of_known)
            environments = environments_of((validation, test))
        else:
            environments = environments_of((validation,), (Environment(self.hold_out, "test", None, unseen),))
            before, last = sum(sources.domains[client] < target for client in validation.clients), len(validation.names)
            # The target stands among the sources in the order of the domains.
            environments = environments.among((*range(before), last, *range(before, last)))
        return sources.federated(trained, environments, inputs)


class InDomain(PartlyTrained):
    """Each client is scored on its held-out samples; a domain's figure is its clients' mean (FedCiR, FRAug)."""

    question: ClassVar[str] = "How good are models on new samples of the domains that clients train on?"
    test_label: ClassVar[str] = "test"
    validation_label: ClassVar[str] = "validation"

    test: ProperFraction = setting(0.2, help="part of each client that is scored")
    validation: ProperFraction = setting(0.1, help="part of each client that a selection may inspect")

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        """Every client has validation and test separate environments."""
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
        """One environment of each client, under one name for all."""
        return division.kind(role, ALL_CLIENTS, mask)


class TrainOnAll(Protocol):
    """Clients train on all that they have, but for a part for validation if requested; nothing is kept for a test.

    For a model that is to be used, and that is judged elsewhere.
    """

    question: ClassVar[str] = "How well do models fit the samples that there are?"
    test_label: ClassVar[str] = "as validation"
    validation_label: ClassVar[str] = "validation"

    validation: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.0, help="part of each client that a selection may inspect; 0: it inspects what is trained on"
    )

    @property
    def caution(self) -> str:
        """That there is no test."""
        what = "the part for validation" if self.validation else "the samples that were trained on"
        return f"No sample was left for a test: all figures are of {what}."

    def check_choosing(self) -> None:
        """Raise an error, since there is no test apart from validation."""
        raise FedshiftError(
            "protocol.name = 'train-on-all' has no samples for a test, so settings that are chosen on its validation "
            "cannot be judged: --set protocol.name=in-domain"
        )

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        """Every client is scored on its part for validation, or on what it trains on."""
        _refuse_environments(self, data)
        division = divide(data, partition, streams)
        nobody = torch.zeros_like(data.y, dtype=torch.bool)
        held_out = split(data, (self.validation,), streams, division.cells[0])[0] if self.validation else nobody
        scored = held_out if self.validation else ~held_out
        kinds = division.by_domain("validation", scored), division.by_domain("test", scored)
        return division.federated(~held_out, environments_of(kinds), inputs, self.caution)


class PersonalUnderShift(Protocol):
    """Each client trains on its own distribution and is scored where that has shifted (FedPIN, App. E.1).

    Needs data that bring their own environments: clients train on the first; every other one is a test environment of
    every client.
    """

    question: ClassVar[str] = "How good are clients' models where the distribution has shifted away from their own?"
    test_label: ClassVar[str] = "test"
    validation_label: ClassVar[str] = "validation"

    validation: str = setting(
        "p=0.1",
        help="the environment that a selection may inspect; or 'held-out': a part of each client's training samples, "
        "which shows no shift",
        source="FedPIN, App. E.3: p=0.1",
    )
    apart: bool = setting(
        False,
        help="whether that environment is no test environment, and shows originals that no test shows",
        source="FedPIN, App. E.3: false; its validation is one of the tests",
    )
    held_out: ProperFraction = setting(
        0.1, help="part for validation: of each client's training samples if 'held-out', of its test's if separately"
    )

    @property
    def caution(self) -> str:
        """That validation inspects a test environment, if so."""
        if self.validation == HELD_OUT or self.apart:
            return ""
        return (
            f"Validation inspects '{self.validation}', which is a test environment as well (as in FedPIN): "
            f"protocol.apart = true leaves it out of the test; protocol.validation = '{HELD_OUT}' inspects no shift."
        )

    def check_choosing(self) -> None:
        """Raise an error if validation is on a test environment."""
        if self.validation != HELD_OUT and not self.apart:
            raise FedshiftError(
                f"protocol.validation = '{self.validation}' is a test environment as well, and neither settings nor "
                "the end of training (train.patience) must be chosen on the test: --set protocol.apart=true leaves it "
                f"out of the test, and --set protocol.validation={HELD_OUT} inspects training samples"
            )

    def federate(self, data: DomainData, partition: Partition, inputs: Inputs, streams: Streams) -> FederatedData:
        """Every client has a test environment for each shift."""
        if data.environment is None or len(data.environments) < 2:
            raise FedshiftError(
                "personal-under-shift needs data that bring their own environments (colored-mnist or waterbird, "
                "state); for others: --set protocol.name=in-domain or leave-one-domain-out"
            )
        shifts = data.environments[1:]
        if self.validation not in (*shifts, HELD_OUT):
            raise UnknownNameError("environment in protocol.validation", self.validation, [*shifts, HELD_OUT])
        if self.apart and shifts == (self.validation,):
            raise FedshiftError("protocol.apart = true leaves nothing to test: these data have one test environment.")
        division = divide(data, partition, streams)
        trained, validated, tested = self._masks(data, division.cells[0], streams)
        kinds = [division.kind("validation", self.validation, validated)]
        kinds += [
            division.kind("test", shift, tested & (data.environment == number))
            for number, shift in enumerate(shifts, 1)
            if not (self.apart and shift == self.validation)
        ]
        notes = filter(None, [self.caution])
        return division.federated(trained, environments_of(kinds), inputs, *notes)

    def _masks(self, data: DomainData, holder: Tensor, streams: Streams) -> tuple[Tensor, Tensor, Tensor]:
        """Masks (N,) of training, validation and all tests; holder: who has each sample, (N,)."""
        assert data.environment is not None
        native = data.environment == 0
        if self.validation == HELD_OUT:
            held_out = split(data, (self.held_out,), streams, holder.where(native, NOBODY))[0]
            return native & ~held_out, held_out, ~native
        shifted = data.environment == data.environments.index(self.validation)
        if not self.apart:
            return native, shifted, ~native
        looked_at = split(data, (self.held_out,), streams, holder.where(shifted, NOBODY))[0]
        return native, looked_at, ~native & ~torch.isin(data.group, data.group[looked_at])


def _refuse_environments(protocol: Protocol, data: DomainData) -> None:
    """A protocol that holds samples out itself takes no data that have done so already."""
    if data.environment is not None:
        raise FedshiftError(
            f"{type(protocol).__name__} holds samples out itself, but these data bring their own environments "
            f"({', '.join(data.environments[:4])}, ...): --set protocol.name=personal-under-shift"
        )
