"""Who holds which samples: the clients that train, and the environments on which models are scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedshift.data.inputs import Inputs
from fedshift.errors import FedshiftError


@dataclass(frozen=True)
class Samples:
    """Inputs x (N, ...), uint8 images or float32, and labels y (N,), int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        return Samples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Client:
    """One participant: its id, by which merges are ordered, its name, its domain's, and its training samples."""

    id: int
    name: str
    domain: str
    train: Samples


@dataclass(frozen=True)
class Environment:
    """Samples on which a model is scored.

    Attributes:
        name: the domain (or shift) they come from.
        role: ``test`` makes the headline; ``validation`` is what a selection may look at.
        client: the id of the client they belong to; None for a client that never trained.
        samples: the inputs and labels.
    """

    name: str
    role: Literal["validation", "test"]
    client: int | None
    samples: Samples


@dataclass(frozen=True)
class Federation:
    """Clients, environments, the classes' names, and how samples become inputs of a network.

    Attributes:
        clients: who trains, in id order.
        environments: what is scored; several clients may have one of the same name.
        classes: the classes' names.
        inputs: how samples become inputs.
        notes: what a reader of the results must know of how the data were divided.
    """

    clients: tuple[Client, ...]
    environments: tuple[Environment, ...]
    classes: tuple[str, ...]
    inputs: Inputs
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.clients[0].train.x.shape[1:])

    def checked(self) -> Federation:
        """The same federation without the empty environments of single clients, which a note then tells of.

        Raises:
            FedshiftError: a client has nothing to train on, or nobody has a sample of some environment.
        """
        for client in self.clients:
            if not len(client.train):
                raise FedshiftError(
                    f"Client '{client.name}' has no training image: give it more images, or divide the domains among "
                    "fewer clients (partition.clients, partition.min_samples)."
                )
        scored = tuple(environment for environment in self.environments if len(environment.samples))
        left = {(environment.role, environment.name) for environment in scored}
        for environment in self.environments:
            if (environment.role, environment.name) not in left:
                raise FedshiftError(
                    f"No {environment.role} image of '{environment.name}' is left to score: give it more images, or "
                    "hold out a larger part (protocol.validation, protocol.test), or divide the domains among fewer "
                    "clients (partition.clients)."
                )
        dropped = len(self.environments) - len(scored)
        if not dropped:
            return self
        note = (
            f"{dropped} of {len(self.environments)} environments of single clients hold no image and are not scored; "
            "means over clients are over the others."
        )
        return replace(self, environments=scored, notes=(*self.notes, note))

    def pooled(self) -> Federation:
        """The same samples with a single client that holds all training data."""
        together = Samples(
            torch.cat([client.train.x for client in self.clients]),
            torch.cat([client.train.y for client in self.clients]),
        )
        environments = tuple(
            environment if environment.client is None else replace(environment, client=0)
            for environment in self.environments
        )
        return replace(self, clients=(Client(0, "all", "all", together),), environments=environments)

    def to(self, device: torch.device) -> Federation:
        """The same federation with its samples on a device."""
        return replace(
            self,
            clients=tuple(replace(client, train=client.train.to(device)) for client in self.clients),
            environments=tuple(replace(e, samples=e.samples.to(device)) for e in self.environments),
        )
