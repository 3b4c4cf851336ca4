"""The two references every federated result stands between: pooled data, and no federation at all.

Nothing is merged over clients, so an absent client only misses its own steps of that round.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class Centralised(FedAvg):
    """All clients' training data pooled at one place ("All" in the papers' tables).

    Choices: one client holds the pooled data and takes in a round as many steps as the federation's cohort together, so
    that an equal number of rounds has an equal number of steps. Each client's held-out data is still scored apart.
    """

    paper: ClassVar[str] = "the usual upper reference"

    def regroup(self, federated: FederatedData) -> FederatedData:
        """The same data with a single client."""
        return federated.pooled()


class FedAvgAgain(FedAvg):
    """FedAvg with other batches, so that what a table shows between the two is chance.

    Choices: data, initial values and cohorts are FedAvg's, as they are every other method's of the same seed;
    it leaves out batches, so that those it trains on are others.
    """

    paper: ClassVar[str] = "FedAvg, as a null row"

    skipped: Steps = setting(1, help="batches that are left out before those of a round; another number is another row")

    def phases(self) -> Phases:
        """FedAvg's steps, after some batches on which nothing is trained."""
        return (Phase("skip", (), steps=self.skipped), *super().phases())


class Single(FedAvg):
    """Every client trains alone on its own data; nothing is sent.

    Choices: all clients start from the same initial model. A domain that no client has seen is scored
    with every client's model, and the accuracies are averaged.
    """

    paper: ClassVar[str] = "the usual lower reference"

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, which stay on the client."""
        return {name: Part(part.module, "client", unseen="every") for name, part in super().parts(model).items()}

    merge = staticmethod(leave)
