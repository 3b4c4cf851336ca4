"""Protocols: how a data set becomes a federation, and so which numbers are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedshift.catalogue import Fraction, ProperFraction, Spec, setting
from fedshift.core.streams import Streams
from fedshift.data.dataset import DomainData
from fedshift.data.federation import Client, Environment, Federation, Samples
from fedshift.data.inputs import Inputs
from fedshift.errors import FedshiftError, UnknownNameError


@dataclass(frozen=True, kw_only=True)
class Protocol(Spec):
    """A way to judge: who trains on what, and what is held out.

    Attributes:
        test_label: what the accuracy on ``test`` environments is called.
        validation_label: likewise for ``validation`` environments.
    """

    test_label: ClassVar[str]
    validation_label: ClassVar[str]

    def federate(self, data: DomainData, inputs: Inputs, streams: Streams) -> Federation:
        """Divide a data set among clients and environments."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class LeaveOneDomainOut(Protocol):
    """Each domain but one is a client; the held-out domain, whole, is the target (FedSR, Sec. 4.2).

    Every source domain keeps a part for validation, on which alone hyper-parameters and rounds may be chosen.
    """

    test_label: ClassVar[str] = "target"
    validation_label: ClassVar[str] = "source"

    hold_out: str = setting(help='the domain held out; a list or "all" makes a run for each')
    validation: ProperFraction = setting(0.1, help="part of each source domain held out", source="FedSR, Sec. 4.2")

    def federate(self, data: DomainData, inputs: Inputs, streams: Streams) -> Federation:
        """Sources are clients; the target belongs to nobody."""
        if self.hold_out not in data.domains:
            raise UnknownNameError("domain to hold out", self.hold_out, data.domains)
        if len(data.domains) < 2:
            raise FedshiftError("Leaving one domain out needs at least two domains.")
        held_out = split(data, (self.validation,), streams)[0]
        clients: list[Client] = []
        environments: list[Environment] = []
        for index, name in enumerate(data.domains):
            inside = data.domain == index
            if name == self.hold_out:
                environments.append(Environment(name, "test", None, take(data, inside)))
                continue
            client = Client(len(clients), name, take(data, inside & ~held_out))
            clients.append(client)
            environments.append(Environment(name, "validation", client.id, take(data, inside & held_out)))
        return Federation(tuple(clients), tuple(environments), data.classes, inputs)


@dataclass(frozen=True, kw_only=True)
class InDomain(Protocol):
    """Each domain is a client and is scored on its own held-out samples (FedCiR, FRAug)."""

    test_label: ClassVar[str] = "test"
    validation_label: ClassVar[str] = "validation"

    test: ProperFraction = setting(0.2, help="part of each domain that is scored")
    validation: ProperFraction = setting(0.1, help="part of each domain that a selection may look at")
    fraction: Fraction = setting(1.0, help="part of the remaining samples that clients train on")

    def federate(self, data: DomainData, inputs: Inputs, streams: Streams) -> Federation:
        """Every domain is a client with validation and test environments of its own."""
        if self.test + self.validation >= 1:
            raise FedshiftError("protocol.test + protocol.validation must leave samples to train on.")
        kept = self.fraction * (1 - self.test - self.validation)
        tested, validated, trained = split(data, (self.test, self.validation, kept), streams)
        if self.fraction == 1:
            trained = ~(tested | validated)  # what rounding left over belongs to training
        clients, environments = [], []
        for index, name in enumerate(data.domains):
            inside = data.domain == index
            clients.append(Client(index, name, take(data, inside & trained)))
            environments += [
                Environment(name, "validation", index, take(data, inside & validated)),
                Environment(name, "test", index, take(data, inside & tested)),
            ]
        return Federation(tuple(clients), tuple(environments), data.classes, inputs)


def take(data: DomainData, mask: Tensor) -> Samples:
    """The samples where the mask (N,) is true."""
    return Samples(data.x[mask], data.y[mask])


def split(data: DomainData, fractions: tuple[float, ...], streams: Streams) -> list[Tensor]:
    """Disjoint masks (N,) with the given fractions of every class in every domain; groups stay whole.

    A mask gets at least one image of a class while one is left for the rest.
    """
    groups, first = _first_of_each(data.group)
    stratum = data.y[first] * len(data.domains) + data.domain[first]
    masks = [torch.zeros(len(data.y), dtype=torch.bool) for _ in fractions]
    for value in torch.unique(stratum).tolist():
        members = groups[stratum == value]
        order = members[streams.permutation(len(members), "split", value)]
        start = 0
        for mask, fraction in zip(masks, fractions, strict=True):
            stop = start + max(round(fraction * len(order)), min(1, len(order) - start - 1))
            mask.logical_or_(torch.isin(data.group, order[start:stop]))
            start = stop
    return masks


def _first_of_each(group: Tensor) -> tuple[Tensor, Tensor]:
    """Each group and the index of its first sample."""
    groups, inverse = torch.unique(group, return_inverse=True)
    first = torch.full((len(groups),), len(group))
    return groups, first.scatter_reduce(0, inverse, torch.arange(len(group)), "amin")
