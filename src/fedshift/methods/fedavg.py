"""FedAvg: average what every client learned.

McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017,
Algorithm 1.

Choices: clients weigh the same, as in the five papers this library implements (the paper weighs by
samples: ``weighting = "samples"``). Batch-norm statistics are averaged like every other tensor.

The mean is over the clients that answered; an absent one counts nothing and receives the newer model when it is back.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.page import *


class FedAvg(Averaging):
    """Each client minimises its own cross-entropy; the server averages the models."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """An encoder x -> z and a linear head z -> logits, both shared."""
        return {"encoder": Part(model.encoder()), "head": Part(model.head())}

    def width(self, model: ModelBuilder) -> int:
        """The size of what the head reads."""
        return model.dim

    def moves(self) -> tuple[str, ...]:
        """The parts that local training moves."""
        return ("encoder", "head")

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with the representation z (B, d) that the head reads."""
        return batch._replace(z=net.encoder(batch.x))

    def terms(self) -> dict[str, Term]:
        """The risk F_k(w)."""
        return {"cross_entropy": Term(self.risk)}

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy, mean over the batch."""
        return batch.cross_entropy(batch.once(net.head, batch.z))

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the logits."""
        return net.head(self.encode(net, Batch(x), {}).z).log_softmax(dim=1)
