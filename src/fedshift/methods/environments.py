"""Training environments: the equation of a method for domain generalisation, federated and pooled.

Both forms of a method are one equation over environments e. In the federated form each client is an environment, its
batch is of that environment alone, and what an equation reads of the others comes from the server. In the pooled form
(:class:`Pooled`) a batch is drawn from all training data, as DomainBed's methods see them, and the equation is over the
environments that are in the batch; they are those of :attr:`Samples.environment`, mostly the domains.

Choices:

- Pooled batches are drawn from all samples alike, and the risk is their mean, so that without its term a pooled method
  is :class:`~fedshift.methods.references.Centralised`. DomainBed draws equally many samples from each environment.
- An environment that is not in the batch is left out of that step's mean over environments.
"""

from __future__ import annotations

from fedshift.methods.references import Centralised
from fedshift.page import *


def members(batch: Batch) -> Tensor:
    """1 where a sample is of an environment, else 0, (E, B); a batch that does not say is of one."""
    return batch.environment.T if len(batch.environment) else batch.z.new_ones(1, len(batch.y))


def means(member: Tensor, values: Tensor) -> Tensor:
    """The mean of values (B, ...) over the samples of each environment, (E, ...); 0 of none."""
    share = member / member.sum(dim=1, keepdim=True).clamp(min=1)
    return (share.view(*share.shape, *[1] * (values.ndim - 1)) * values).sum(dim=1)


def among(member: Tensor, least: int = 1) -> Tensor:
    """1 for the environments that have at least so many samples, else 0, (E,)."""
    return (member.sum(dim=1) >= least).to(member)


def over(values: Tensor, present: Tensor) -> Tensor:
    """The mean of values (E, ...) over the environments that are present (E,); 0 over none."""
    return (present.view(-1, *[1] * (values.ndim - 1)) * values).sum(dim=0) / present.sum().clamp(min=1)


class Pooled(Centralised):
    """Pooled training whose batches say of which environment each sample is."""

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Those of the method.

        Raises:
            FedshiftError: there is a single environment.
        """
        if model.environments < 2:
            raise FedshiftError(
                f"{self.label} compares training environments, but all clients train in one: give data of several (for "
                "colored-mnist and waterbird another seed, or more data.train_p), or take 'centralised'."
            )
        return super().parts(model)

    def phases(self) -> Phases:
        """Local training, with environments."""
        return (Phase("train", (self.objective("train"),), environments=True),)
