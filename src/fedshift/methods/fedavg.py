"""FedAvg: average what every client learned.

McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017,
Algorithm 1.

Choices: clients weigh the same, as in the five papers this library implements (the paper weighs by
samples: ``weighting = "samples"``). Batch-norm statistics are averaged like every other tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from fedshift.core.contract import Batch, Context, Measure, Method, Objective, Part, Phase, Terms, no_draws
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net
from fedshift.streams import Draws


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Each client minimises its own cross-entropy; the server averages the models."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    regulariser: ClassVar[str | None] = None  # the setting that weighs the method's own local regulariser

    def parts(self, spec: ModelBuilder) -> dict[str, Part]:
        """An encoder x -> z and a linear head z -> logits, both shared."""
        return {"encoder": Part(spec.encoder()), "head": Part(spec.head())}

    def phases(self, round: int, rounds: int) -> Sequence[Phase | Measure]:
        """Plain local training of every part."""
        return (Phase("train", (Objective("train", self.loss, self.moves(), self.draws),)),)

    def moves(self) -> tuple[str, ...]:
        """The parts that local training moves."""
        return ("encoder", "head")

    def features(self, net: Net, x: Tensor) -> Tensor:
        """The representation (B, d) of inputs x (B, ...) that the head reads."""
        z: Tensor = net.encoder(x)
        return z

    def draws(self, spec: ModelBuilder, batch: int) -> Draws:
        """The noise that :meth:`loss` uses for a batch."""
        return no_draws(spec, batch)

    def loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        """Cross-entropy, mean over the batch."""
        return {"cross_entropy": F.cross_entropy(net.head(self.features(net, batch.x)), batch.y)}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the logits."""
        logits: Tensor = net.head(self.features(net, x))
        return logits.log_softmax(dim=1)
