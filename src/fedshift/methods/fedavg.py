r"""FedAvg: average the locally trained models.

McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017, Algorithm 1.

In each round the server broadcasts :math:`w_t` to a cohort :math:`S`; each client minimises its risk :math:`F_k` by
some local steps from there, and the server averages the results:

.. math::

    w_{t+1} = \frac{1}{|S|} \sum_{k \in S} w_k.

**When to choose it.** First, as the baseline. Of the federated methods with one model for all clients none is
clearly above it on the hospitals' tables, and on held-out domains of frozen PACS features only ``silobn``, which
sees unlabelled test inputs, as ``bn = "reestimate"`` does here, with the same gain of 4.2. Personalised models gain 2
to 4 points where labels are skewed (Heart); invariance penalties gain under a shortcut.

**Unavailable clients.** The mean covers the clients that answered. An absent client does not count and receives the
newer model on return; a late client has used its batches, and has updated its optimiser state where that is kept.

**Choices.**

- Clients have equal weight, as in the five papers that this library implements; the paper weights by samples
  (``weighting = "samples"``).
- Batch-norm statistics are averaged like every other tensor.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.page import *


class FedAvg(Averaging):
    """Each client minimises its cross-entropy; the server averages the models."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """An encoder x -> z and a linear head z -> logits, both shared."""
        return {"encoder": Part(model.encoder()), "head": Part(model.head())}

    def width(self, model: ModelBuilder) -> int:
        """Number of features that the head reads."""
        return model.dim

    def moves(self) -> tuple[str, ...]:
        """The parts that local training updates."""
        return ("encoder", "head")

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with its representation z (B, d)."""
        return batch._replace(z=net.encoder(batch.x))

    def terms(self) -> dict[str, Term]:
        """The cross-entropy F_k(w)."""
        return {"cross_entropy": Term(self.risk)}

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Cross-entropy, mean over the batch; a scalar."""
        return batch.cross_entropy(batch.once(net.head, batch.z))

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the logits, (B, classes)."""
        return net.head(self.encode(net, Batch(x), {}).z).log_softmax(dim=1)
