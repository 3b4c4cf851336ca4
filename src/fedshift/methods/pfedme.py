"""pFedMe: personal models at the proximal points of the global one.

T. Dinh, Tran and Nguyen, Personalized federated learning with Moreau envelopes, NeurIPS 2020, Algorithm 1. Client k
minimises the envelope F_k(w) = min_theta f_k(theta) + lam/2 ||theta - w||^2, whose gradient is lam (w - theta_k(w)).
Each of its R local rounds draws one batch, takes K steps on f_k(theta) + lam/2 ||theta - w_k||^2 with it, and then
w_k <- w_k - eta lam (w_k - theta_k). The server: w <- (1 - beta) w + beta mean_k w_k. theta_k predicts.

Choices:

- R, the local rounds, is the experiment's ``train.steps`` (the paper: 20), and the rate of theta is its learning rate,
  with its optimiser and momentum (the paper: plain gradient steps). w_k takes the plain step above.
- theta_k starts as w_t in every round, and goes on from batch to batch within it (public code). Its moments begin anew
  with it, unless they are kept: those would belong to a theta that is no more.
- ``share`` is eta lam, the part of the way to theta_k that w_k goes in a step, and stands in the place of eta, which
  would have to suit both lam and how far theta's optimiser leads. With 1 w_k becomes theta_k, and the personal
  model would be sent; from 2 on it moves away. The paper's eta = 0.005 with lam = 15 is a share of 0.075, for plain SGD
  at rates of 0.05 to 0.1; under Adam, whose steps lam holds back, so small a share learns nothing in a short run.
- Under plain SGD theta itself ends at its optimum only if its rate times lam is below 2 (2 (1 + m) with a momentum m):
  at ``train.lr = 0.2``, lam must be below 10.
- Batch norm: theta_k and w_k have each their own. w_k runs forward on every batch once, for its statistics alone, which
  are averaged and moved by beta as weights are; counts of batches are averaged.
- A client that never trained is predicted for with the global model.
- The cohort alone trains. In Algorithm 1 and the public code all clients train in every round, of which the server
  averages a sample; with a small cohort theta_k is older here. The public code's decay of 0.001 is left out.
- An absent client's theta_k stands still until it is back, and then starts from the newer w_t; so does a late one's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from fedshift.methods.personal import PersonalModel
from fedshift.page import *


class PFedMe(PersonalModel):
    """FedAvg on Moreau envelopes: w moves towards the personal models that solve them."""

    paper: ClassVar[str] = "T. Dinh, Tran and Nguyen, NeurIPS 2020, Algorithm 1"

    lam: Positive = setting(
        15.0, help="weight of lam/2 ||theta - w||^2", source="Eq. 3, Sec. 5", search=Range(0.1, 50, log=True)
    )
    personal_steps: Steps = setting(5, help="K: steps of theta on each batch", source="Sec. 5", search=(1, 5, 10))
    beta: Positive = setting(
        1.0, help="how far the server goes towards the mean; 1: all the way", source="Algorithm 1", search=(1.0, 2.0)
    )
    share: Annotated[float, Interval(gt=0, lt=2)] = setting(
        0.9, help="eta lam: the part of the way to theta_k that w_k goes in a step", search=(0.1, 0.5, 0.9)
    )

    def phases(self) -> Phases:
        """On each batch K steps of theta on f_k(theta) + lam/2 ||theta - w_k||^2 (Eq. 3), then one of w."""
        terms = {"personal": Term(self.own.risk), "pull": Term(self.gap, self.lam / 2)}
        theta = Objective("personal", terms, self.own.names, repeats=self.personal_steps)
        plain = Optimiser("sgd", lr=self.share / self.lam)
        return (Phase("train", (theta, self.objective("global", optimiser=plain))),)

    def terms(self) -> dict[str, Term]:
        """lam/2 ||theta_k - w||^2, of which w takes a step."""
        return {"envelope": Term(self.gap, self.lam / 2)}

    def gap(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||theta - w||^2 of the two models at work."""
        return self.own.distance(net, net.weights)

    def begin(self, private: Tensors, received: Tensors) -> Tensors:
        """theta_k = w_t, batch norms of the client's own included."""
        return self.own.named(private | received)

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """(1 - beta) w + beta mean_k w_k; whole numbers: the mean."""
        mean = replies.mean(state.shared)
        real = mean.only(name for name, tensor in mean.items() if tensor.is_floating_point())
        return state.updated(mean | ((1 - self.beta) * state.shared + self.beta * real))
