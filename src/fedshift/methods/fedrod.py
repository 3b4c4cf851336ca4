"""FedRoD: a generic model that is fair to all classes, and a personal head on top that fits the client.

Chen and Chao, On bridging generic and personalized federated learning for image classification, ICLR 2022. With z the
representation, h_G the shared head and h_P the client's own, n_c the client's samples of class c:

- the shared model minimises the balanced risk, the cross-entropy of h_G(z) + gamma log n (balanced softmax);
- h_P minimises the cross-entropy of sg(h_G(z)) + h_P(sg(z)), which moves nothing else;
- the client predicts with h_G(z) + h_P(z).

Choices:

- Classes that the client does not have are left out of the balanced softmax (log 0), so that their logits receive no
  gradient from it. The personal risk is over all classes, as is prediction.
- Neither class weights nor balanced batches: the softmax is balanced by the counts of what the client trains on, and
  h_P is to fit the client's classes as they are.
- Both risks are taken on one batch and with one forward pass, before either moves.
- h_P is linear and starts at 0, so that the personal model starts as the generic one; the paper's hypernetwork that
  makes h_P is left out.
- A client that never trained is predicted for with the generic head alone.
- An absent client's h_P stands still and meets the newer generic model when it is back; that of a client whose answer
  came too late has moved.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import check_unbalanced
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def balanced(logits: Tensor, counts: Tensor, gamma: float) -> Tensor:
    """Logits (B, C) plus gamma log n_c; -inf, without gradient, for classes with the count 0 of counts (C,)."""
    shift = gamma * counts.clamp(min=1).to(logits.dtype).log()
    return (logits + shift).masked_fill(counts == 0, -float("inf"))


class FedRoD(FedAvg):
    """FedAvg by balanced softmax, and a personal head whose logits are added to the generic ones."""

    paper: ClassVar[str] = "Chen and Chao, ICLR 2022"

    gamma: Positive = setting(
        1.0, help="exponent of the class counts in the balanced softmax", source="balanced risk", search=(0.5, 1.0, 1.5)
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, and h_P on the client, of zeros at first."""
        own = model.head()
        for parameter in own.parameters():
            nn.init.zeros_(parameter)
        return {**super().parts(model), "personal_head": Part(own, "client", unseen="initial")}

    def moves(self) -> tuple[str, ...]:
        """The shared parts, and h_P."""
        return (*super().moves(), "personal_head")

    def check(self, train: Train) -> None:
        """The generic model's risk is balanced by the client's counts already."""
        check_unbalanced(train, "FedRoD balances its softmax by the client's class counts")

    def terms(self) -> dict[str, Term]:
        """The balanced risk of the generic model, and the risk of both heads together."""
        return {"balanced": Term(self.balanced_risk), "personal": Term(self.personal_risk)}

    def balanced_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy of h_G(z) + gamma log n."""
        generic = batch.once(net.head, batch.z)
        return F.cross_entropy(balanced(generic, context.counts, self.gamma), batch.y)

    def personal_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy of sg(h_G(z)) + h_P(sg(z)), which moves h_P alone."""
        both = batch.once(net.head, batch.z).detach() + net.personal_head(batch.z.detach())
        return F.cross_entropy(both, batch.y)

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of h_G(z) + h_P(z)."""
        z = self.encode(net, Batch(x), {}).z
        logits = net.head(z) + net.personal_head(z)
        return logits.log_softmax(dim=1)
