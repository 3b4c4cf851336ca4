"""FedIIR: make the classifier's gradients agree across clients.

Guo et al., Out-of-distribution generalization of federated learning via implicit invariant relationships,
ICML 2023. A round makes two exchanges with one cohort:

1. *probe*: each client sends the gradient of its full-data cross-entropy with respect to the head, at the
   model received; the server keeps g <- ema g + (1 - ema) mean_k gradient_k.
2. *train*: CE + lam ||grad_head CE - g||^2 on each batch, whose gradient is of second order.

Choices:

- g is 0 at first and used at once (public code): in round t a constant gradient counts 1 - ema^t of itself, and
  round 1 mostly penalises the gradient's norm. There is no correction of that bias.
- The probe runs over the training samples without augmentation and in evaluation mode; the public code averages
  over batches in training mode. The norm is summed over all the head's parameters (public code).
- ``weighting = "samples"`` weighs the gradients as well as the models.
- The model is sent in both exchanges, and both are counted; g is sent in the second only.
- The paper trains for one local epoch, which is the experiment's: ``train.unit = "epochs"``, ``train.steps = 1``.
- A client that misses the probe is not asked to train in that round; g is the mean over those that answered.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch.func import grad_and_value

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

Memory = Annotated[float, Interval(ge=0, lt=1)]


def head_gradients(net: Net, batch: Batch, reduction: Literal["mean", "sum"] = "mean") -> tuple[Tensors, Tensor]:
    """The gradient of the cross-entropy for each parameter of the head, and the cross-entropy itself.

    Both can be differentiated again. ``torch.func`` rather than ``torch.autograd``, so that clients can be stacked.

    Args:
        net: the parts, of which ``head`` is read.
        batch: with its representation.
        reduction: over the batch.
    """

    def risk(parameters: dict[str, Tensor]) -> Tensor:
        return batch.cross_entropy(net.call("head", Tensors(parameters), batch.z), reduction)

    gradients, value = grad_and_value(risk)(dict(net.parts["head"].named_parameters()))
    return Tensors(gradients), value


class FedIIR(FedAvg):
    """FedAvg with a penalty on how far a batch's head gradient is from the federation's; lam = 0 is FedAvg."""

    paper: ClassVar[str] = "Guo et al., ICML 2023"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "rotated-mnist": {"lam": 1e-2},
        "pacs": {"lam": 1e-3},
        "office-home": {"lam": 5e-4},
    }

    lam: NonNegative = setting(1e-3, help="weight of the gradient penalty", search=(1e-2, 1e-3, 5e-4))
    ema: Memory = setting(0.95, help="memory of the mean gradient g, from 0 to below 1", search=(0.95, 0.5, 0.1))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, and the mean gradient g of the head, which only the server changes."""
        parts = super().parts(model)
        return {**parts, "invariant": Part.zeros_like({"head": parts["head"]}, "down")}

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """Rounds of a probe and training."""
        probe = Exchange(
            "probe",
            (Measure("probe", self.head_gradient),),
            self.merge_probe,
            sends=self.moves(),
            returns=(),
            uploads=(Upload.like("gradient", "invariant"),),
            upload=self.mean_gradient,
            counted=self.weighting == "samples",
        )
        return (Stage("train", rounds, (probe, self.exchange("train"))),)

    # The probe ----------------------------------------------------------------------------------

    def head_gradient(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The gradient of the cross-entropy, summed over the batch, for each parameter of the head."""
        with torch.no_grad():
            encoded = self.encode(net, batch, {})
        gradients, _ = head_gradients(net, encoded, "sum")
        return gradients.under("head").under("gradient")

    def mean_gradient(self, work: LocalWork) -> Tensors:
        """The mean gradient over the client's samples."""
        return work.means

    def merge_probe(self, state: ServerState, replies: Replies) -> ServerState:
        """The new mean gradient: g <- ema g + (1 - ema) mean_k gradient_k."""
        mean = replies.mean().of("gradient")
        g = self.ema * state.down.of("invariant") + (1 - self.ema) * mean
        return state.updated(g.under("invariant"))

    # Training -----------------------------------------------------------------------------------

    def terms(self) -> dict[str, Term]:
        """CE + lam ||grad_head CE - g||^2, differentiable through the gradient."""
        return super().terms() | {"invariance": Term(self.invariance, self.lam)}

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy, mean over the batch."""
        return batch.once(head_gradients, net, batch)[1]

    def invariance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||grad_head CE - g||^2."""
        gradients, _ = batch.once(head_gradients, net, batch)
        return (gradients - context.received.of("invariant").of("head")).squared_norm()
