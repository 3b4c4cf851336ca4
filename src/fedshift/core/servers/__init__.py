"""The server optimisers, and their list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.core.servers.server import ServerOptimiser

SERVERS: Catalogue[ServerOptimiser] = Catalogue(
    "SERVERS",
    __name__,
    kind="server optimiser",
    base=".server:ServerOptimiser",
    entries={
        "mean": ".server:Mean",
        "momentum": ".server:Momentum",
        "adagrad": ".adaptive:ServerAdagrad",
        "adam": ".adaptive:ServerAdam",
        "yogi": ".adaptive:ServerYogi",
    },
)
