r"""Mixup: train on convex combinations of samples and of their labels.

Zhang, Cisse, Dauphin and Lopez-Paz, mixup: beyond empirical risk minimization, ICLR 2018; across domains Yan et al.,
Improve unsupervised domain adaptation with mixup training, arXiv:2001.00677, 2020.

With a partner :math:`(x', y')` of the sample (x, y) and :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, the loss
is

.. math::

    \lambda\, \mathrm{CE}(f(\tilde x), y) + (1 - \lambda)\, \mathrm{CE}(f(\tilde x), y'), \qquad
    \tilde x = \lambda x + (1 - \lambda) x'.

The federated form mixes the samples of one client, the pooled form the samples of a batch, across environments too.

**When to choose it.** There is no measured gain over FedAvg (-0.5 points on a held-out angle of RotatedMNIST, +4.3
on Digits, -0.9 on Heart, -1.1 on OPT, +0.4 on held-out domains of frozen PACS features, not clear). Pooled it is 6.7
above FedAvg on Digits [2.1, 11.2], as pooled training alone (6.1).

**Unavailable clients.** As in FedAvg: absent clients are not in the mean, and clients keep no state.

**Choices.**

- The partner is the previous sample of the batch, whose order is random, and lambda is one number for a batch (public
  code).
- Beta is drawn from declared uniform numbers by Johnk's method with 32 tries, which all fail in one batch of 4 billion
  at alpha = 1, the largest value allowed, and in fewer below.
- Inputs are mixed as the network reads them, so tokens are refused. Class weights apply to the sample and its partner.
- As alpha approaches 0 it becomes FedAvg, or pooled training.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.methods.references import Centralised
from fedshift.page import *

TRIES = 32


def draw_beta(uniform: Tensor, alpha: float) -> Tensor:
    """A scalar draw of Beta(alpha, alpha), alpha <= 1, from uniform numbers (tries, 2) (Johnk, 1964)."""
    a, b = (uniform.log() / alpha).unbind(dim=1)
    accepted = (torch.logaddexp(a, b) <= 0).to(a).argmax(dim=0, keepdim=True)
    return (a - b).sigmoid().gather(0, accepted).squeeze(0)


class Mixup(FedAvg):
    """FedAvg on mixtures of each client's samples."""

    paper: ClassVar[str] = "Zhang et al., ICLR 2018"

    alpha: Fraction = setting(
        0.2, help="parameter of the mixture's distribution Beta(alpha, alpha)", search=(0.2, 1.0, 0.05)
    )

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """Uniform numbers (tries, 2) of the mixing weight."""
        return {"mixture": Draw((TRIES, 2), "uniform")}

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with z (B, d) of the mixed inputs, or of x itself in prediction."""
        if "mixture" not in noise:
            return super().encode(net, batch, noise)
        if not batch.x.is_floating_point():
            raise FedshiftError("Mixup mixes inputs, but these are tokens: use another method, such as 'fedavg'.")
        lam = draw_beta(noise["mixture"], self.alpha)
        return super().encode(net, batch._replace(x=lam * batch.x + (1 - lam) * batch.x.roll(1, 0)), noise)

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mixed cross-entropy, mean over the batch."""
        logits, lam = batch.once(net.head, batch.z), draw_beta(context.noise["mixture"], self.alpha)
        partner = batch._replace(y=batch.y.roll(1), weight=None if batch.weight is None else batch.weight.roll(1))
        return lam * batch.cross_entropy(logits) + (1 - lam) * partner.cross_entropy(logits)


class PooledMixup(Centralised, Mixup):
    """Mixup on pooled data, across environments."""

    paper: ClassVar[str] = Mixup.paper
