r"""FedLC: calibrate the logits by the frequency of each class on the client.

Zhang et al., Federated learning with label distribution skew via logits calibration, ICML 2022.

With :math:`n_c` the client's samples of class c and logits :math:`l`, a client minimises

.. math::

    -\log \frac{\exp(l_y - \tau n_y^{-1/4})}{\sum_{c \ne y} \exp(l_c - \tau n_c^{-1/4})},

which enlarges the margins of classes that are rare on the client.

**When to choose it.** For label skew under one global model. No gain over FedAvg was measured (-0.2 points on Heart,
0.0 on OPT, +0.5 on held-out domains of frozen PACS features, +0.2 on a held-out angle of RotatedMNIST); on the
hospitals the grid chose the smallest ``tau``.

**Unavailable clients.** As in FedAvg: absent clients are not in the mean, and clients keep no state.

**Choices.**

- Clients have equal weight (the paper weights by samples: ``weighting = "samples"``).
- ``denominator``: the paper omits the true class from the sum, so the loss has no lower bound and diverges in
  practice; "all", the default, is the calibrated cross-entropy of its public ports.
- Classes that the client does not have are omitted from the sum, since their margin is infinite; their logits get no
  gradient. With ``tau = 0`` and every class present it is FedAvg.
- A client with a single class has the loss 0.
- Class weights and balanced batches are refused, since the margins already correct for class frequencies.
- Prediction uses the uncalibrated logits.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import check_unbalanced
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def calibrated(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Subtract tau n_c^(-1/4) from logits (B, C); -inf, without gradient, where counts (C,) are 0."""
    margins = tau * counts.clamp(min=1).to(logits.dtype).pow(-0.25)
    return (logits - margins).masked_fill(counts == 0, -float("inf"))


def against_others(logits: Tensor, y: Tensor) -> Tensor:
    """Mean of log sum_{c != y} e^{l_c} - l_y over logits (B, C) and labels y (B,); 0 if all other logits are -inf."""
    true = F.one_hot(y, logits.shape[1]).bool()
    others = logits.masked_fill(true, -float("inf")).logsumexp(dim=1)
    margins = others - logits.gather(1, y.unsqueeze(1)).squeeze(1)
    return margins.masked_fill(others.isneginf(), 0.0).mean()


class FedLC(FedAvg):
    """FedAvg with a cross-entropy that enlarges the margins of the client's rare classes."""

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
        """Refuse class weights and balanced batches: the margins already correct for class counts."""
        check_unbalanced(train, "FedLC sets margins by the client's class counts")

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Calibrated cross-entropy, mean over the batch."""
        logits = calibrated(net.head(batch.z), context.counts, self.tau)
        if self.denominator == "others":
            return against_others(logits, batch.y)
        return F.cross_entropy(logits, batch.y)
