"""MOON: keep the representation near the global model's and away from the client's own last one.

Li, He and Song, Model-contrastive federated learning, CVPR 2021, Eq. 3-4: with s the cosine similarity,
CE + mu * mean of -log(e^{s(z, z_g)/tau} / (e^{s(z, z_g)/tau} + e^{s(z, z_prev)/tau})). z is the projected
representation of the model at work, z_g that of the model received, z_prev that of the client's model at
the end of its last round.

Choices:

- ``projection``: see :mod:`fedshift.methods.projection`.
- z_prev of a client's first round comes from the run's initial model, whenever that round is. Eq. 3 alone
  would leave it open; a client has no other model of its own.
- z_g and z_prev are taken in evaluation mode and without gradient (public code).
- With ``bn = "local"`` the model received has no batch norm, so z_g is the received weights with the client's
  batch norms *as they stand at that step* (this batch's statistics included); the previous model keeps the batch
  norms that it was trained with.
- z_prev of a client that was absent is that of the last round that it trained in, whether its answer came in time
  or not.
"""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from typing import ClassVar

from fedshift.methods.projection import Projected
from fedshift.page import *


def contrast(z: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Eq. 3 for representations (B, d), mean over the batch: -log(e^a / (e^a + e^b)) = softplus(b - a)."""
    similarity = F.cosine_similarity(z, positive, dim=1)
    dissimilarity = F.cosine_similarity(z, negative, dim=1)
    return F.softplus((dissimilarity - similarity) / temperature).mean()


class MOON(Projected):
    """FedAvg with a contrast of models; mu = 0 without projection is FedAvg."""

    paper: ClassVar[str] = "Li, He and Song, CVPR 2021, Eq. 4"

    mu: NonNegative = setting(1.0, help="weight of the contrastive term", source="Eq. 4", search=(0.01, 0.1, 1.0))
    temperature: Positive = setting(0.5, help="temperature tau of the contrast", source="Eq. 3")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts; the client's previous encoder and projection, never moved."""
        shared = super().parts(model)
        read = OrderedDict((name, part.module) for name, part in shared.items() if name != "head")
        previous = nn.Sequential(deepcopy(read)).requires_grad_(False)
        return {**shared, "previous": Part(previous, "client")}

    def terms(self) -> dict[str, Term]:
        """F_k(w) + mu * contrast (Eq. 4)."""
        return super().terms() | {"contrastive": Term(self.contrastive, self.mu)}

    def contrastive(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The contrast of z with z_g and z_prev (Eq. 3)."""
        z_global = net.frozen("encoder", context.received.of("encoder"), batch.x)
        if self.projection == "mlp":
            z_global = net.frozen("projection", context.received.of("projection"), z_global)
        z_previous = net.frozen("previous", Tensors(), batch.x)
        return contrast(batch.z, z_global, z_previous, self.temperature)

    def keep(self, work: LocalWork) -> Tensors:
        """The model as trained, batch norms of the client's own included, becomes the previous one."""
        previous = work.private.of("previous")
        return (work.private | work.trained).only(previous).under("previous")
