"""CORAL: features whose mean and covariance are the same in every environment.

Sun and Saenko, Deep CORAL: correlation alignment for deep domain adaptation, ECCV workshops 2016, for several
environments as in DomainBed (Gulrajani and Lopez-Paz, ICLR 2021). With m_e and C_e the mean and the covariance of z,

    mean_e R_e + gamma mean_e (||m_e - m||^2 / d + ||C_e - C||_F^2 / d^2)

and m, C the means of m_e, C_e over environments. The mean over pairs of environments, which DomainBed has, is
2 E / (E - 1) times as much.

Choices:

- Deviations add up to 0, so that m and C can stand still while a client trains: its gradient is that of the equation.
- A client measures m_k and C_k of the model it has trained, over all its samples, in evaluation mode and without
  augmentation, and sends them beside it; their means go down in the next round. In round 1 nobody knows them.
- Covariances of batches are divided by one less than the samples; an environment with a single sample has none, and is
  left out of that step. A batch's noise is part of its distance, as in the public codes.
- In the pooled form m and C are those of the batch, and gradients go through them.
- With gamma = 0 it is FedAvg, or pooled training. m and C are over those that answered; nothing of a client's is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.environments import Pooled, among, means, members, over
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def moments(member: Tensor, z: Tensor) -> Tensors:
    """Mean (E, d) and covariance (E, d, d) of z (B, d) in each environment."""
    mean, count = means(member, z), member.sum(dim=1)
    centred = member.unsqueeze(2) * (z - mean.unsqueeze(1))
    covariance = centred.mT @ centred / (count - 1).clamp(min=1).view(-1, 1, 1)
    return Tensors({"mean": mean, "covariance": covariance})


class Aligned(FedAvg):
    """The equation, less what it takes the environments' mean from."""

    paper: ClassVar[str] = "Sun and Saenko, 2016; Gulrajani and Lopez-Paz, ICLR 2021"

    gamma: NonNegative = setting(1.0, help="weight of the distance", search=(1.0, 0.1, 10.0))
    since: ClassVar[int] = 1

    def terms(self) -> dict[str, Term]:
        """R_e + gamma (||m_e - m||^2 / d + ||C_e - C||^2 / d^2)."""
        return super().terms() | {"alignment": Term(self.distance, self.gamma, since=self.since)}

    def distance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||m_e - m||^2 / d + ||C_e - C||^2 / d^2, mean over environments."""
        member = members(batch)
        own, present = moments(member, batch.z), among(member, least=2)
        squares = (own - self.mean(net, own, present)).map(lambda each: each.square().flatten(1).mean(dim=1))
        return over(squares["mean"] + squares["covariance"], present)

    def mean(self, net: Net, own: Tensors, present: Tensor) -> Tensors:
        """M and C, of those of the environments that are present."""
        return own.map(lambda each: over(each, present))


class CORAL(Aligned):
    """FedAvg with a penalty on how far a batch's moments are from the mean of the clients'; gamma = 0 is FedAvg."""

    uploads: ClassVar[tuple[Upload, ...]] = (Upload.like("moments", "moments", "statistic"),)
    since: ClassVar[int] = 2

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, m and C."""
        zeros = {"mean": torch.zeros(model.dim), "covariance": torch.zeros(model.dim, model.dim)}
        return {**super().parts(model), "moments": Part.state(zeros, "down")}

    def mean(self, net: Net, own: Tensors, present: Tensor) -> Tensors:
        """M and C of the round before."""
        return net.of("moments")

    def phases(self) -> Phases:
        """Local training, then the moments of the trained model."""
        return (*super().phases(), Measure("moments", self.sums))

    def sums(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Of z and of z z', over the batch."""
        z = self.encode(net, batch, {}).z
        return {"mean": z.sum(dim=0), "covariance": z.T @ z}

    def upload(self, work: LocalWork) -> Tensors:
        """m_k and C_k."""
        mean, square = work.means["mean"], work.means["covariance"]
        return Tensors({"mean": mean, "covariance": square - torch.outer(mean, mean)}).under("moments")

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The means of m_k and C_k."""
        return replies.mean().of_parts(("moments",))


class PooledCORAL(Pooled, Aligned):
    """CORAL on pooled data, over the environments in a batch; gamma = 0 is pooled training."""
