"""FedAvg that measures batch-norm statistics again on the inputs to predict: a control of SiloBN in controls.md."""

from __future__ import annotations

from typing import Literal

import fedshift
from fedshift.spec import setting


@fedshift.METHODS.register("fedavg-reestimated")
class Reestimated(fedshift.FedAvg):
    """FedAvg that predicts as SiloBN does for a held-out domain."""

    bn: Literal["reestimate"] = setting("reestimate", help="batch-norm statistics: measured again")
