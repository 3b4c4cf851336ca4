r"""IRMv1: features on which one classifier is optimal in every environment.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, Invariant risk minimization, arXiv:1907.02893, 2019, Eq. (IRMv1).

With :math:`R_e` the risk of environment e and w a scalar factor of the logits f, the objective is

.. math::

    \frac{1}{E} \sum_e \Big( R_e(f) + \lambda \| \nabla_{w | w = 1} R_e(w f) \|^2 \Big).

An environment's term needs no other environment, so the federated form is the mean of the clients' objectives.

**When to choose it.** Under a shortcut whose strength differs between clients or domains: 19 points above FedAvg on
Colored Fashion-MNIST (pooled 17), level with ``fedpin`` and much simpler. Without a shortcut it gains nothing (-1.0
points on Heart, +0.4 on OPT, not clear), and on RotatedMNIST it diverges in a seed of five.

**Unavailable clients.** As in FedAvg: absent clients are not in the mean, and clients keep no state.

**Choices.**

- The squared gradient is the product of the gradients on two halves of a batch, every other sample (the paper's App.
  D, DomainBed): a square would be biased by the batch's noise. An environment that is not in both halves is skipped.
- The penalty grows with the square of the logits, so plain SGD at FedAvg's rates diverges at ``lam`` of 1 or more.
  Adam takes the weight of the public code for Colored MNIST, the preset for coloured images: 91257 after 190 of 501
  steps.
- Means over environments replace the paper's sums.
- ``warmup`` percent of the rounds have no penalty (public codes: weight 1, in DomainBed for 500 of 5,000 steps). There
  Adam restarts with the penalty, or the loss is divided by lam; here neither. The preset omits the public code's
  weight decay.
- With ``lam = 0`` it is FedAvg, or pooled training.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.environments import Pooled, environment_mask, environment_means, mean_over, present_environments
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def scale_gradients(batch: Batch, logits: Tensor) -> Tensor:
    """Derivative (B,) of the cross-entropy on w logits (B, C) at w = 1: <softmax(logits) - onehot(y), logits>."""
    true = logits.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return batch.weighted((logits.softmax(dim=1) * logits).sum(dim=1) - true, "none")


def split_means(batch: Batch, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means of values (B,) by environment over two halves of the batch, and the mask of both halves, (E,) each."""
    member = environment_mask(batch)
    one, other = (environment_means(member[:, start::2], values[start::2]) for start in (0, 1))
    return one, other, present_environments(member[:, 0::2]) * present_environments(member[:, 1::2])


class IRM(FedAvg):
    """FedAvg with IRMv1's penalty on each client; lam = 0 is FedAvg."""

    paper: ClassVar[str] = "Arjovsky et al., 2019 (IRMv1)"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "colored-mnist": {"lam": 91257.0, "warmup": 38},
        "colored-fashion-mnist": {"lam": 91257.0, "warmup": 38},
    }

    lam: NonNegative = setting(0.1, help="weight of the penalty", search=(0.1, 1.0, 0.01))
    warmup: Percent = setting(
        10, help="percentage of the rounds, at the start, without the penalty", source="DomainBed"
    )

    def terms(self) -> dict[str, Term]:
        """The cross-entropy and IRMv1's penalty."""
        return super().terms() | {"invariance": Term(self.penalty, self.lam, after=self.warmup)}

    def penalty(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Squared gradient of the scale of the logits, mean over environments; a scalar."""
        one, other, both = split_means(batch, scale_gradients(batch, batch.once(net.head, batch.z)))
        return mean_over(one * other, both)


class PooledIRM(Pooled, IRM):
    """IRMv1 on pooled data, over the environments of a batch; lam = 0 is pooled training."""

    paper: ClassVar[str] = IRM.paper
