"""FedDG-GA: a client weighs more where aggregation costs it more.

Zhang, Xu, Yao and Wang, Federated domain generalization with generalization adjustment, CVPR 2023. Client i has the
weight a_i in the mean, 1/N at first. Its generalisation gap is what its own loss rises by when its model is replaced by
the mean, G_i = F_i(w) - F_i(w_i), and weights are moved so that gaps become alike:

    a_i <- a_i + d_t (G_i - mean_j G_j) / max_j |G_j - mean_j G_j|,     d_t = (1 - t/T) d,

then clipped to 0..1 and divided by their sum (Eq. 7-9, Algorithm 1).

Choices:

- G_i is of the client's training samples, in evaluation mode and without augmentation. A client measures F_i(w_i) after
  its training and F_i(w) when it receives w in its next round, so a gap is known from its second round on and t is the
  number of rounds before this one. F_i(w_i) stays on the client; the gap is sent.
- d_t is divided by N, so that weights move alike whatever the number of clients; the public code divides by its three.
- The mean is taken off and the modulus is in the maximum, as in FL4Health's code; the authors' code takes no mean off.
- With ``weighting = "samples"`` a_i multiplies the number of samples. With d = 0 it is FedAvg.
- An absent client's a_i changes by the division alone, and when it is back its gap is from an older w_i. Clients of
  which no gap is known yet are in neither mean nor maximum. Where those who answered all have a_i = 0, they weigh
  alike. A late client's gap is lost, but its next one is from the newer w_i.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class FedDGGA(FedAvg):
    """FedAvg with weights that follow the clients' generalisation gaps; d = 0 is FedAvg."""

    paper: ClassVar[str] = "Zhang et al., CVPR 2023, Algorithm 1"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload("gap", (2,)),)  # and 1 if it is known, else 0 and 0

    step: NonNegative = setting(0.2, help="step size d of the weights", source="public code", search=(0.1, 0.2, 0.5))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the weights a (N,), and each client's F_i(w_i) of its last round, then 1 if it had one."""
        weights = Part.state(torch.full((model.clients,), 1 / model.clients), "server")
        return {**super().parts(model), "adjustment": weights, "local_loss": Part.state(torch.zeros(2), "client")}

    def phases(self) -> Phases:
        """The loss of w, local training, and the loss of w_i."""
        before, after = (Measure(name, partial(self.loss, name)) for name in ("before", "after"))
        return (before, *super().phases(), after)

    @torch.no_grad()
    def loss(self, name: str, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """F_i, summed over the batch."""
        return {name: len(batch.y) * self.objective(name).loss(net, batch, context)}

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """G_i and 1, or 0 and 0 in the client's first round."""
        last, known = work.private["local_loss"]
        return {"gap": known * torch.stack([work.means["before"] - last, known])}

    def keep(self, work: LocalWork) -> Mapping[str, Tensor]:
        """F_i(w_i) and 1."""
        loss = work.means["after"]
        return {"local_loss.value": torch.stack([loss, torch.ones_like(loss)])}

    def server_phases(self) -> Phases:
        """The weights move before the models are merged."""
        return (Measure("adjustment", self.adjusted),)

    def adjusted(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The weights a after a step by the gaps of those who answered."""
        gap, known = torch.stack([up["gap"] for up in context.replies.ups]).unbind(dim=1)
        away = known * (gap - gap.sum() / known.sum().clamp_min(1))
        weights = net.value("adjustment").clone()
        step = self.step / len(weights) * (1 - (context.round - 1) / context.rounds)
        weights[context.replies.clients] += step * away / away.abs().max().clamp_min(torch.finfo(away.dtype).tiny)
        return {"adjustment.value": weights.clamp(0, 1) / weights.clamp(0, 1).sum()}

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean of the models by the weights a."""
        a = state.server["adjustment"][replies.clients]
        weights = zip((a if a.any() else torch.ones_like(a)).tolist(), replies.weights, strict=True)
        return super().merge(state, replies.weighted([a_i * n_i for a_i, n_i in weights]))
