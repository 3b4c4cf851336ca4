r"""References: pooled training (``centralised``), local training (``single``) and a second FedAvg (``fedavg-again``).

The two references between which federated results lie, and a null row that shows chance.

Pooled training minimises the mean risk over all samples, local training each client's risk by itself:

.. math::

    w = \arg\min_w \frac{1}{n} \sum_k n_k F_k(w), \qquad w_k = \arg\min_w F_k(w).

**When to choose it.** Beside every comparison. Local training is above FedAvg where clients differ enough (+2.8 to +8.0
points on PACS in-domain, but -3.0 with 5 images a class; +1.6 under a colour shortcut; +4.3 on Digits and +1.6 on
Heart, not clear) and below it elsewhere (-2.9 on OPT); pooled training is not an upper bound (-1.5 on Heart, -0.9
on OPT, -1.3 on held-out domains of frozen PACS features, +1.3 on a held-out angle of RotatedMNIST, none clear;
+6.1 on Digits).

**Unavailable clients.** An absent client misses its steps of that round; nothing is aggregated. ``fedavg-again``
behaves as FedAvg.

**Choices.**

- ``centralised``: a single client has the pooled data and takes the steps of a whole cohort in a round, so equal
  rounds are equal steps. Each client's held-out data is scored separately.
- ``single``: all clients have the same initial model. A domain that no client has is scored with every client's model,
  and the accuracies are averaged.
- ``fedavg-again``: data, initial values and cohorts are FedAvg's; it skips batches before each round, so it trains on
  different ones.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class Centralised(FedAvg):
    """Training on the pooled data of all clients ("All" in the papers' tables)."""

    paper: ClassVar[str] = "the usual upper reference"

    def regroup(self, federated: FederatedData) -> FederatedData:
        """The same data with a single client."""
        return federated.pooled()


class FedAvgAgain(FedAvg):
    """FedAvg with different batches: a null row, which differs from FedAvg by chance alone."""

    paper: ClassVar[str] = "FedAvg, as a null row"

    skipped: Steps = setting(1, help="batches skipped before each round; each number gives a different row")

    def phases(self) -> Phases:
        """Skipped batches, then FedAvg's training."""
        return (Phase("skip", (), steps=self.skipped), *super().phases())


class Single(FedAvg):
    """Local training: every client trains alone, and nothing is sent."""

    paper: ClassVar[str] = "the usual lower reference"

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, all local."""
        return {name: Part(part.module, "client", unseen="every") for name, part in super().parts(model).items()}

    merge = staticmethod(leave)
