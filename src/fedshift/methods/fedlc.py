"""FedLC: calibrate the logits by how rare each class is on the client.

Zhang et al., Federated learning with label distribution skew via logits calibration, ICML 2022:
-log(e^{l_y - tau n_y^(-1/4)} / sum_{c != y} e^{l_c - tau n_c^(-1/4)}), n_c the client's samples of class c.

Choices:

- ``denominator``: the paper leaves the true class out of the sum, so that the loss has no lower bound and
  diverges in practice; "all" is the calibrated cross-entropy of its public ports.
- Classes that the client does not have are left out of the sum (their margin would be infinite), so their logits
  receive no gradient. With tau = 0 and every class present it is FedAvg.
- With "others", a client of a single class has nothing in the sum: its loss is 0, as it is with "all".
- Neither class weights nor balanced batches: the margins are by the counts of what the client trains on, each sample
  alike, and a weight would correct for the same rareness again.
- Prediction takes the logits as they are.
- Absent clients are not in the mean; nothing of them is kept.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import check_unbalanced
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def calibrated(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Logits (B, C) less tau n_c^(-1/4); -inf, without gradient, for classes with the count 0 of counts (C,)."""
    margins = tau * counts.clamp(min=1).to(logits.dtype).pow(-0.25)
    return (logits - margins).masked_fill(counts == 0, -float("inf"))


def against_others(logits: Tensor, y: Tensor) -> Tensor:
    """The mean of log sum_{c != y} e^{l_c} - l_y over the batch; 0 for a row whose other logits are all -inf."""
    own = F.one_hot(y, logits.shape[1]).bool()
    others = logits.masked_fill(own, -float("inf")).logsumexp(dim=1)
    margins = others - logits.gather(1, y.unsqueeze(1)).squeeze(1)
    return margins.masked_fill(others.isneginf(), 0.0).mean()


class FedLC(FedAvg):
    """FedAvg with a cross-entropy that widens the margin of classes rare on the client."""

    paper: ClassVar[str] = "Zhang et al., ICML 2022"

    tau: NonNegative = setting(
        1.0, help="scale of the calibration", source="calibrated cross-entropy", search=Range(0.01, 10, log=True)
    )
    denominator: Literal["all", "others"] = setting(
        "all",
        help="classes in the denominator: all, or all but the true one (paper)",
        source="calibrated cross-entropy",
    )

    def check(self, train: Train) -> None:
        """The margins are by the client's counts already."""
        check_unbalanced(train, "FedLC has margins by the client's class counts")

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The calibrated cross-entropy, mean over the batch."""
        logits = calibrated(net.head(batch.z), context.counts, self.tau)
        if self.denominator == "others":
            return against_others(logits, batch.y)
        return F.cross_entropy(logits, batch.y)
