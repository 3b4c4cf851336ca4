"""FedProx: stay near the global model while training locally.

Li et al., Federated optimization in heterogeneous networks, MLSys 2020, Eq. 2:
h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2.

Choices: the term covers every shared trainable parameter; buffers are not parameters. The clients'
inexactness (gamma) of the paper is the experiment's number of local steps.

Absent clients are not in the mean; nothing of them is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class FedProx(FedAvg):
    """FedAvg with a proximal term; mu = 0 is FedAvg."""

    paper: ClassVar[str] = "Li et al., MLSys 2020, Eq. 2"

    mu: NonNegative = setting(0.1, help="weight of the proximal term", source="Eq. 2", search=(0.1, 0.5, 0.9))

    def terms(self) -> dict[str, Term]:
        """F_k(w) + mu/2 ||w - w_t||^2."""
        return super().terms() | {"proximal": Term(self.proximal, self.mu / 2)}

    def proximal(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||w - w_t||^2."""
        return (net.weights - context.received).squared_norm()
