"""V-REx: risks that are equal over environments.

Krueger et al., Out-of-distribution generalization via risk extrapolation (REx), ICML 2021, Eq. (V-REx):

    mean_e R_e + beta Var_e(R_e).

The variance reaches the model through a client's own risk by 2/K (R_k - mean R) grad R_k, since the deviations add up
to 0. So a client needs one number of the others, their mean risk r, and minimises R_k + beta (R_k - r)^2.

Choices:

- r is the mean of the risks that the round before began with: each client measures its own at the model it received and
  sends it beside its model. A probe before training would know it a round earlier, for twice the bytes of the models.
- (R_k - r)^2 rather than the weight 1 + 2 beta (R_k - r) of the round's first step: it stops where the risks are equal,
  while a constant negative weight climbs without end, and climbs the further the more steps a round has.
- r stands still within a round. With a large beta no risk falls further below it in a round than 1 / (2 beta), so the
  penalty is for a model that has learned what to see: ``warmup`` percent of the rounds come before (DomainBed: 500 of
  5,000 steps); in the federated form one at least, in which r is measured.
- Risks that clients make equal each by itself need not be so for an invariant reason: on Colored Fashion-MNIST, at 10
  steps a round, the federated form follows the colour, the pooled one does less, and federated IRM does not.
- The noise of a batch's risk is part of the variance, as in DomainBed. Where a batch has few samples of an environment
  it is most of it, and a constant has none: pooled RotatedMNIST, with six of each, ends there at beta = 1. A product of
  two halves' deviations would be without the noise, and without a lower bound; it ended there as well.
- In the pooled form r is the mean over the environments in the batch.
- The variance is divided by the number of environments, as in DomainBed.
- With beta = 0 it is FedAvg, or pooled training. r is over those that answered; nothing of a client's is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.environments import Pooled, environment_mask, environment_means, mean_over, present_environments
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.risks import RISK, RiskMeasured
from fedshift.page import *


class RiskVariance(FedAvg):
    """The equation, less what it takes the mean risk from."""

    paper: ClassVar[str] = "Krueger et al., ICML 2021"

    beta: NonNegative = setting(0.1, help="weight of the variance of risks", search=(0.1, 1.0, 10.0))
    warmup: Percent = setting(10, help="percent of the rounds, the first ones, without the penalty", source="DomainBed")
    since: ClassVar[int] = 1

    def terms(self) -> dict[str, Term]:
        """R_e + beta Var(R)."""
        return super().terms() | {"variance": Term(self.variance, self.beta, since=self.since, after=self.warmup)}

    def variance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(R_e - r)^2, mean over environments."""
        member = environment_mask(batch)
        risks = environment_means(member, batch.cross_entropy(batch.once(net.head, batch.z), "none"))
        present = present_environments(member)
        return mean_over((risks - self.mean(net, risks, present)).square(), present)

    def mean(self, net: Net, risks: Tensor, present: Tensor) -> Tensor:
        """R, of the risks (E,) of the environments that are present."""
        return mean_over(risks, present)


class VREx(RiskMeasured, RiskVariance):
    """FedAvg with a penalty on how far a client's risk is from the mean of all; beta = 0 is FedAvg."""

    since: ClassVar[int] = 2

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts and the mean risk r."""
        return {**super().parts(model), "mean_risk": Part.state(torch.zeros(()), "down")}

    def mean(self, net: Net, risks: Tensor, present: Tensor) -> Tensor:
        """R of the round before."""
        return net.value("mean_risk")

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """R of those who answered."""
        return {"mean_risk": replies.mean((RISK,))[RISK]}


class PooledVREx(Pooled, RiskVariance):
    """V-REx on pooled data, over the environments in a batch; beta = 0 is pooled training."""
