r"""FixBN: batch-norm statistics are updated in the first rounds and fixed afterwards.

Zhong, Chen and Chao, Making batch normalization great in federated deep learning, arXiv:2303.06530, 2023.

Rounds 1 to T* are FedAvg's with batch norm. From then on the global running statistics normalise in training too, and
batches no longer update them, so training and prediction use the same function:

.. math::

    \mathrm{BN}(x) &= \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta \\
    (\mu, \sigma) &= \text{statistics of the batch if } t \le T^*, \text{ global ones if } t > T^*

**When to choose it.** For networks with batch norm on non-IID clients. No gain over FedAvg was measured (-0.2 points on
RotatedMNIST in-domain [-2.9, +2.4], +0.5 on held-out domains of frozen PACS features, not clear), and on Digits a
seed diverged after T*. Without batch norm it is FedAvg.

**Unavailable clients.** As in FedAvg; after T* the statistics do not change at all.

**Choices.**

- T* is half of the rounds, at least 1, unless ``fixed_after`` is set.
- The paper's momentum that persists between rounds is ``optimiser_state = "kept"``.
- Local batch norms (``bn``) are fixed on the client with their last statistics.
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
    """Make batch norms in training mode use, and not update, their running statistics."""
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
    """An objective whose batch norms are fixed after round ``last``; None is half of the rounds, at least 1."""

    last: int | None = None

    def evaluate(self, net: Net, batch: Batch, context: Context) -> dict[str, Tensor]:
        """The weighted terms of a batch, with fixed statistics after that round."""
        last = max(1, context.rounds // 2) if self.last is None else self.last
        with fixed_statistics(net.parts.values() if context.round > last else ()):
            return super().evaluate(net, batch, context)


class FixBN(FedAvg):
    """FedAvg whose batch-norm statistics are fixed after some rounds."""

    paper: ClassVar[str] = "Zhong, Chen and Chao, arXiv:2303.06530, 2023"

    fixed_after: WholeNumber | None = setting(
        None, help="round T* after which batch-norm statistics are fixed; by default half of the rounds"
    )

    def phases(self) -> Phases:
        """Local training with fixed statistics after round T*."""
        return (Phase("train", (FixedAfter(**vars(self.objective("train")), last=self.fixed_after),)),)
