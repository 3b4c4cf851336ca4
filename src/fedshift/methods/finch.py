"""FINCH: parameter-free clustering by first neighbours.

Sarfraz, Sharma and Stiefelhagen, Efficient parameter-free clustering using first neighbor relations, CVPR 2019: two
points are linked if one is the nearest neighbour of the other or both have the same one, and clusters are connected
components. The cluster means are clustered in the same way, until a single cluster is left. Distances are cosines; the
last partition with more than one cluster is taken, or the first if it has one cluster (public code). Of two equally
near points the first counts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def finch(points: Tensor) -> Tensor:
    """Cluster the points (n, d), n >= 1: cluster numbers (n,) from 0, int64; at most max(1, n / 2) clusters."""
    clusters = link_neighbours(points)
    while True:
        coarser = link_neighbours(cluster_means(points, clusters))[clusters]
        if coarser.max() == 0:
            return clusters
        clusters = coarser


def cluster_means(points: Tensor, clusters: Tensor) -> Tensor:
    """Cluster means (clusters, d) of the points (n, d)."""
    member = F.one_hot(clusters).to(points)
    return member.T @ points / member.sum(dim=0).unsqueeze(1)


def link_neighbours(points: Tensor) -> Tensor:
    """Connected components of the first-neighbour graph of the points (n, d): (n,)."""
    from scipy.sparse import csr_array  # lazy: listing the methods does not need it
    from scipy.sparse.csgraph import connected_components

    unit = F.normalize(points, dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-float("inf")).argmax(dim=1).cpu().numpy()
    links = csr_array((np.ones(len(points)), (np.arange(len(points)), nearest)), shape=(len(points), len(points)))
    _, components = connected_components(links, directed=False)  # a common neighbour connects two points
    return torch.from_numpy(components).to(points.device, torch.int64)
