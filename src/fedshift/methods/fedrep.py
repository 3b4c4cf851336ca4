"""FedRep: one representation for all, a head for each client.

Collins, Hassani, Mokhtari and Shakkottai, Exploiting shared representations for personalized federated learning, ICML
2021, Algorithm 1: client k takes many steps on its head h_k with the encoder as received, then steps on the encoder
with h_k fixed; the server averages the encoders, and h_k never leaves.

Choices:

- ``head_steps``, ``encoder_steps``: ten epochs of the head, then one of the encoder, whatever ``train.steps`` says;
  ``unit = "steps"`` makes them as many steps.
- All heads start from the same values. What does not move is in evaluation mode, so batch-norm statistics of the
  encoder move in its own phase alone. Moments of both begin anew in every round unless ``optimiser_state`` keeps them
  (public code: anew).
- A client that never trained is given the mean of the clients' heads, which only a simulation can read; the paper
  would let it train a head of its own.
- ``personal = "none"``: no part is personal, so that nothing moves in the first phase and all in the second: FedAvg
  with ``encoder_steps`` for its steps.
- An absent client's head stands still; a late one's has moved, although its encoder was not averaged.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.personal import Divided
from fedshift.page import *


class FedRep(Divided):
    """FedAvg of the encoder, in turns with a head that stays on the client."""

    paper: ClassVar[str] = "Collins et al., ICML 2021, Algorithm 1"

    head_steps: Steps = setting(
        10, help="of the head alone, first in a round, as 'unit' counts them", source="Sec. 5", search=(1, 5, 10)
    )
    encoder_steps: Steps = setting(
        1, help="of the encoder, with the head fixed, as 'unit' counts them", source="Sec. 5", search=(1, 5)
    )
    unit: Literal["steps", "epochs"] = setting("epochs", help="what a phase's steps count", source="Sec. 5: epochs")
    personal: Literal["head", "none"] = setting(
        "head", help="the part that stays on the client; none: it is FedAvg of encoder_steps"
    )

    def phases(self) -> Phases:
        """What is the client's own, then what is shared."""
        shared = tuple(part for part in self.moves() if part not in self.own)
        turns = (("head", self.own, self.head_steps), ("encoder", shared, self.encoder_steps))
        return tuple(
            Phase(name, (self.objective(name, moves=moves),), steps=lasting(count, self.unit))
            for name, moves, count in turns
            if moves
        )
