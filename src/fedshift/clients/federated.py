"""Who contains which samples: the clients that train, and the environments on which models are scored.

A federation keeps one copy of its samples: :class:`Samples` are views of a pool that all share. Clients and
environments are made when they are requested, from tables of a few numbers each, so that ten thousand of them cost
hardly more than a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column, recoded
from fedshift.clients.samples import Client, Environment, Move, Pool, Samples, class_counts, joined, lazy, mover
from fedshift.errors import FedshiftError
from fedshift.streams import Streams


@dataclass(frozen=True)
class FederatedData:
    """Clients, environments, the classes' names, and how samples become inputs of a network.

    Attributes:
        clients: who trains, in id order; a tuple, or made when they are requested.
        environments: what is scored; several clients may have one of the same name.
        classes: the classes' names.
        inputs: how samples become inputs.
        notes: what a reader of the results must know of how the data were divided.
        train_environments: the names of the environments that clients train in, which :attr:`Samples.environment`
            numbers; by default each domain is one.
        columns: of rows of a table, the columns' names, in order.
        pooled_sizes: how many training samples each of the clients had whose samples a single one contains.
        oddity: what is most serious about the data, a sentence; empty: nothing is.
    """

    clients: Sequence[Client]
    environments: Sequence[Environment]
    classes: tuple[str, ...]
    inputs: Inputs
    notes: tuple[str, ...] = ()
    train_environments: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    pooled_sizes: tuple[int, ...] = ()
    oddity: str = ""

    def __repr__(self) -> str:
        counts = f"clients: {len(self.clients)}, environments: {len(self.environments)}, classes: {len(self.classes)}"
        return f"Federation({counts})"

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each client among the clients, by id; ids are in order."""
        return dict(sorted((client.id, place) for place, client in enumerate(self.clients)))

    @property
    def ids(self) -> Sequence[int]:
        """The clients' ids, in order."""
        return tuple(self.places)

    def client(self, id: int) -> Client:
        """The client of an id."""
        return self.clients[self.places[id]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as it is stored."""
        return tuple(self._pool.x.shape[1:])

    @property
    def type(self) -> str:
        """The type of the samples, as they are stored: "uint8", for example."""
        return str(self._pool.x.dtype).removeprefix("torch.")

    @property
    def _pool(self) -> Pool:
        return (self.clients[0].train if self.clients else self.environments[0].samples).pool

    @cached_property
    def trained_sizes(self) -> tuple[int, ...]:
        """How many training samples each client has, in id order."""
        return tuple(len(client.train) for client in self.clients)

    @cached_property
    def scored_sizes(self) -> tuple[int, ...]:
        """How many samples each environment has."""
        return tuple(len(each.samples) for each in self.environments)

    def trained_classes(self) -> dict[int, tuple[int, ...]]:
        """By each client's id, how many training samples of each class it has."""
        counts = class_counts([client.train for client in self.clients], len(self.classes))
        return dict(zip(self.ids, map(tuple, counts.tolist()), strict=True))

    def scored_classes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """By role and environment, how many samples of each class are scored, over all clients."""
        parts: dict[tuple[str, str], list[Samples]] = {}
        for each in self.environments:
            parts.setdefault((each.role, each.name), []).append(each.samples)
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for (role, name), samples in parts.items():
            counts = class_counts(samples, len(self.classes)).sum(dim=0)
            found.setdefault(role, {})[name] = tuple(counts.tolist())
        return found

    def checked(self, data: DomainData | None = None) -> FederatedData:
        """The same federation without the empty environments of single clients, which a note then names.

        Args:
            data: the samples as they were read, whose groups explain why an environment has none.

        Raises:
            FedshiftError: a client has nothing to train on, or no client has a sample of some environment.
        """
        if 0 in self.trained_sizes:
            empty = self.clients[self.trained_sizes.index(0)]
            raise FedshiftError(
                f"Client '{empty.name}' has no training sample: give it more samples, or divide the domains among "
                "fewer clients (partition.clients, partition.min_samples)."
            )
        keys = ((each.role, each.name) for each in self.environments)
        sizes = [*zip(keys, self.scored_sizes, strict=True)]
        some = {key for key, size in sizes if size}
        for role, name in (key for key, _ in sizes if key not in some):
            if data is not None and (why := _one_group(data, name)):
                raise FedshiftError(f"No {role} sample of '{name}' is left to score: {why}")
            raise FedshiftError(
                f"No {role} sample of '{name}' is left to score: give it more samples, or "
                "hold out a larger part (protocol.validation, protocol.test), or divide the domains among fewer "
                "clients (partition.clients)."
            )
        scored = [place for place, (_, size) in enumerate(sizes) if size]
        dropped = len(self.environments) - len(scored)
        if not dropped:
            return self
        note = (
            f"{dropped} of {len(self.environments)} environments of single clients contain no image and are not "
            "scored; means over clients are over the others."
        )
        return replace(self, environments=lazy(self.environments).among(scored), notes=(*self.notes, note))

    def scoring(self, most: int, streams: Streams) -> FederatedData:
        """The same federation with the environments of at most that many clients, drawn at random; a note names it."""
        if len(self.clients) <= most:
            return self
        ids = self.ids
        drawn = {ids[place] for place in streams.permutation(len(ids), "scored clients")[:most].tolist()}
        kept = [n for n, each in enumerate(self.environments) if each.client is None or each.client in drawn]
        note = (
            f"{most:,} of {len(ids):,} clients, drawn by the seed, are scored: means over clients are of these "
            f"(evaluate.clients = {most})."
        )
        return replace(self, environments=lazy(self.environments).among(kept), notes=(*self.notes, note))

    def by_training(self, columns: Sequence[Column]) -> FederatedData:
        """The same federation, of rows whose categories are those that occur in training.

        Others have no code from here on, so that neither a weight nor a statistic knows of them.

        Args:
            columns: what the columns of the samples are, with all categories that occur.
        """
        seen: dict[int, set[int]] = {n: set() for n, column in enumerate(columns) if column.categories is not None}
        for client in self.clients:
            x = client.train.x
            for place, codes in seen.items():
                codes |= set(x[:, place][~x[:, place].isnan()].long().tolist())
        kept = tuple(
            column
            if column.categories is None
            else replace(column, categories=tuple(column.categories[code] for code in sorted(seen[place])))
            for place, column in enumerate(columns)
        )
        pool = self._pool.x
        new = recoded(pool, columns, kept)

        def move(tensor: Tensor) -> Tensor:
            return new if tensor is pool else tensor

        notes = (*self.notes, *_notes_on_categories(columns, kept))
        return replace(self._moved(move), inputs=self.inputs.of_columns(kept), notes=notes)

    def pooled(self) -> FederatedData:
        """The same samples with a single client that contains all training data."""
        together = joined([client.train for client in self.clients])
        environments = lazy(self.environments).mapped(
            lambda environment: environment if environment.client is None else replace(environment, client=0)
        )
        alone = Client(0, "all", "all", together)
        return replace(self, clients=(alone,), environments=environments, pooled_sizes=self.trained_sizes)

    def to(self, device: torch.device) -> FederatedData:
        """The same federation on a device, to which every pool is copied once and shared by its views."""
        return self if self._pool.x.device == device else self._moved(mover(device))

    def _moved(self, move: Move) -> FederatedData:
        clients = lazy(self.clients).mapped(lambda client: replace(client, train=client.train.moved(move)))
        environments = lazy(self.environments).mapped(lambda each: replace(each, samples=each.samples.moved(move)))
        return replace(self, clients=clients, environments=environments)


def _one_group(data: DomainData, domain: str) -> str:
    """That all samples of a domain are of one group, and what to do; empty: they are not."""
    if domain not in data.domains:
        return ""
    rows = (data.domain == data.domains.index(domain)).nonzero().flatten()
    if len(rows) < 2 or len(torch.unique(data.group[rows])) > 1:
        return ""
    return (
        f"all of its {len(rows)} samples are of one group, that of {data.place(int(rows[0]))}, which a split keeps "
        "whole. Give samples that have nothing to do with each other separate groups."
    )


def _notes_on_categories(columns: Sequence[Column], kept: Sequence[Column]) -> Iterator[str]:
    """A note for each column with categories that no client trains on."""
    for column, other in zip(columns, kept, strict=True):
        unseen = [name for name in column.categories or () if name not in (other.categories or ())]
        if unseen:
            more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
            yield (
                f"No training row has {', '.join(map(repr, unseen[:3]))}{more} in the column '{column.name}': where "
                "another row has, every input of this column is 0."
            )
