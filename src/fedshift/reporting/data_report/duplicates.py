"""Samples that are equal bit by bit, found by digests of their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations, pairwise
from typing import Literal

import torch
from torch import Tensor

from fedshift.federation.domains import DomainData
from fedshift.reporting.data_report.roles import Roles

Where = Literal["validation", "test", "sites", "labels", "class"]
Tell = Callable[[str, int, int], None]
PIECE = 1 << 22  # numbers read together, so that inputs that are mapped from a file need no memory
SCORED: tuple[Where, ...] = ("validation", "test")


def silent(what: str, done: int, total: int) -> None:
    """Nobody hears how far the work is."""


@dataclass(frozen=True)
class Duplicates:
    """Samples whose inputs are equal bit by bit.

    Attributes:
        where: "validation" or "test", of samples that are scored in this role and equal ones that are trained on;
            "sites", of equal samples of several sites; "labels", of several classes; "class", of those that one site
            trains on for one class.
        samples: how many samples that are: of those scored, those that are also trained on; of "class", those beyond
            the first; else all.
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
        data: the samples; of those that are tested nothing but a digest is looked at.
        roles: what they are used for.
        tell: hears how far the work is: what is done, samples done, samples in all.
    """
    content = contents(data.x, tell)
    found = [_scored(content, roles, role) for role in SCORED]
    repeated = torch.bincount(content)[content] > 1
    rows = repeated.nonzero().flatten()
    sets = _sets(rows, content[rows])
    sites = [each for each in sets if len(set(data.domain[list(each)].tolist())) > 1]
    shared = Counter(pair for each in sites for pair in combinations(sorted(set(data.domain[list(each)].tolist())), 2))
    pairs = tuple((data.domains[a], data.domains[b], count) for (a, b), count in sorted(shared.items()))
    labels = [each for each in sets if len(set(data.y[list(each)].tolist())) > 1]
    alike = rows[roles.masks["training"][rows]]
    cell = (content[alike] * len(data.domains) + data.domain[alike]) * len(data.classes) + data.y[alike]
    again = [each for each in _sets(alike, cell) if len(each) > 1]
    found += [
        Duplicates("sites", sum(map(len, sites)), tuple(sites), pairs),
        Duplicates("labels", sum(map(len, labels)), tuple(labels)),
        Duplicates("class", sum(len(each) - 1 for each in again), tuple(again)),
    ]
    return tuple(each for each in found if each.sets)


def contents(x: Tensor, tell: Tell = silent) -> Tensor:
    """A number for each sample, (N,), int64, the same for those whose bytes are the same.

    Args:
        x: inputs (N, ...), on the CPU.
        tell: hears how far the work is.
    """
    step = max(1, PIECE // x[0].numel())
    number: dict[bytes, int] = {}
    found: list[int] = []
    for start in range(0, len(x), step):
        tell("Looking for equal samples", start, len(x))
        piece = x[start : start + step].contiguous().flatten(1).numpy()
        found += [number.setdefault(blake2b(row, digest_size=16).digest(), len(number)) for row in piece]
    tell("Looking for equal samples", len(x), len(x))
    return torch.tensor(found)


def _scored(content: Tensor, roles: Roles, role: Where) -> Duplicates:
    trained = roles.masks["training"].nonzero().flatten().flip(0)  # so that the first of equal ones is written last
    first = torch.full((int(content.max()) + 1,), -1)
    first[content[trained]] = trained
    scored = (roles.masks[role] & ~roles.masks["training"]).nonzero().flatten()
    rows = scored[first[content[scored]] >= 0]
    return Duplicates(role, len(rows), tuple(zip(rows.tolist(), first[content[rows]].tolist(), strict=True)))


def _sets(rows: Tensor, key: Tensor) -> list[tuple[int, ...]]:
    """The rows of each key, in order."""
    order = key.argsort(stable=True)
    stops = torch.unique_consecutive(key[order], return_counts=True)[1].cumsum(0).tolist()
    ordered = rows[order].tolist()
    return [tuple(ordered[start:stop]) for start, stop in pairwise([0, *stops])]
