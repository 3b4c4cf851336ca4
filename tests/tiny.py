"""A plugin with data small enough for tests: three or four domains of 1x10x10 images, made from the streams."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import torch

import fedshift
from fedshift import page
from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.methods.fedsr import FedSR
from fedshift.spec import Count, WholeNumber, setting
from fedshift.streams import Streams


@fedshift.DATASETS.register("tiny")
class Tiny(Dataset):
    """Class patterns with noise; each domain adds its own brightness."""

    per_class: Count = setting(10, help="images of each class in a domain")
    fewer: WholeNumber = setting(0, help="by how many these are fewer in each domain than in the one before")
    domains: Literal[3, 4] = setting(3, help="how many domains there are")

    def domain_names(self) -> tuple[str, ...]:
        return ("dark", "gray", "light", "bright")[: self.domains]

    def load(self, streams: Streams) -> DomainData:
        classes, domains = 3, self.domains
        pattern = torch.randn(classes, 1, 10, 10, generator=streams.generator("pattern"))
        sizes = [max(0, self.per_class - self.fewer * domain) for domain in range(domains)]
        y = torch.arange(classes).repeat(sum(sizes))
        domain = torch.arange(domains).repeat_interleave(classes * torch.tensor(sizes))
        noise = torch.randn(len(y), 1, 10, 10, generator=streams.generator("noise of images"))
        x = pattern[y] + 0.3 * noise + (domain - 1).view(-1, 1, 1, 1)
        names = tuple(f"class {c}" for c in range(classes))
        return DomainData(x, y, domain, self.domain_names(), names, torch.arange(len(y)))


@fedshift.METHODS.register("slow-fedsr")
class SlowFedSR(FedSR):
    """FedSR that takes its time, so that a test can kill it in the middle."""

    def risk(self, net, batch, context):
        time.sleep(0.03)
        return super().risk(net, batch, context)


@fedshift.METHODS.register("slashed")
class Slashed(FedSR):
    """FedSR whose phase and objective have awkward names."""

    def phases(self):
        ((objective,),) = (phase.objectives for phase in super().phases())
        return (page.Phase("a/b//c", (replace(objective, name="d/e"),)),)
