"""A few samples of each site and class, to look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.federation.domains import DomainData
from fedshift.streams import Streams

PER_CLASS = 6
MOST_CLASSES = 12  # of a site, those with most samples
MOST_SITES = 30


@dataclass(frozen=True, eq=False)
class Examples:
    """Samples of one site and class.

    Attributes:
        site: the site's name.
        label: the class's name.
        rows: the samples' numbers, from 0.
        x: their inputs (n, ...).
    """

    site: str
    label: str
    rows: tuple[int, ...]
    x: Tensor


def draw_examples(data: DomainData, looked: Tensor, streams: Streams) -> tuple[Examples, ...]:
    """Samples of each site and class, by site and then by class, drawn from the streams.

    Args:
        data: the samples.
        looked: from which they are drawn, (N,), bool.
        streams: where random numbers come from.
    """
    found = []
    for site, name in enumerate(data.domains[:MOST_SITES]):
        own = (looked & (data.domain == site)).nonzero().flatten()
        own = own[streams.permutation(len(own), "examples", site)]
        counts = torch.bincount(data.y[own], minlength=len(data.classes))
        shown = counts.argsort(descending=True, stable=True)[: min(MOST_CLASSES, int((counts > 0).sum()))]
        for label in sorted(shown.tolist()):
            rows = own[data.y[own] == label][:PER_CLASS].sort().values
            found.append(Examples(name, data.classes[label], tuple(rows.tolist()), data.x[rows]))
    return tuple(found)
