r"""V-REx: penalise the variance of the risks over environments.

Krueger et al., Out-of-distribution generalization via risk extrapolation (REx), ICML 2021, Eq. (V-REx).

With :math:`R_e` the risk of environment e, the objective is, with a mean in place of the paper's sum,

.. math::

    \frac{1}{E} \sum_e R_e + \beta\, \mathrm{Var}_e(R_e).

Deviations from the mean sum to 0, so a client needs one number from the others, their mean risk r, and minimises
:math:`R_k + \beta (R_k - r)^2`.

**When to choose it.** Under a shortcut, ``irm`` is better: V-REx is 7 points above FedAvg on Colored Fashion-MNIST
(pooled 4), IRMv1 19 (pooled 17). It gains nothing on the hospitals' tables (-0.1 points on both),
and nothing clear on a held-out angle of RotatedMNIST (+0.7) and on Digits (+1.1).

**Unavailable clients.** The risk of an absent client is missing from the mean of the next round. Clients keep no
state.

**Choices.**

- r is the mean of the risks at the start of the last round: clients measure their risk at the received model and
  upload it with the model. A probe before training would give it a round earlier, for twice the bytes.
- :math:`(R_k - r)^2` rather than the weight :math:`1 + 2 \beta (R_k - r)` of the first step, which has no lower bound
  if it is negative.
- Since r is constant in a round, with a large beta no risk falls by more than 1 / (2 beta) below it: the penalty is
  for a model that has learned features. ``warmup`` percent of the rounds have no penalty (DomainBed: weight 1 for 500
  of 5,000 steps); the federated form has at least one such round.
- Clients can make risks equal for a reason that is not invariant: at 10 local steps the federated form follows the
  colour of Colored Fashion-MNIST at published weights.
- The noise of a batch's risk is part of the variance, as in DomainBed. With few samples of each environment it
  dominates, and pooled RotatedMNIST, with six, collapses at beta = 1.
- beta is the paper's divided by the number of environments, and twice the weight of the public code for two.
- r is measured in evaluation mode without augmentation, :math:`R_k` in training mode.
- In the pooled form r is the mean over the environments of the batch. The variance is divided by their number.
- With ``beta = 0`` it is FedAvg, or pooled training.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.environments import Pooled, environment_mask, environment_means, mean_over, present_environments
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.risks import RISK, RiskMeasured
from fedshift.page import *


class RiskVariance(FedAvg):
    """The penalised objective; subclasses provide the mean risk."""

    paper: ClassVar[str] = "Krueger et al., ICML 2021"

    beta: NonNegative = setting(0.1, help="weight of the variance of risks", search=(0.1, 1.0, 10.0))
    warmup: Percent = setting(
        10, help="percentage of the rounds, at the start, without the penalty", source="DomainBed"
    )
    since: ClassVar[int] = 1

    def terms(self) -> dict[str, Term]:
        """The cross-entropy and the variance penalty."""
        return super().terms() | {"variance": Term(self.variance, self.beta, since=self.since, after=self.warmup)}

    def variance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(R_e - r)^2, mean over environments; a scalar."""
        member = environment_mask(batch)
        risks = environment_means(member, batch.cross_entropy(batch.once(net.head, batch.z), "none"))
        present = present_environments(member)
        return mean_over((risks - self.mean(net, risks, present)).square(), present)

    def mean(self, net: Net, risks: Tensor, present: Tensor) -> Tensor:
        """The mean risk r over the environments present (E,)."""
        return mean_over(risks, present)


class VREx(RiskMeasured, RiskVariance):
    """FedAvg with a penalty on the distance of a client's risk from the mean; beta = 0 is FedAvg."""

    since: ClassVar[int] = 2

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, and the broadcast mean risk r."""
        return {**super().parts(model), "mean_risk": Part.state(torch.zeros(()), "down")}

    def mean(self, net: Net, risks: Tensor, present: Tensor) -> Tensor:
        """The mean risk r of the last round."""
        return net.value("mean_risk")

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The mean risk r of the round."""
        return {"mean_risk": replies.mean((RISK,))[RISK]}


class PooledVREx(Pooled, RiskVariance):
    """V-REx on pooled data, over the environments of a batch; beta = 0 is pooled training."""

    paper: ClassVar[str] = RiskVariance.paper
