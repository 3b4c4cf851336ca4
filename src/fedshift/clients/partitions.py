"""Partitions: how the domains of a data set are divided among clients.

A protocol's clients are the (domain, part) pairs that contain samples. By default each domain is one client, and
clients differ in their features alone; a partition adds clients, and by labels a label skew (FedCiR, Sec. 6.1; FedPIN's
PACS; Client2Vec's 100 clients of CIFAR-10), or mixes domains (:mod:`fedshift.clients.mixed`).

*Choices.* Originals are divided: samples of one domain from one image (``DomainData.group``) go to one part, by the
label of the first; so equal sizes count originals. Every domain has separate random numbers. Rows are shuffled before
Flower's partitioners, as in its ``FederatedDataset``, because several of them assign blocks in the given order.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.errors import FedshiftError, UnknownNameError, needs
from fedshift.spec import Clients, Positive, Range, Spec, WholeNumber, setting
from fedshift.streams import Key, Streams

UNASSIGNED = -1
MANY_STRATA = 200_000  # (class, client) pairs, for example


@dataclass(frozen=True)
class Originals:
    """The originals of one domain, in the order of their first samples."""

    domain: int  # the domain's index
    name: str
    classes: tuple[str, ...]  # the names of all classes
    y: Tensor  # the label of each original, (U,), int64
    environment: Tensor  # the environment of each original, (U,), int64; 0 without environments

    def __len__(self) -> int:
        return len(self.y)

    def strata(self, inside: Tensor, streams: Streams) -> Tensor:
        """The originals in a mask (U,), one (environment, class) after another, each in random order.

        Assigned in turn, they give parts whose sizes differ by at most one, in total and in each class.
        """
        members = inside.nonzero().flatten()
        stratum = self.environment * len(self.classes) + self.y
        order, _ = shuffled(stratum[members], streams, "partition", self.domain)
        return members[order]


class Partition(Spec):
    """How domains are divided among clients; if each domain is divided separately, override :meth:`divide` alone."""

    section: ClassVar[str] = "partition"

    def assign(self, data: DomainData, streams: Streams, untrained: Collection[int] = ()) -> tuple[Tensor, Tensor]:
        """Assign each sample to a client: the client's home domain, and its part of that.

        Args:
            data: the samples.
            streams: the source of random numbers.
            untrained: the domains in which no client trains, each of whose samples stay together.

        Returns:
            Domains and parts, both (N,), int64, from 0; a part of -1: unassigned.

        Raises:
            FedshiftError: the data cannot be divided like this; the message gives the reason.
        """
        parts = torch.full((len(data.y),), UNASSIGNED)
        for originals, inside, original in originals_by_domain(data):
            parts[inside] = self.divide(originals, streams)[original]
        return data.domain, parts

    def divide(self, originals: Originals, streams: Streams) -> Tensor:
        """The part of each original of one domain, (U,), int64; -1: unassigned."""
        raise NotImplementedError


def originals_by_domain(data: DomainData) -> Iterator[tuple[Originals, Tensor, Tensor]]:
    """The originals of each non-empty domain, the domain's samples (n,), and the original of each of these (n,)."""
    sizes = torch.bincount(data.domain, minlength=len(data.domains)).tolist()
    rows = torch.split(data.domain.argsort(stable=True), sizes)
    for domain, (name, inside) in enumerate(zip(data.domains, rows, strict=True)):
        if not len(inside):
            continue
        first, original = _originals(data.group[inside])
        first = inside[first]
        environment = torch.zeros_like(first) if data.environment is None else data.environment[first]
        yield Originals(domain, name, data.classes, data.y[first], environment), inside, original


class Domains(Partition):
    """Each domain is one client."""

    def divide(self, originals: Originals, streams: Streams) -> Tensor:
        return torch.zeros(len(originals), dtype=torch.int64)


class IID(Partition):
    """Each domain is divided into equal parts, class by class."""

    clients: Clients = setting(help="clients of each domain")

    def divide(self, originals: Originals, streams: Streams) -> Tensor:
        order = originals.strata(torch.ones(len(originals), dtype=torch.bool), streams)
        parts = torch.empty(len(originals), dtype=torch.int64)
        parts[order] = torch.arange(len(order)) % self.clients
        return parts


class Dirichlet(Partition):
    """Each class of a domain is divided among clients by shares from a Dirichlet distribution: label skew.

    The division is flwr-datasets' ``DirichletPartitioner`` without balancing of sizes.
    """

    clients: Clients = setting(help="clients of each domain")
    beta: Positive = setting(
        0.5,
        help="concentration; smaller values skew labels more",
        source="FedCiR, Fig. 5-8 (varied); Client2Vec: 0.1",
        search=Range(0.05, 5, log=True),
    )
    min_samples: WholeNumber = setting(
        2, help="minimum originals of each client; shares are redrawn until it has them, at most ten times"
    )

    def divide(self, originals: Originals, streams: Streams) -> Tensor:
        arguments = {
            "num_partitions": self.clients,
            "partition_by": "label",
            "alpha": float(self.beta),
            "min_partition_size": self.min_samples,
        }
        try:
            return _by_flower("DirichletPartitioner", arguments, originals, streams)
        except ValueError as error:
            raise FedshiftError(
                f"{len(originals)} originals of the domain '{originals.name}' cannot be divided among {self.clients} "
                f"clients with at least {self.min_samples} each (beta = {self.beta:g}): set fewer partition.clients, a "
                "smaller partition.min_samples or a larger partition.beta."
            ) from error


class ByClass(Partition):
    """Each domain is divided by groups of classes, and each group into equal parts (FedPIN, App. E.1: PACS).

    *Choices.* Samples of a class in no group are unassigned; a class in several groups is divided among them equally,
    without replacement.
    """

    groups: tuple[tuple[str, ...], ...] = setting(
        help='lists of class names, one per group: [["dog", "elephant"], ["guitar", "house"]]'
    )
    clients: Clients = setting(1, help="clients of each group in a domain")

    def divide(self, originals: Originals, streams: Streams) -> Tensor:
        """``clients`` parts for each group, group after group."""
        if not self.groups or not all(self.groups):
            raise FedshiftError("partition.groups is empty or has an empty group; name the classes of each group.")
        for name in chain.from_iterable(self.groups):
            if name not in originals.classes:
                raise UnknownNameError("class in partition.groups", name, originals.classes)
        group = self._group_by_original(originals, streams)
        parts = torch.full((len(originals),), UNASSIGNED)
        for number in range(len(self.groups)):
            order = originals.strata(group == number, streams)
            parts[order] = number * self.clients + torch.arange(len(order)) % self.clients
        return parts

    def _group_by_original(self, originals: Originals, streams: Streams) -> Tensor:
        group = torch.full((len(originals),), UNASSIGNED)
        for label, name in enumerate(originals.classes):
            holders = torch.tensor([number for number, names in enumerate(self.groups) if name in names])
            if len(holders):
                members = (originals.y == label).nonzero().flatten()
                order = members[streams.permutation(len(members), "partition groups", originals.domain, label)]
                group[order] = holders[torch.arange(len(order)) % len(holders)]
        return group


class FlowerPartitioner(Partition):
    """Any partitioner of flwr-datasets that divides rows by their number or label, applied to each domain.

    Its rows have the columns ``index`` and ``label``; ``partition_by`` is ``label`` by default, and the seed is the
    experiment's.
    """

    partitioner: str = setting(help="the class's name in flwr_datasets.partitioner, such as ShardPartitioner")
    arguments: dict[str, Any] = setting(help="a table of the class's arguments, such as num_partitions")

    def divide(self, originals: Originals, streams: Streams) -> Tensor:
        """The partitioner's parts; rows that it skips are unassigned."""
        if "seed" in self.arguments:
            raise FedshiftError("partition.arguments.seed: omit it; it is drawn from the experiment's seed.")
        try:
            return _by_flower(self.partitioner, self.arguments, originals, streams)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            given = ", ".join(f"{name} = {value!r}" for name, value in self.arguments.items()) or "no arguments"
            raise FedshiftError(
                f"Flower's {self.partitioner} with {given} cannot divide the {len(originals)} originals of the domain "
                f"'{originals.name}': {error}"
            ) from error


def _by_flower(name: str, arguments: Mapping[str, Any], originals: Originals, streams: Streams) -> Tensor:
    """The part that a partitioner of flwr-datasets assigns to each original, (U,); -1: none."""
    rows = streams.permutation(len(originals), "partition rows", originals.domain)
    with needs("partition", "This partition"):
        from datasets import Dataset
        from flwr_datasets import partitioner as flower
    known = {key: value for key, value in vars(flower).items() if key.endswith("Partitioner") and key != "Partitioner"}
    if name not in known:
        raise UnknownNameError("partitioner of flwr_datasets", name, known)
    takes = inspect.signature(known[name]).parameters
    given = {"partition_by": "label", **arguments} if "partition_by" in takes else dict(arguments)
    if "seed" in takes:
        generator = streams.generator("partition seed", originals.domain)
        given["seed"] = int(torch.randint(2**31, (), generator=generator))
    divider = known[name](**given)
    divider.dataset = Dataset.from_dict({"index": rows.tolist(), "label": originals.y[rows].tolist()})
    parts = torch.full((len(originals),), UNASSIGNED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # repeated draws need no warning,
        warnings.simplefilter("ignore", FutureWarning)  # nor does pyarrow's deprecation inside datasets
        for part in range(divider.num_partitions):
            assigned = torch.tensor(divider.load_partition(part)[:]["index"], dtype=torch.int64)
            if (parts[assigned] != UNASSIGNED).any():
                raise ValueError("it assigns a row to several partitions")
            parts[assigned] = part
    return parts


def _originals(group: Tensor) -> tuple[Tensor, Tensor]:
    first, inverse = first_in_groups(group)
    order = first.argsort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return first[order], place[inverse]


def first_in_groups(group: Tensor) -> tuple[Tensor, Tensor]:
    """The first sample of each group (U,), by the groups' numbers, and the index of each sample's group (N,)."""
    groups, inverse = torch.unique(group, return_inverse=True)
    first = torch.full((len(groups),), len(group))
    return first.scatter_reduce(0, inverse, torch.arange(len(group)), "amin"), inverse


def shuffled(stratum: Tensor, streams: Streams, purpose: str, *key: Key) -> tuple[Tensor, Tensor]:
    """The samples of one stratum (N,) after another, each stratum in an order drawn by ``(purpose, *key, stratum)``.

    Beyond :data:`MANY_STRATA` one stream, ``(purpose, *key)``, orders all, which is much faster. Returns the samples'
    indices (N,), strata ascending, and the sizes of the strata that have samples.
    """
    values, sizes = torch.unique(stratum, return_counts=True)
    if len(values) > MANY_STRATA:
        drawn = streams.permutation(len(stratum), purpose, *key)
        return drawn[stratum[drawn].argsort(stable=True)], sizes
    order, starts = torch.arange(len(stratum)), sizes.cumsum(0) - sizes
    several = sizes > 1  # a stratum of one sample has one order
    for value, start, size in zip(*(each[several].tolist() for each in (values, starts, sizes)), strict=True):
        order[start : start + size] = start + streams.permutation(size, purpose, *key, value)
    return stratum.argsort(stable=True)[order], sizes


def split(
    data: DomainData, fractions: tuple[float, ...], streams: Streams, holder: Tensor | None = None, most: int = 0
) -> list[Tensor]:
    """Disjoint masks (N,) with the given fractions of every class of every holder; groups stay whole.

    If groups contain samples of several classes, the fractions are of every holder's groups. A mask gets at least one
    image of a class while one remains. If fractions sum to more than 1, the last mask takes the rest. ``holder`` is
    (N,), from 0, -1 for unused samples, by default the domain; ``most`` limits groups per class and holder in the last
    mask.
    """
    holder = data.domain if holder is None else holder
    assigned = (holder >= 0).nonzero().flatten()
    first, group = first_in_groups(data.group[assigned])
    count = max(len(data.domains), int(holder.max()) + 1)
    labels = data.y[assigned]
    # Groups of mixed labels (blocks of text) have no class.
    classes = labels[first] if torch.equal(labels[first][group], labels) else torch.zeros_like(first)
    stratum = classes * count + holder[assigned][first]
    order, sizes = shuffled(stratum, streams, "split")
    different, which = torch.unique(sizes, return_inverse=True)
    stops = torch.tensor([_stops(size, fractions, most) for size in different.tolist()]).view(-1, len(fractions))[which]
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    place = torch.arange(len(order)) - starts  # within the stratum
    side = torch.empty_like(order)
    # The first mask whose stop lies beyond a place takes it; past all stops, none does.
    side[order] = (place.unsqueeze(1) >= stops.repeat_interleave(sizes, dim=0)).sum(dim=1)
    masks = [torch.zeros(len(data.y), dtype=torch.bool) for _ in fractions]
    for number, mask in enumerate(masks):
        mask[assigned] = (side == number)[group]
    return masks


def _stops(size: int, fractions: tuple[float, ...], most: int) -> list[int]:
    """The index in a stratum before which each mask ends."""
    stops, stop = [], 0
    for number, fraction in enumerate(fractions, 1):
        taken = max(round(fraction * size), min(1, size - stop - 1))
        stop += min(taken, most) if most and number == len(fractions) else taken
        stops.append(stop)
    return stops
