"""A data set as a federation is made from it: samples with a label and a domain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DomainData:
    """A loaded data set.

    Attributes:
        x: inputs (N, ...), uint8 images (channels, height, width), int64 token ids (length,) or float32. They may be
            mapped from a file (``torch.from_file``): only the samples of batches are read, whoever holds how many.
        y: labels (N,), int64.
        domain: which domain each sample is of, (N,), int64.
        domains: the domains' names.
        classes: the classes' names.
        group: samples made from one original share a group, (N,); a split keeps groups whole.
        environment: for a data set that brings its own environments, which one each sample is of, (N,); 0 is what
            clients train on. None: a protocol holds samples out.
        environments: the environments' names; the first is what clients train on.
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    group: Tensor
    environment: Tensor | None = None
    environments: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shape = tuple(self.x.shape[1:])
        return f"DomainData({len(self.y)} of shape {shape}, domains: {len(self.domains)}, classes: {len(self.classes)})"

    def missing(self) -> list[tuple[str, str]]:
        """Every (domain, class) without a sample."""
        counts = torch.zeros(len(self.domains), len(self.classes), dtype=torch.int64)
        counts.index_put_((self.domain, self.y), torch.ones_like(self.y), accumulate=True)
        return [(self.domains[d], self.classes[c]) for d, c in (counts == 0).nonzero().tolist()]
