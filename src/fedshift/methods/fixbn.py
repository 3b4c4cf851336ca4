"""FixBN: batch-norm statistics follow the batches at first, and are fixed for the rest of training.

Zhong, Chen and Chao, Making batch normalization great in federated deep learning, arXiv:2303.06530. Rounds 1 to T* are
FedAvg's with batch norm. From then on the global running means and variances normalise in training, too, as they do in
prediction, and no batch moves them; scale and shift are trained on. So training and prediction are the same function.

Choices: T* is half of all rounds unless it is given. The paper's momentum that lasts from round to round is
``optimiser_state = "kept"``. Layers of the method's ``bn`` that stay on the client are fixed there, as they were.
Without batch norm it is FedAvg.

Absent clients are not in the mean; nothing of them is kept. After T* nobody's statistics move, so none are missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from fedshift.core.net import batch_norms
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


@contextmanager
def fixed_statistics(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let batch norms in training mode normalise by the statistics that they have, and leave these alone."""
    layers = [layer for module in modules for _, layer in batch_norms(module) if layer.training]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


@dataclass(frozen=True, repr=False)
class FixedAfter(Objective):
    """An objective whose batch norms are fixed after a round; None: half of the stage's."""

    last: int | None = None

    def evaluate(self, net: Net, batch: Batch, context: Context) -> dict[str, Tensor]:
        """The weighted terms of a batch, which is encoded by fixed statistics after that round."""
        last = context.rounds // 2 if self.last is None else self.last
        with fixed_statistics(net.parts.values() if context.round > last else ()):
            return super().evaluate(net, batch, context)


class FixBN(FedAvg):
    """FedAvg whose batch-norm statistics are fixed after some rounds; with all rounds before that it is FedAvg."""

    paper: ClassVar[str] = "Zhong, Chen and Chao, arXiv:2303.06530, 2023"

    fixed_after: WholeNumber | None = setting(
        None, help="rounds T* after which batch-norm statistics are fixed; by default half of all"
    )

    def phases(self) -> Phases:
        """Local training, by fixed statistics after round T*."""
        return (Phase("train", (FixedAfter(**vars(self.objective("train")), last=self.fixed_after),)),)
