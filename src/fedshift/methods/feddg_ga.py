r"""FedDG-GA: aggregation weights grow for clients whose loss rises most by averaging.

Zhang, Xu, Yao and Wang, Federated domain generalization with generalization adjustment, CVPR 2023, Eq. 7-9 and
Algorithm 1.

Client i has the aggregation weight :math:`a_i`, initially 1/N. Its generalisation gap :math:`G_i` is the increase of
its loss when the mean model w replaces its local model :math:`w_i`. Weights follow the gaps, so that these become
equal:

.. math::

    G_i &= F_i(w) - F_i(w_i), \qquad d_t = (1 - t/T)\, d \\
    a_i &\leftarrow a_i + d_t \frac{G_i - \bar G}{\max_j |G_j - \bar G|},

then they are clipped to [0, 1] and normalised.

**When to choose it.** For domain generalisation with unequal domains: +3.0 points over FedAvg on a held-out angle of
RotatedMNIST [0.7, 5.3] (``fedsr``: +4.5), and no gain elsewhere (+0.2 with other digits, +3.9 on Digits, -0.9 on Heart,
+0.8 on OPT, -0.6 on held-out domains of frozen PACS features, none clear).

**Unavailable clients.** The :math:`a_i` of an absent client changes by the normalisation alone, and its next gap
refers to an older :math:`w_i`. The gap of a late client is lost. If all clients that answered have :math:`a_i = 0`,
they have equal weight.

**Choices.**

- :math:`G_i` is measured on the training samples, in evaluation mode and without augmentation: :math:`F_i(w_i)` after
  local training, :math:`F_i(w)` when w arrives in the next round. So a gap is known from the client's second round on,
  and t counts the rounds before the current one. :math:`F_i(w_i)` stays on the client; the gap is uploaded. The public
  code measures gaps on validation samples, by default of the accuracy.
- :math:`d_t` is divided by N, so that steps do not depend on the number of clients; the public code divides by its
  three.
- The mean is subtracted and the maximum is of absolute values, as in FL4Health; the authors' code subtracts no mean.
- Clients without a gap are in neither the mean nor the maximum.
- With ``weighting = "samples"`` :math:`a_i` multiplies the number of samples. With ``step = 0`` it is FedAvg.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class FedDGGA(FedAvg):
    """FedAvg with aggregation weights that follow the clients' generalisation gaps; step = 0 is FedAvg."""

    paper: ClassVar[str] = "Zhang et al., CVPR 2023, Algorithm 1"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload("gap", (2,)),)  # the gap and 1, or 0 and 0 if it is unknown

    step: NonNegative = setting(0.2, help="step size d of the weights", source="public code", search=(0.1, 0.2, 0.5))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the weights a (N,), and F_i(w_i) with a flag (2,) on each client."""
        weights = Part.state(torch.full((model.clients,), 1 / model.clients), "server")
        return {**super().parts(model), "adjustment": weights, "local_loss": Part.state(torch.zeros(2), "client")}

    def phases(self) -> Phases:
        """The loss of w, local training, the loss of w_i."""
        before, after = (Measure(name, partial(self.loss, name)) for name in ("before", "after"))
        return (before, *super().phases(), after)

    @torch.no_grad()
    def loss(self, name: str, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """F_i, summed over the batch."""
        return {name: len(batch.y) * self.objective(name).loss(net, batch, context)}

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """G_i and 1, or 0 and 0 in the client's first round; (2,)."""
        last, known = work.private["local_loss"]
        return {"gap": known * torch.stack([work.means["before"] - last, known])}

    def keep(self, work: LocalWork) -> Mapping[str, Tensor]:
        """F_i(w_i) and 1; (2,)."""
        loss = work.means["after"]
        return {"local_loss.value": torch.stack([loss, torch.ones_like(loss)])}

    def server_phases(self) -> Phases:
        """The weights, updated before the models are averaged."""
        return (Measure("adjustment", self.adjust_weights),)

    def adjust_weights(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The weights a (N,) after a step by the uploaded gaps (Eq. 7-9)."""
        gap, known = torch.stack([up["gap"] for up in context.replies.ups]).unbind(dim=1)
        deviation = known * (gap - gap.sum() / known.sum().clamp_min(1))
        weights = net.value("adjustment").clone()
        step = self.step / len(weights) * (1 - (context.round - 1) / context.rounds)
        weights[context.replies.clients] += (
            step * deviation / deviation.abs().max().clamp_min(torch.finfo(deviation.dtype).tiny)
        )
        return {"adjustment.value": weights.clamp(0, 1) / weights.clamp(0, 1).sum()}

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean of the models, weighted by a."""
        a = state.server["adjustment"][replies.clients]
        weights = zip((a if a.any() else torch.ones_like(a)).tolist(), replies.weights, strict=True)
        return super().merge(state, replies.weighted([a_i * n_i for a_i, n_i in weights]))
