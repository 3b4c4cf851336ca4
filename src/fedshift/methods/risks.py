"""What methods that look at the clients' risks share: each client measures its own and says it, one number."""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

RISK = "risk"  # in a reply: R_k at the model that was measured


class RiskMeasured(FedAvg):
    """FedAvg whose clients measure the risk of the model they receive before they train, and send it beside theirs.

    The risk is over all of a client's samples, in evaluation mode and without augmentation.
    """

    uploads: ClassVar[tuple[Upload, ...]] = (Upload(RISK),)

    def phases(self) -> Phases:
        """The risk, then local training."""
        return (Measure(RISK, self.summed_risk), *super().phases())

    @torch.no_grad()
    def summed_risk(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The risk, summed over the batch."""
        return {RISK: len(batch.y) * self.risk(net, self.encode(net, batch, {}), context)}

    def upload(self, work: LocalWork) -> Tensors:
        """R_k."""
        return work.means.only((RISK,))
