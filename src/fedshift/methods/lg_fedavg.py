"""LG-FedAvg: each client has an encoder of its own, and the head above it is averaged.

Liang et al., Think locally, act globally: federated learning with local and global representations, arXiv 2001.01523
(NeurIPS workshop on federated learning, 2019), Algorithm 1: both are trained together, end to end, on the client's
loss; the server averages the global part.

Choices:

- The local part is the encoder, the global one the head (the paper's CIFAR-10: the convolutions stay, the layers after
  them are averaged). Its other losses for local representations (self-supervised, adversarial) are left out.
- All encoders start from the same values. The public code starts from a model that FedAvg has trained for many rounds,
  which decides how well heads fit encoders of other clients; here they start from scratch.
- The mean of heads is uniform; the paper's is by samples (``weighting = "samples"``).
- An unseen client has no encoder: every client's is scored on it with the global head, and the accuracies are averaged
  (the paper averages the outputs of all of them).
- ``personal = "none"``: FedAvg.
- An absent client's encoder stands still and meets the newer head; a late one's has moved.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.personal import Divided
from fedshift.page import *


class LGFedAvg(Divided):
    """FedAvg of the head, trained together with an encoder that stays on the client."""

    paper: ClassVar[str] = "Liang et al., arXiv 2020, Algorithm 1"

    personal: Literal["encoder", "none"] = setting(
        "encoder", help="the part that stays on the client; none: it is FedAvg", source="Sec. 3"
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's, of which the encoder stays on the client; the unseen have every client's."""
        parts = super().parts(model)
        return parts | {name: replace(parts[name], unseen="every") for name in self.own}
