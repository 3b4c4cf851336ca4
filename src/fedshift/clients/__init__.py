"""Clients, environments, partitions and protocols, and the lists of the last two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.clients.partitions import Partition
    from fedshift.clients.protocols import Protocol

PARTITIONS: Catalogue[Partition] = Catalogue(
    "PARTITIONS",
    __name__,
    kind="partition",
    base=".partitions:Partition",
    entries={
        "domains": ".partitions:Domains",
        "iid": ".partitions:IID",
        "dirichlet": ".partitions:Dirichlet",
        "classes": ".partitions:ByClass",
        "mixed": ".mixed:Mixed",
        "flwr": ".partitions:FlowerPartitioner",
    },
)
PROTOCOLS: Catalogue[Protocol] = Catalogue(
    "PROTOCOLS",
    __name__,
    kind="protocol",
    base=".protocols:Protocol",
    entries={
        "leave-one-domain-out": ".protocols:LeaveOneDomainOut",
        "in-domain": ".protocols:InDomain",
        "all-clients": ".protocols:AllClients",
        "train-on-all": ".protocols:TrainOnAll",
        "personal-under-shift": ".protocols:PersonalUnderShift",
    },
)
