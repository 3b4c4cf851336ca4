"""FINCH: clusters without a parameter, by who is whose nearest.

Sarfraz, Sharma and Stiefelhagen, Efficient parameter-free clustering using first neighbor relations, CVPR 2019: two
points are linked if one is the other's nearest, or if both have the same nearest; clusters are what is linked. Then the
clusters' means are clustered in the same way, until one cluster is left.

Choices: nearest by the cosine; the last partition of more than one cluster is taken, or the first one if that has one
already (public code). Two points of equal distance: the first.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def finch(points: Tensor) -> Tensor:
    """The cluster of each of the points (n, d), n >= 1: (n,), int64, from 0. There are at most n / 2, or one of one."""
    clusters = linked(points)
    while True:
        coarser = linked(centres(points, clusters))[clusters]
        if coarser.max() == 0:
            return clusters
        clusters = coarser


def centres(points: Tensor, clusters: Tensor) -> Tensor:
    """The mean of the points (n, d) of each cluster, (clusters, d)."""
    member = F.one_hot(clusters).to(points)
    return member.T @ points / member.sum(dim=0).unsqueeze(1)


def linked(points: Tensor) -> Tensor:
    """What is linked of the points (n, d): (n,), the number of each one's cluster."""
    unit = F.normalize(points, dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-float("inf")).argmax(dim=1)
    least = torch.arange(len(points), device=points.device)  # the first point that each is known to be linked to
    for _ in range(len(points)):  # no chain is longer; points that have the same nearest are linked through it
        both = torch.minimum(least, least[nearest])
        least = both.scatter_reduce(0, nearest, both, "amin")
    firsts = least == torch.arange(len(points), device=points.device)
    return (firsts.cumsum(dim=0) - 1)[least]
