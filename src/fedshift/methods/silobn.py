"""SiloBN: the statistics of batch norm stay at home, its scale and shift are averaged.

Andreux, du Terrail, Beguier and Tramel, Siloed federated learning for multi-centric histopathology datasets, DCL at
MICCAI 2020, Algorithm 1: FedAvg of every parameter, without the running means and variances. A centre that did not
train is given the shared parameters and statistics of its own inputs, without labels.

Choices: ``cold = "mean"`` gives an unseen client the mean of the clients' statistics in their place, for which no
input of it is needed. Without batch norm it is FedAvg.

An absent client's statistics stand still and meet the newer weights when it is back.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedbn import FedBN
from fedshift.page import *


class SiloBN(FedBN):
    """FedAvg whose batch-norm statistics never leave the client."""

    paper: ClassVar[str] = "Andreux et al., DCL 2020, Algorithm 1"

    bn: Literal["statistics"] = setting("statistics", help="what makes it SiloBN: statistics stay on the client")
    cold: Literal["mean", "reestimate"] = setting(
        "reestimate",
        help="statistics of an unseen client: measured on its own inputs (no labels), or the mean of the clients'",
        source="Sec. 3",
    )
