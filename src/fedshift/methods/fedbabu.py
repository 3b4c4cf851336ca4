r"""FedBABU: federated training of the encoder under a fixed head, then fine-tuning on every client.

Oh, Kim and Yun, FedBABU: toward enhanced representation for federated image classification, ICLR 2022, Algorithm 1.

All clients share one head :math:`h_0`, which keeps its initial values. Clients train and the server averages the
encoder :math:`\phi` alone:

.. math::

    \phi_k \approx \arg\min_\phi F_k(\phi, h_0), \qquad \phi_{t+1} = \frac{1}{|S|} \sum_{k \in S} \phi_k.

At the end every client fine-tunes a copy of the model on its data.

**When to choose it.** A good first choice for personalised models: +3.9 points over FedAvg on Heart and +0.6 (not
clear) on OPT, at FedAvg's cost. It has no advantage if one global model is needed.

**Unavailable clients.** As in FedAvg. A client that is absent from the fine-tuning stage predicts with the global
encoder and the initial head; a late client has its copy.

**Choices.**

- ``finetune`` selects the tuned part; the paper tunes all, and reports the head or the body alone (Table 5).
- 50 fine-tuning steps at the rate of ``[train]`` (the paper: five epochs). With 0 steps it is FedAvg with a fixed
  head.
- The head is broadcast in every round, for clients that take part for the first time, and never uploaded.
- The mean of encoders is uniform; the paper's is by samples (``weighting = "samples"``).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fedshift.methods.personal import COPIED, FineTuning
from fedshift.page import *


class FedBABU(FineTuning):
    """FedAvg of the encoder under the initial head, then every client fine-tunes a copy."""

    paper: ClassVar[str] = "Oh, Kim and Yun, ICLR 2022, Algorithm 1"

    finetune: Literal["all", "head", "encoder"] = setting(
        "all", help="part that each client fine-tunes at the end", source="Table 5"
    )

    def moves(self) -> tuple[str, ...]:
        """The encoder alone."""
        return ("encoder",)

    def exchange(self, name: str, **changes: Any) -> Exchange:
        """FedAvg's exchange, in which clients upload the encoder alone."""
        return super().exchange(name, **{"returns": self.moves()} | changes)

    def tuning_phase(self, objective: Objective) -> Phase:
        """Fine-tuning of the part ``finetune``."""
        return super().tuning_phase(replace(objective, moves=COPIED if self.finetune == "all" else (self.finetune,)))
