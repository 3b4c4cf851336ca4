"""Samples that are equal bit by bit, found by digests of their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.reporting.data_report.roles import Roles

Where = Literal["validation", "test", "sites", "labels"]
Tell = Callable[[str, int, int], None]
PIECE = 1 << 22  # numbers read together, so that inputs that are mapped from a file need no memory
SCORED: tuple[Where, ...] = ("validation", "test")


def silent(what: str, done: int, total: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True)
class Duplicates:
    """Samples whose inputs are equal bit by bit.

    Attributes:
        where: "validation" or "test", of samples that are scored in this role and equal ones that are trained on;
            "sites", of equal samples of several sites; "labels", of several classes.
        samples: how many samples that are; of those scored, those that are also trained on.
        sets: the equal samples, by number from 0; of those scored, it comes first and one that is trained on second.
        pairs: of "sites", for two of them how many contents both have.
    """

    where: Where
    samples: int
    sets: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[str, str, int], ...] = ()


def find_duplicates(data: DomainData, roles: Roles, tell: Tell = silent) -> tuple[Duplicates, ...]:
    """Every kind of duplicates of which there are any.

    Args:
        data: the samples; of those that are tested only a digest is looked at.
        roles: how they are used.
        tell: takes the progress: what is done, samples done, samples in all.
    """
    content = contents(data.x, tell)
    rows = (torch.bincount(content)[content] > 1).nonzero().flatten()
    equal: dict[int, list[int]] = {}
    for row, number in zip(rows.tolist(), content[rows].tolist(), strict=True):
        equal.setdefault(number, []).append(row)
    sites = [tuple(each) for each in equal.values() if len(_sites(data, each)) > 1]
    labels = [tuple(each) for each in equal.values() if len({int(data.y[row]) for row in each}) > 1]
    shared = Counter(pair for each in sites for pair in combinations(_sites(data, each), 2))
    pairs = tuple((data.domains[a], data.domains[b], count) for (a, b), count in sorted(shared.items()))
    found = [_scored(equal.values(), roles, role) for role in SCORED]
    found.append(Duplicates("sites", sum(map(len, sites)), tuple(sites), pairs))
    found.append(Duplicates("labels", sum(map(len, labels)), tuple(labels)))
    return tuple(each for each in found if each.sets)


def contents(x: Tensor, tell: Tell = silent) -> Tensor:
    """A number for each sample, (N,), int64, the same for those whose bytes are the same."""
    step = max(1, PIECE // x[0].numel())
    number: dict[bytes, int] = {}
    found: list[int] = []
    for start in range(0, len(x), step):
        tell("Looking for equal samples", start, len(x))
        piece = x[start : start + step].contiguous().flatten(1).numpy()
        found += [number.setdefault(blake2b(row, digest_size=16).digest(), len(number)) for row in piece]
    tell("Looking for equal samples", len(x), len(x))
    return torch.tensor(found)


def _sites(data: DomainData, rows: Sequence[int]) -> list[int]:
    return sorted({int(data.domain[row]) for row in rows})


def _scored(equal: Collection[list[int]], roles: Roles, role: Where) -> Duplicates:
    training, scored = roles.masks["training"], roles.masks[role]
    sets: list[tuple[int, int]] = []
    for rows in equal:
        trained = [row for row in rows if training[row]]
        if trained:
            sets += [(row, trained[0]) for row in rows if scored[row] and not training[row]]
    return Duplicates(role, len(sets), tuple(sorted(sets)))
