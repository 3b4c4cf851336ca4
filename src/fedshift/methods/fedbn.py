"""FedBN: batch normalisation stays at home.

Li et al., FedBN: federated learning on non-IID features via local batch normalization, ICLR 2021,
Algorithm 1: every parameter is averaged but those of the batch-norm layers.

Choices: the statistics stay as well as the scale and shift (as in the paper's code). The paper leaves
open what a client that never trained is given: ``cold``.

An absent client's batch norm stands still.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class FedBN(FedAvg):
    """FedAvg whose batch-norm layers never leave the client."""

    paper: ClassVar[str] = "Li et al., ICLR 2021, Algorithm 1"

    bn: Literal["local", "statistics"] = setting(
        "local", help="what makes it FedBN: batch norm stays on the client; or its statistics alone, which is SiloBN"
    )
    cold: Literal["mean", "reestimate"] = setting(
        "mean",
        help="batch norm of an unseen client: the mean of the clients', or that with its statistics measured "
        "again on its own inputs (no labels)",
    )

    def reestimates(self, unseen: bool) -> bool:
        """For clients that never trained, if ``cold`` says so."""
        return unseen and self.cold == "reestimate"
