"""Methods whose clients upload their risk, one number."""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

RISK = "risk"  # in an update: R_k at the measured model


class RiskMeasured(FedAvg):
    """FedAvg whose clients also upload the risk of the received model, over all samples without augmentation."""

    uploads: ClassVar[tuple[Upload, ...]] = (Upload(RISK),)

    def phases(self) -> Phases:
        """The risk, then local training."""
        return (Measure(RISK, self.summed_risk), *super().phases())

    @torch.no_grad()
    def summed_risk(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The risk, summed over the batch."""
        return {RISK: len(batch.y) * self.risk(net, self.encode(net, batch, {}), context)}

    def upload(self, work: LocalWork) -> Tensors:
        """R_k, a scalar."""
        return work.means.only((RISK,))
