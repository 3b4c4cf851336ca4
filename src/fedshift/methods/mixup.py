"""Mixup: training on mixtures of samples and of their labels.

Zhang et al., mixup: beyond empirical risk minimization, ICLR 2018; over domains Yan et al., Improve unsupervised domain
adaptation with mixup training, 2020. With (x', y') a partner of (x, y) and lam ~ Beta(alpha, alpha), the loss is

    lam CE(f(lam x + (1 - lam) x'), y) + (1 - lam) CE(f(lam x + (1 - lam) x'), y').

The federated form mixes a client's own samples. The pooled one mixes what the batch has, over environments as well.

Choices:

- A partner is the sample before in the batch, whose order is random, and lam is one number a batch (public code).
- Beta is drawn from declared uniform numbers, by Johnk's method: with a and b of them, a^(1/alpha) over the sum of both
  powers is kept where the sum is at most 1. Of 32 tries none is so in one batch of 4 billion at alpha = 1, the largest
  that is allowed, and in fewer below.
- Inputs are mixed as the network reads them, so tokens are refused. Class weights are a sample's own and its partner's.
- As alpha goes to 0, lam is 0 or 1 and it is FedAvg, or pooled training.
- An absent client is not in the mean, and nothing is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.methods.references import Centralised
from fedshift.page import *

TRIES = 32


def beta(uniform: Tensor, alpha: float) -> Tensor:
    """A draw of Beta(alpha, alpha), of shape (), from uniform numbers (tries, 2), for alpha at most 1 (Johnk, 1964)."""
    a, b = (uniform.log() / alpha).unbind(dim=1)
    kept = (torch.logaddexp(a, b) <= 0).to(a).argmax(dim=0, keepdim=True)
    return (a - b).sigmoid().gather(0, kept).squeeze(0)


class Mixup(FedAvg):
    """FedAvg whose clients train on mixtures of their samples."""

    paper: ClassVar[str] = "Zhang et al., ICLR 2018"

    alpha: Fraction = setting(0.2, help="of Beta(alpha, alpha), of which the mixture is drawn", search=(0.2, 1.0, 0.05))

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """What the mixture is made of."""
        return {"mixture": Draw((TRIES, 2), "uniform")}

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with z of lam x + (1 - lam) x'; of x alone where nothing is drawn, as for a prediction."""
        if "mixture" not in noise:
            return super().encode(net, batch, noise)
        if not batch.x.is_floating_point():
            raise FedshiftError("Mixup mixes inputs, but these are tokens: take another method, such as 'fedavg'.")
        lam = beta(noise["mixture"], self.alpha)
        return super().encode(net, batch._replace(x=lam * batch.x + (1 - lam) * batch.x.roll(1, 0)), noise)

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Lam CE(y) + (1 - lam) CE(y')."""
        logits, lam = batch.once(net.head, batch.z), beta(context.noise["mixture"], self.alpha)
        partner = batch._replace(y=batch.y.roll(1), weight=None if batch.weight is None else batch.weight.roll(1))
        return lam * batch.cross_entropy(logits) + (1 - lam) * partner.cross_entropy(logits)


class PooledMixup(Centralised, Mixup):
    """Mixup on pooled data, over environments as well."""
