"""How samples are used, and which of them are equal bit by bit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.oddities import Tell, contents, silent
from fedshift.clients.samples import Samples

MOST_SETS = 20  # that are listed
ROLES = ("training", "validation", "test")


@dataclass(frozen=True, eq=False)
class Roles:
    """What a protocol does with each sample."""

    client: Tensor  # the place of its client, (N,), int64; -1: no client
    # by role (training, validation, test) which samples have it, (N,), bool; a sample may have several
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
        """The samples of which more than labels and equality is inspected, (N,), bool: with ``test``, all in use."""
        seen = self.masks["training"] | self.masks["validation"]
        return seen | self.masks["test"] if test else seen & ~self.masks["test"]

    def counts(self, y: Tensor, classes: Sequence[str]) -> dict[str, dict[str, int]]:
        return {role: by_class(y[mask], classes) for role, mask in self.masks.items()}


def by_class(y: Tensor, classes: Sequence[str]) -> dict[str, int]:
    return dict(zip(classes, torch.bincount(y, minlength=len(classes)).tolist(), strict=True))


@dataclass(frozen=True)
class Duplicates:
    """Samples whose inputs are equal bit by bit."""

    # "validation" or "test", of samples that are scored in this role and equal ones that are trained on; "sites", of
    # equal samples of several sites; "labels", of several classes
    where: Literal["validation", "test", "sites", "labels"]
    samples: int  # how many samples that is; of those scored, those that are also trained on
    of: int  # how many samples there are, of those scored in this role
    count: int  # how many sets of equal samples there are
    # the first ones by name, numbered from 0; one that is scored comes before one that is trained on
    sets: tuple[tuple[str, ...], ...]
    sites: tuple[str, ...]  # those that have such samples


def find_duplicates(data: DomainData, roles: Roles, tell: Tell = silent) -> tuple[Duplicates, ...]:
    """Every kind of duplicates of which there are any.

    Args:
        data: the samples; of those that are tested only a digest is inspected.
        roles: how they are used.
        tell: takes the progress: what is done, samples done, samples in all.
    """
    content = contents(data.x, tell)
    rows = (torch.bincount(content)[content] > 1).nonzero().flatten()
    equal: dict[int, list[int]] = {}
    for row, number in zip(rows.tolist(), content[rows].tolist(), strict=True):
        equal.setdefault(number, []).append(row)
    sets = {role: _scored(equal.values(), roles, role) for role in ("validation", "test")}
    sets["sites"] = [each for each in equal.values() if len(set(data.domain[each].tolist())) > 1]
    sets["labels"] = [each for each in equal.values() if len(set(data.y[each].tolist())) > 1]
    found = []
    for where, own in sets.items():
        of = int(roles.masks[where].sum()) if where in roles.masks else len(data.y)
        samples = len(own) if where in roles.masks else sum(map(len, own))
        named = tuple(tuple(_name(data, row, where == "labels") for row in each) for each in own[:MOST_SETS])
        sites = dict.fromkeys(data.domains[data.domain[row]] for each in own for row in each)
        found.append(Duplicates(where, samples, of, len(own), named, tuple(sites)))  # type: ignore[arg-type]  # a key
    return tuple(each for each in found if each.count)


def _scored(equal: Collection[list[int]], roles: Roles, role: str) -> list[list[int]]:
    """Each sample that is scored but not trained on, with an equal one that is trained on."""
    training, scored = roles.masks["training"], roles.masks[role]
    sets: list[list[int]] = []
    for rows in equal:
        trained = [row for row in rows if training[row]]
        if trained:
            sets += [[row, trained[0]] for row in rows if scored[row] and not training[row]]
    return sorted(sets)


def _name(data: DomainData, row: int, labelled: bool) -> str:
    place = f"sample {row} ({data.where(row)})" if data.where else f"sample {row}"
    return f"{place} is '{data.classes[data.y[row]]}'" if labelled else place


def _rows(samples: Samples) -> Tensor:
    return torch.arange(len(samples)) if samples.rows is None else samples.rows
