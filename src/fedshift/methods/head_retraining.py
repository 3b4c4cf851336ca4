r"""Head retraining: FRAug's motivating study, whether few images spoil the encoder or the head.

Chen, Frikha, Krompass and Tresp, FRAug, ICCV 2023, Sec. 3.2 and Table 1.

Every client trains a model alone on a part :math:`D_k'` of its data, then, with the encoder :math:`\phi` fixed, its
head h alone on all of it:

.. math::

    (\phi_k, h_k) = \arg\min_{\phi, h} F_k(\phi, h; D_k'), \qquad h_k' = \arg\min_h F_k(\phi_k, h; D_k).

If the second accuracy is near the accuracy of training on all data, few images spoil the head.

**When to choose it.** As a diagnosis before ``fraug``; it is not a federated method and sends nothing.

**Unavailable clients.** An absent client misses its steps of that round; nothing is aggregated.

**Choices.**

- The part is the same share of each class, rounded up.
- The head continues from its values of the first stage, with the encoder in evaluation mode.
- Both stages have all the rounds. The last round of the stage ``part`` is Table 1's "w/o finetune", the last round of
  ``head`` "w. finetune".
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.references import Single
from fedshift.page import *


class HeadRetraining(Single):
    """Local training on a part of the data, then of the head alone on all data (FRAug's study)."""

    paper: ClassVar[str] = "Chen et al., ICCV 2023, Sec. 3.2 and Table 1"

    part: Fraction = setting(0.1, help="share of each client's samples that trains the encoder", source="Sec. 3.2")

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The model on a part of the samples, then the head on all samples."""
        head = Phase("head", (self.objective("head", moves=("head",)),))  # the encoder is fixed
        return (
            Stage("part", rounds, (self.exchange("train"),), view=self.view),
            Stage("head", rounds, (self.exchange("train", phases=(head,)),)),
        )

    def view(self, federated: FederatedData, streams: Streams) -> FederatedData:
        """The federation with a random part of every client's training samples."""
        clients = tuple(
            replace(
                client,
                train=stratified_part(
                    client.train, self.part, streams.permutation(len(client.train), "part", client.id)
                ),
            )
            for client in federated.clients
        )
        return replace(federated, clients=clients)


def stratified_part(samples: Samples, part: float, order: Tensor) -> Samples:
    """The first samples in ``order`` (N,) of each class: the share ``part`` in (0, 1], rounded up."""
    order = order.to(samples.y.device)
    member = F.one_hot(samples.y[order])
    place = (member.cumsum(dim=0) * member).sum(dim=1) - 1  # position within the class, from 0
    allowed = (member.sum(dim=0) * part).ceil()[samples.y[order]]
    kept = order[place < allowed]
    return Samples(samples.x[kept], samples.y[kept])
