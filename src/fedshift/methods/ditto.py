"""Ditto: a personal model beside FedAvg's, pulled towards it.

Li, Hu, Beirami and Smith, Ditto: fair and robust federated learning through personalization, ICML 2021, Algorithm 1:
FedAvg trains w; client k keeps v_k and minimises F_k(v) + lam/2 ||v - w_t||^2, with w_t as received.

Choices:

- v_k takes as many steps as w, on batches of its own, with the optimiser of ``[train]``, and starts as w does.
- The pull covers trainable parameters; batch-norm statistics are each model's own.
- A client that never trained is predicted for with the global model.
- An absent client's v_k stands still; it meets the newer w_t when it is back.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.personal import PersonalModel
from fedshift.page import *


class Ditto(PersonalModel):
    """FedAvg, and a personal model near it; lam = 0 is local training for the personal model."""

    paper: ClassVar[str] = "Li et al., ICML 2021, Algorithm 1"

    lam: NonNegative = setting(1.0, help="weight of the pull towards the global model", search=(0.1, 1.0, 2.0))

    def phases(self) -> Phases:
        """FedAvg's, then as many steps of v_k."""
        terms = {"personal": Term(self.own.risk), "pull": Term(self.pull, self.lam / 2)}
        return (*super().phases(), Phase("personal", (Objective("personal", terms, self.own.names),)))

    def pull(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||v - w_t||^2."""
        return self.own.distance(net, context.received)
