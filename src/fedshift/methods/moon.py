r"""MOON: contrast the representation with the global model's and the client's previous model's.

Li, He and Song, Model-contrastive federated learning, CVPR 2021, Eq. 3-4.

With s the cosine similarity, z the representation of the current model, :math:`z_g` of the received model and
:math:`z_{prev}` of the client's model at the end of its last round, a client minimises (Eq. 3-4)

.. math::

    \mathrm{CE} - \mu \log \frac{e^{s(z, z_g) / \tau}}{e^{s(z, z_g) / \tau} + e^{s(z, z_{prev}) / \tau}}.

**When to choose it.** No gain was measured: -0.5 points against FedAvg on RotatedMNIST in-domain on the same network
and +0.6 [0.0, 1.2] with a projection for both (-5.8 in short training), +0.4 on a held-out angle, tuned; -0.1 on Heart,
-0.5 on OPT, +0.1 on held-out domains of frozen PACS features.

**Unavailable clients.** An absent client keeps the previous model of the last round in which it trained; a late
client's previous model was never aggregated.

**Choices.**

- ``projection`` inserts the paper's two layers, which the head reads too.
- :math:`z_{prev}` of a client's first round comes from the initial model.
- :math:`z_g` and :math:`z_{prev}` are computed in evaluation mode without gradient (public code).
- With ``bn = "local"`` :math:`z_g` uses the received weights with the client's current batch norms; the previous model
  keeps its batch norms.
"""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from typing import ClassVar

from fedshift.methods.projection import Projected
from fedshift.page import *


def contrast(z: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Eq. 3 for representations (B, d) as softplus(b - a) = -log(e^a / (e^a + e^b)), mean over the batch."""
    similarity = F.cosine_similarity(z, positive, dim=1)
    dissimilarity = F.cosine_similarity(z, negative, dim=1)
    return F.softplus((dissimilarity - similarity) / temperature).mean()


class MOON(Projected):
    """FedAvg with a model contrast; mu = 0 without projection is FedAvg."""

    paper: ClassVar[str] = "Li, He and Song, CVPR 2021, Eq. 4"

    mu: NonNegative = setting(1.0, help="weight of the contrastive term", source="Eq. 4", search=(0.01, 0.1, 1.0))
    temperature: Positive = setting(0.5, help="temperature tau of the contrast", source="Eq. 3")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts, and the client's previous encoder and projection, which are not trained."""
        shared = super().parts(model)
        read = OrderedDict((name, part.module) for name, part in shared.items() if name != "head")
        previous = nn.Sequential(deepcopy(read)).requires_grad_(False)
        return {**shared, "previous": Part(previous, "client")}

    def terms(self) -> dict[str, Term]:
        """The cross-entropy and the contrast (Eq. 4)."""
        return super().terms() | {"contrastive": Term(self.contrastive, self.mu)}

    def contrastive(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The contrast of z with z_g and z_prev (Eq. 3), a scalar."""
        z_global = net.frozen("encoder", context.received.of("encoder"), batch.x)
        if self.projection == "mlp":
            z_global = net.frozen("projection", context.received.of("projection"), z_global)
        z_previous = net.frozen("previous", Tensors(), batch.x)
        return contrast(batch.z, z_global, z_previous, self.temperature)

    def keep(self, work: LocalWork) -> Tensors:
        """The trained model, with local batch norms, as the previous model."""
        previous = work.private.of("previous")
        return (work.private | work.trained).only(previous).under("previous")
