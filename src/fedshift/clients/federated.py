"""The clients that train, and the environments on which models are scored, as views of one pool of samples.

Clients and environments are created on request, from tables of a few numbers each, so that ten thousand of them cost
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
        clients: the clients in id order; a tuple, or created on request.
        environments: what is scored; environments of several clients may share a name.
        classes: the classes' names.
        inputs: how samples become inputs.
        notes: notes for readers on how the data were divided.
        train_environments: the names of the environments that clients train in, which :attr:`Samples.environment`
            indexes; by default each domain is an environment.
        columns: of rows of a table, the columns' names, in order.
        pooled_sizes: of a client with pooled samples, the numbers of training samples of the clients it replaces.
        oddity: a sentence on the most serious problem of the data, or empty.
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
        """The index of each client among the clients, by id."""
        return dict(sorted((client.id, place) for place, client in enumerate(self.clients)))

    @property
    def ids(self) -> Sequence[int]:
        return tuple(self.places)

    def client(self, id: int) -> Client:
        return self.clients[self.places[id]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as it is stored."""
        return tuple(self._pool.x.shape[1:])

    @property
    def type(self) -> str:
        """The samples' type as stored, for example "uint8"."""
        return str(self._pool.x.dtype).removeprefix("torch.")

    @property
    def _pool(self) -> Pool:
        return (self.clients[0].train if self.clients else self.environments[0].samples).pool

    @cached_property
    def trained_sizes(self) -> tuple[int, ...]:
        """Number of training samples of each client, in id order."""
        return tuple(len(client.train) for client in self.clients)

    @cached_property
    def scored_sizes(self) -> tuple[int, ...]:
        """Number of samples of each environment."""
        return tuple(len(each.samples) for each in self.environments)

    def trained_classes(self) -> dict[int, tuple[int, ...]]:
        """Number of training samples of each class, by client id."""
        counts = class_counts([client.train for client in self.clients], len(self.classes))
        return dict(zip(self.ids, map(tuple, counts.tolist()), strict=True))

    def scored_classes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Number of scored samples of each class over all clients, by role and environment."""
        parts: dict[tuple[str, str], list[Samples]] = {}
        for each in self.environments:
            parts.setdefault((each.role, each.name), []).append(each.samples)
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for (role, name), samples in parts.items():
            counts = class_counts(samples, len(self.classes)).sum(dim=0)
            found.setdefault(role, {})[name] = tuple(counts.tolist())
        return found

    def checked(self, data: DomainData | None = None) -> FederatedData:
        """The same federation without empty environments of single clients, which a note names.

        A FedshiftError if a client has no training samples, or an environment no samples at all; ``data`` helps explain
        why.
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
            if data is not None and (reason := _one_group(data, name)):
                raise FedshiftError(f"No {role} sample of '{name}' is left to score: {reason}")
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
        """The same federation with the environments of at most ``most`` clients, drawn at random and noted."""
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
        """The same federation with only the categories that occur in training; others get no weight or statistic."""
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
        """The same federation on a device; each pool is copied once and shared by its views."""
        return self if self._pool.x.device == device else self._moved(mover(device))

    def _moved(self, move: Move) -> FederatedData:
        clients = lazy(self.clients).mapped(lambda client: replace(client, train=client.train.moved(move)))
        environments = lazy(self.environments).mapped(lambda each: replace(each, samples=each.samples.moved(move)))
        return replace(self, clients=clients, environments=environments)


def _one_group(data: DomainData, domain: str) -> str:
    """Why a domain cannot be split: all its samples are of one group; empty if they are not."""
    if domain not in data.domains:
        return ""
    rows = (data.domain == data.domains.index(domain)).nonzero().flatten()
    if len(rows) < 2 or len(torch.unique(data.group[rows])) > 1:
        return ""
    return (
        f"all of its {len(rows)} samples share the group of {data.place(int(rows[0]))}, which a split keeps "
        "whole. Give independent samples separate groups."
    )


def _notes_on_categories(columns: Sequence[Column], kept: Sequence[Column]) -> Iterator[str]:
    """A note for each column with categories that no client trains on."""
    for column, other in zip(columns, kept, strict=True):
        unseen = [name for name in column.categories or () if name not in (other.categories or ())]
        if unseen:
            more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
            yield (
                f"No training row has {', '.join(map(repr, unseen[:3]))}{more} in the column '{column.name}': if "
                "another row does, every input of this column is 0."
            )
