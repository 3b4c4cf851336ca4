"""GroupDRO: the best model for the worst environment, by weights that grow with the risk.

Sagawa et al., Distributionally robust neural networks for group shifts, ICLR 2020, Algorithm 1. With weights q on the
simplex, min_theta max_q sum_e q_e R_e: q_e <- q_e exp(eta R_e) / (their sum), then a step on sum_e q_e R_e.

In the federated form a round is the algorithm's step. Each client measures R_k at the model it received and sends it
beside the model it trained; the server moves q by the risks, and averages the models by the new q.

Choices:

- Groups are environments: clients, or domains; the paper's are pairs of class and attribute.
- ln q_e moves by eta (R_e - the mean of the risks that are there): q is the same as with eta R_e where all are there,
  and an environment that is not there keeps its weight, as if its risk were the mean.
- eta is for a round in the federated form, and for a step in the pooled one (DomainBed: 0.01 a step).
- With ``weighting = "samples"`` a client counts as q_k times its samples. The paper's adjustments by group size and its
  weight decay are the experiment's.
- With eta = 0 it is FedAvg; pooled it is training on the mean of the environments' risks, each weighing the same.
- q is over all clients, and is normalised over those that answered. One that does not answer keeps its weight.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import stack_replies
from fedshift.methods.environments import Pooled, environment_mask, environment_means, mean_over, present_environments
from fedshift.methods.risks import RISK, RiskMeasured
from fedshift.page import *


class GroupDRO(RiskMeasured):
    """FedAvg whose mean is by weights that grow with the clients' risks; eta = 0 is FedAvg."""

    paper: ClassVar[str] = "Sagawa et al., ICLR 2020, Algorithm 1"

    eta: NonNegative = setting(0.1, help="step size of the clients' weights, a round", search=(0.1, 1.0, 0.01))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts and ln q (clients,), up to a constant."""
        return {**super().parts(model), "log_q": Part.state(torch.zeros(model.clients), "server")}

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """Q <- q exp(eta R), then the mean by q."""
        log_q, risks = state.server["log_q"].clone(), stack_replies(replies, RISK)
        log_q[replies.clients] += self.eta * (risks - risks.mean())
        q = log_q[replies.clients].softmax(dim=0) * len(replies)
        weights = [count * weight for count, weight in zip(replies.weights, q.tolist(), strict=True)]
        return super().merge(state, replies.weighted(weights)).updated({"log_q": log_q})


class Ascent(nn.Module):
    """q (E,), which moves by each batch."""

    def __init__(self, environments: int) -> None:
        super().__init__()
        self.log_q: Tensor
        self.register_buffer("log_q", torch.zeros(environments))

    @torch.no_grad()
    def forward(self, risks: Tensor, present: Tensor, eta: float) -> Tensor:
        """Q over the environments that are present (E,); in training mode it moves by their risks (E,) first."""
        if self.training:
            self.log_q.add_(eta * present * (risks - mean_over(risks, present)))
        return (self.log_q + present.log()).softmax(dim=0)


class PooledGroupDRO(Pooled):
    """GroupDRO on pooled data, over the environments in a batch."""

    paper: ClassVar[str] = "Sagawa et al., ICLR 2020, Algorithm 1"

    eta: NonNegative = setting(0.01, help="step size of the environments' weights, a step", search=(0.01, 0.1, 0.001))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The model and q."""
        return {**super().parts(model), "mixture": Part(Ascent(model.environments))}

    def moves(self) -> tuple[str, ...]:
        """The model, and q, which follows the batch."""
        return (*super().moves(), "mixture")

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """sum_e q_e R_e."""
        member = environment_mask(batch)
        risks = environment_means(member, batch.cross_entropy(net.head(batch.z), "none"))
        return (net.mixture(risks, present_environments(member), self.eta) * risks).sum()
