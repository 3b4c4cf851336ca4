"""FedALA: a client begins a round with a head between its own and the averaged one, weight by weight, as it learns.

Zhang et al., FedALA: adaptive local aggregation for personalized federated learning, AAAI 2023, Algorithm 1. With h the
head received and h_k that of the client's last round, it takes steps on the cross-entropy F_k of the encoder received
and the head h_k + W (h - h_k), product by element,

    W <- clip(W - eta_W grad_W F_k, 0, 1),

begins its local training with that head, and sends what comes of it. The server averages encoders and heads.

Choices:

- The layers that are mixed are the head (the paper's p = 1); W starts at 1, where the head is the averaged one.
- W takes one epoch of steps at the rate 1 in each round (``weight_steps``, ``unit``), on all samples; the paper's takes
  80 % of them, drawn anew, and in the second round as many epochs as it needs to converge. The first round has none.
- The clip is a step of rate 1 on ||W - clip(W)||^2 / 2 after each step of W, and the head gets its place by one on
  ||h - (h_k + W (h - h_k))||^2 / 2, which takes a batch that nobody reads. So gradients are not clipped.
- A client is scored with the mixture of the newest h, its last h_k and the W it has (public code: after it has learned
  W for that h).
- An unseen client is predicted for with the averaged model.
- An absent client's h_k and W stand still; a late one's have moved.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.partialfed import Partial
from fedshift.page import *


class FedALA(Partial):
    """FedAvg whose clients learn how much of their last head to begin with."""

    paper: ClassVar[str] = "Zhang et al., AAAI 2023, Algorithm 1"

    weight_lr: LearningRate = setting(1.0, help="learning rate of W", source="Sec. 5", search=(0.1, 1.0, 10.0))
    weight_steps: Steps = setting(1, help="of W, first in a round, as 'unit' counts them", source="Algorithm 1")
    unit: Literal["steps", "epochs"] = setting("epochs", help="what weight_steps counts", source="Algorithm 1")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Also W, of ones."""
        parts = super().parts(model)
        weights = nn.ParameterDict({name: torch.ones_like(p) for name, p in parts["head"].module.named_parameters()})
        return {**parts, "weight": Part(weights, "client", unseen="initial")}

    def kept(self) -> tuple[str, ...]:
        """The last head and W."""
        return (*super().kept(), "weight")

    def may_be_own(self, modules: Mapping[str, nn.Module]) -> set[str]:
        """The tensors of the head."""
        return {f"head.{name}" for name in modules["head"].state_dict()}

    def check(self, train: Train) -> None:
        """Steps of rate 1 must go all the way."""
        train.need("FedALA puts heads and weights in their places by gradient steps", clip="off")

    def begin(self, private: Tensors, shared: Tensors) -> Tensors:
        """h_k + W (h - h_k); h, before there is an h_k."""
        h, last = shared.of("head"), private.of("last")
        return (h + (private.of("weight") - 1) * (h - last.of("head")) * last["done"]).under("head")

    def phases(self) -> Phases:
        """W, the head's place, then the local training."""
        own, all_the_way = Optimiser("sgd", lr=self.weight_lr), Optimiser("sgd", lr=1.0)
        weights = Objective("weights", {"weights": Term(self.risk_of_w)}, ("weight",), optimiser=own)
        clip = Objective("clip", {"clip": Term(self.outside, 0.5)}, ("weight",), optimiser=all_the_way)
        place = Objective("place", {"place": Term(self.gap, 0.5)}, ("head",), optimiser=all_the_way)
        first = Phase("weights", (weights, clip), steps=lasting(self.weight_steps, self.unit))
        return (first, Phase("place", (place,), steps=1), *super().phases())

    def mixed(self, net: Net, context: Context) -> Tensors:
        """The mixture of the head received and the last one, by the W at work."""
        private = Tensors({name: t for part in self.kept() for name, t in net.of(part).under(part).items()})
        return self.begin(private, context.received)

    def risk_of_w(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy of the mixture."""
        return batch.cross_entropy(self.logits(net, self.mixed(net, context), batch.x))

    def outside(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||W - clip(W)||^2."""
        return net.of("weight").map(lambda w: w - w.clamp(0, 1)).squared_norm()

    def gap(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||h - (h_k + W (h - h_k))||^2, of the head at work."""
        return (net.weights - self.mixed(net, context)).squared_norm()
