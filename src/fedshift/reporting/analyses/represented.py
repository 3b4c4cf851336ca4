"""The representations of a finished run by domain, which several analyses read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.runs.observed import TrainedSimulation


@dataclass(frozen=True, eq=False)
class RepresentedDomain:
    """Samples of a domain as the model that is scored on them encodes them."""

    name: str  # the domain's: that of its environments
    target: bool  # whether no client trains on it
    z: Tensor  # representations (n, d)
    y: Tensor  # labels (n,)


def by_domain(trained: TrainedSimulation, most: int) -> list[RepresentedDomain]:
    """At most that many samples of each domain, evenly spaced: of its tests, or of validation where it has no test."""
    found: dict[str, dict[str, list[tuple[bool, Tensor, Tensor]]]] = {}
    for one in trained.observe():
        environment = one.environment
        parts = found.setdefault(environment.name, {}).setdefault(environment.role, [])
        if environment.client is not None or not parts:  # of an unseen client's models the first
            parts.append((environment.client is None and environment.role == "test", one.z, one.y))
    domains = []
    for name, roles in found.items():
        targets, zs, ys = zip(*roles.get("test", roles.get("validation", [])), strict=True)
        z, y = torch.cat(zs), torch.cat(ys)
        rows = torch.linspace(0, len(y) - 1, min(most, len(y))).round().long()
        domains.append(RepresentedDomain(name, all(targets), z[rows].double(), y[rows]))
    return domains
