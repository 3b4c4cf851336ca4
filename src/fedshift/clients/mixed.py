"""Clients with samples of several domains: a partition that mixes domains by a parameter lambda.

Bai, Bagchi and Inouye, Benchmarking algorithms for federated domain generalization, ICLR 2024, heterogeneous
partitioning. Each of C clients has a home domain: every domain has one client, and each further client goes to the
domain with the most samples per client. Of domain d, which has C_d clients, client i gets the part

    lambda / C + (1 - lambda) [d is the home of i] / C_d.

*Choices.* There are at least as many clients as domains that train. A client's samples are drawn without regard to
labels, originals whole. Tables name a client by its home; it is validated and tested separately on each domain of its
samples. A domain in which no client trains is not mixed: C is the number of clients that train.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.partitions import Partition, originals_by_domain
from fedshift.errors import FedshiftError
from fedshift.spec import Clients, Probability, setting
from fedshift.streams import Streams


class Mixed(Partition):
    """Clients contain a share of every domain, and the rest from the domain of their home; lambda sets how much."""

    clients: Clients = setting(help="clients in all, no fewer than domains")
    lam: Probability = setting(
        0.1,
        help="lambda: 0: a client has samples of one domain; 1: equally of all domains",
        source="Bai et al., Sec. 4 (varied)",
    )

    def assign(self, data: DomainData, streams: Streams, untrained: Collection[int] = ()) -> tuple[Tensor, Tensor]:
        """Divide every domain at random by the clients' parts of it."""
        home, parts = data.domain.clone(), torch.zeros_like(data.domain)
        domains = [each for each in originals_by_domain(data) if each[0].domain not in untrained]
        if self.clients < len(domains):
            raise FedshiftError(
                f"partition.clients = {self.clients}, but there are {len(domains)} domains, each the home of a "
                f"client: --set partition.clients={len(domains)} or more"
            )
        sizes = torch.tensor([len(originals) for originals, _, _ in domains])
        counts = torch.ones_like(sizes)
        for _ in range(self.clients - len(domains)):
            counts[(sizes / counts).argmax()] += 1
        homes = torch.tensor([originals.domain for originals, _, _ in domains]).repeat_interleave(counts)
        numbers = torch.cat([torch.arange(count) for count in counts.tolist()])
        for (originals, inside, original), count in zip(domains, counts.tolist(), strict=True):
            shares = self.lam / self.clients + (1 - self.lam) / count * (homes == originals.domain).double()
            stops = (shares.cumsum(dim=0) * len(originals)).round()
            stops[-1] = len(originals)
            client = torch.empty(len(originals), dtype=torch.int64)
            order = streams.permutation(len(originals), "partition", originals.domain)
            client[order] = torch.searchsorted(stops, torch.arange(len(originals)).double(), right=True)
            home[inside], parts[inside] = homes[client[original]], numbers[client[original]]
        return home, parts
