"""IRMv1: features on which one classifier is optimal in every environment.

Arjovsky et al., Invariant risk minimization, arXiv:1907.02893, 2019, Eq. (IRMv1). With R_e the risk of environment e
and w a scalar on the logits f,

    sum_e R_e(f) + lam ||grad_{w=1} R_e(w f)||^2.

It has nothing of other environments in it, so the federated form is the mean of the clients' own objectives.

Choices:

- The squared gradient is the product of the gradients of two halves of a batch, every other sample (the paper's App. D,
  DomainBed): the square of one is too large by the batch's noise. An environment that is not in both is left out.
- The penalty grows with the square of the logits and the risk does not, so plain SGD at the rates of FedAvg diverges
  where lam is 1 or more (RotatedMNIST). Adam takes the weight of the public code for Colored MNIST, which is the preset
  for coloured images: 91257 after 190 of 501 steps.
- Means over environments stand in the place of sums.
- ``warmup`` percent of the rounds come before the penalty weighs, as in the paper's and DomainBed's code (500 of 5,000
  steps). There Adam starts anew with the penalty, or the loss is divided by lam; here neither.
- With lam = 0 it is FedAvg, or pooled training. An absent client is not in the mean, and nothing is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.environments import Pooled, environment_mask, environment_means, mean_over, present_environments
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def scale_gradients(batch: Batch, logits: Tensor) -> Tensor:
    """d/dw of each sample's cross-entropy on w logits at w = 1, (B,): <softmax(logits) - onehot(y), logits>."""
    own = logits.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return batch.weighted((logits.softmax(dim=1) * logits).sum(dim=1) - own, "none")


def halves(batch: Batch, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each environment's mean of values (B,) over either half of the batch, and 1 for those that are in both, (E,)."""
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
    warmup: Percent = setting(10, help="percent of the rounds, the first ones, without the penalty", source="DomainBed")

    def terms(self) -> dict[str, Term]:
        """R_e + lam ||grad_{w=1} R_e(w f)||^2."""
        return super().terms() | {"invariance": Term(self.penalty, self.lam, after=self.warmup)}

    def penalty(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||grad_{w=1} R_e(w f)||^2, mean over environments."""
        one, other, both = halves(batch, scale_gradients(batch, batch.once(net.head, batch.z)))
        return mean_over(one * other, both)


class PooledIRM(Pooled, IRM):
    """IRMv1 on pooled data: the penalty is over the environments in a batch; lam = 0 is pooled training."""
