"""Environments of a domain-generalisation objective, in a federated and a pooled form.

Both forms of a method have one objective over environments e. In the federated form each client is an environment: its
batches come from that environment alone, and statistics of the other environments come from the server. In the pooled
form (:class:`Pooled`) a batch is drawn from all training data, as in DomainBed, and the objective covers the
environments in the batch, given by :attr:`Samples.environment`, usually the domains. A pooled batch is uniform over
all samples and its risk is their mean, so without its penalty a pooled method is pooled training; DomainBed draws
equally many samples from each environment. An environment that is missing from a batch is skipped in that step.
"""

from __future__ import annotations

from fedshift.methods.references import Centralised
from fedshift.page import *


def environment_mask(batch: Batch) -> Tensor:
    """Membership mask (E, B) of 0 and 1; a batch without environment labels counts as one environment."""
    return batch.environment.T if len(batch.environment) else batch.z.new_ones(1, len(batch.y))


def environment_means(member: Tensor, values: Tensor) -> Tensor:
    """Mean of values (B, ...) by environment, (E, ...); 0 for an environment without samples."""
    share = member / member.sum(dim=1, keepdim=True).clamp(min=1)
    return (share.view(*share.shape, *[1] * (values.ndim - 1)) * values).sum(dim=1)


def present_environments(member: Tensor, least: int = 1) -> Tensor:
    """Mask (E,) of the environments with at least ``least`` samples in the batch."""
    return (member.sum(dim=1) >= least).to(member)


def mean_over(values: Tensor, present: Tensor) -> Tensor:
    """Mean of values (E, ...) over the environments in the mask ``present`` (E,); 0 if it is empty."""
    return (present.view(-1, *[1] * (values.ndim - 1)) * values).sum(dim=0) / present.sum().clamp(min=1)


class Pooled(Centralised):
    """Pooled training whose batches carry environment labels."""

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The method's parts.

        Raises:
            FedshiftError: all clients train in a single environment.
        """
        if model.environments < 2:
            raise FedshiftError(
                f"{self.label} compares training environments, but all clients train in a single one: use data with "
                "several (for colored-mnist and waterbird another seed, or more data.train_p), or use 'centralised'."
            )
        return super().parts(model)

    def phases(self) -> Phases:
        """Local training with environment labels."""
        return (Phase("train", (self.objective("train"),), environments=True),)
