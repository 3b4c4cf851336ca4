"""APFL: a client predicts with a mixture of its own model and the global one, and learns how much of each.

Deng, Kamani and Mahdavi, Adaptive personalized federated learning, arXiv 2003.13461, 2020, Algorithm 1. FedAvg trains
w. Client k keeps v and a, predicts with the weights m = a v + (1 - a) w, and in each step takes with w

    v <- v - eta grad_v F_k(a v + (1 - a) w),

and at the beginning of a round, with w as received, a <- a - eta <grad F_k(m), v - w>, held in [0, 1].

Choices:

- Weights are mixed, as the paper says; the public code mixes the logits of the two models.
- v is moved on the batch on which w was, after it (public code), with the optimiser of ``[train]``, and starts as w.
  grad_v has the factor a that the mixture gives it: with a = 0 v stands still. w is FedAvg's for any a, on other
  batches while a takes its own.
- a takes one plain step a round, on a batch of its own, with the model in evaluation mode, at the rate of ``[train]``
  unless ``alpha_lr`` says otherwise. The public code adds 0.02 a to its gradient, which the paper does not.
  ``adaptive = False`` leaves it at ``alpha``; the paper shows 0.25, 0.5 and 0.75.
- Batch-norm statistics of the mixture are the client's own; they move while v is trained.
- A client that never trained is predicted for with the global model.
- An absent client's v and a stand still; it mixes v with the newer w when it is back. A late one's have moved.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.personal import COPIED, PersonalModel
from fedshift.page import *


class APFL(PersonalModel):
    """FedAvg, and beside it a model of the client's own that is good in a mixture with it."""

    paper: ClassVar[str] = "Deng, Kamani and Mahdavi, arXiv 2020, Algorithm 1"

    alpha: Probability = setting(
        0.5,
        help="the part of the client's own model in the mixture, at first",
        source="Sec. 6",
        search=(0.25, 0.5, 0.75),
    )
    adaptive: bool = setting(True, help="each client learns its alpha", source="Sec. 5", search=(True, False))
    alpha_lr: LearningRate | None = setting(None, help="learning rate of alpha; by default that of [train]")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's model, v, and a."""
        alpha = nn.ParameterDict({"alpha": nn.Parameter(torch.tensor(self.alpha), requires_grad=self.adaptive)})
        return {**super().parts(model), "mixture": Part(alpha, "client", unseen="initial")}

    def phases(self) -> Phases:
        """A step of a, then w and v on each batch."""
        plain = Optimiser("sgd", lr=self.alpha_lr)
        alpha = Objective("alpha", {"alpha": Term(self.mixed_risk)}, ("mixture",), optimiser=plain)
        own = Objective("personal", {"personal": Term(self.mixed_risk)}, self.own.names)
        local = Phase("train", (self.objective("train"), own))
        return (Phase("alpha", (alpha,), steps=1), local) if self.adaptive else (local,)

    def keep(self, work: LocalWork) -> Tensors:
        """A, in [0, 1]."""
        return work.private.of("mixture").map(lambda alpha: alpha.clamp(0, 1)).under("mixture")

    def mixed_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy of m."""
        return batch.cross_entropy(self.mixed(net, batch.x))

    def mixed(self, net: Net, x: Tensor) -> Tensor:
        """The logits of a v + (1 - a) w for inputs x."""
        alpha, z = net.of("mixture")["alpha"].clamp(0, 1), x
        for own, shared in zip(self.own.names, COPIED, strict=True):
            v, w = (net.weights.of(part) for part in (own, shared))
            z = net.call(own, w + alpha * (v - w), z)
        return z

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the mixture's logits."""
        return self.mixed(net, x).log_softmax(dim=1)
