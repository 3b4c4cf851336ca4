"""FedBABU: the body is federated under a head that nobody trains; afterwards each client tunes all of it.

Oh, Kim and Yun, FedBABU: toward enhanced representation for federated image classification, ICLR 2022, Algorithm 1: the
head stays at its initial values, which all clients have in common, clients train and the server averages the encoder;
at the end every client tunes a copy of the model on its data.

Choices:

- ``finetune``: what is tuned; the paper tunes all, and shows the head or the body alone as well (Table 5).
- ``finetune_steps``, ``finetune_lr``: 50 steps at the rate of ``[train]`` (the paper: five epochs); with 0 steps it is
  FedAvg with a fixed head.
- The head is sent in every round, since a client may come for the first time, and never sent back.
- The mean of encoders is uniform; the paper's is by samples (``weighting = "samples"``).
- Until the last stage, and where it has missed that, a client predicts with the global encoder and the initial head, as
  an unseen one does; an absent client is not in the mean, as in FedAvg.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fedshift.methods.personal import COPIED, FineTuning
from fedshift.page import *


class FedBABU(FineTuning):
    """FedAvg of the encoder under the initial head, then every client tunes a copy once."""

    paper: ClassVar[str] = "Oh, Kim and Yun, ICLR 2022, Algorithm 1"

    finetune: Literal["all", "head", "encoder"] = setting(
        "all", help="what each client tunes at the end", source="Table 5"
    )

    def moves(self) -> tuple[str, ...]:
        """The encoder."""
        return ("encoder",)

    def exchange(self, name: str, **changes: Any) -> Exchange:
        """FedAvg's; replies carry the encoder alone."""
        return super().exchange(name, **{"returns": self.moves()} | changes)

    def tuning(self, objective: Objective) -> Phase:
        """Of what is tuned."""
        return super().tuning(replace(objective, moves=COPIED if self.finetune == "all" else (self.finetune,)))
