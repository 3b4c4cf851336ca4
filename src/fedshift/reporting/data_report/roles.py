"""Which sample is trained on, validated on or tested on, by whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples

ROLES = ("training", "validation", "test")


@dataclass(frozen=True, eq=False)
class Roles:
    """What a protocol does with each sample.

    Attributes:
        client: the place among the clients of whoever trains on it, (N,), int64; -1: nobody.
        masks: by role (training, validation, test) which samples have it, (N,), bool; a sample may have several.
    """

    client: Tensor
    masks: dict[str, Tensor]

    @classmethod
    def of(cls, federation: FederatedData, samples: int) -> Roles:
        """The roles of the ``samples`` from which a federation's views were made."""
        client = torch.full((samples,), -1)
        masks = {role: torch.zeros(samples, dtype=torch.bool) for role in ROLES}
        for place, each in enumerate(federation.clients):
            client[_rows(each.train)] = place
        masks["training"] = client >= 0
        for environment in federation.environments:
            masks[environment.role][_rows(environment.samples)] = True
        return cls(client, masks)

    def judged(self, *, test: bool) -> Tensor:
        """The samples of which more than labels and equality is looked at, (N,), bool: with ``test``, all in use."""
        seen = self.masks["training"] | self.masks["validation"]
        return seen | self.masks["test"] if test else seen & ~self.masks["test"]

    def counts(self, y: Tensor, classes: int) -> dict[str, list[int]]:
        """By role, how many samples each class has."""
        return {role: torch.bincount(y[mask], minlength=classes).tolist() for role, mask in self.masks.items()}


def _rows(samples: Samples) -> Tensor:
    return torch.arange(len(samples)) if samples.rows is None else samples.rows
