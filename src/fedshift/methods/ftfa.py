"""FTFA: fine-tune FedAvg's model on every client.

Cheng, Chadha and Duchi, Federated asymptotics: a model to compare federated learning algorithms, AISTATS 2023
(Fine-tuning is fine in federated learning, arXiv 2108.07313, 2021), FTFA: FedAvg, then each client goes on from the
final global model on its own data alone.

Choices:

- ``finetune_steps``, ``finetune_lr``: the paper tunes until nothing changes, on linear models; ours is 50 steps at the
  rate of ``[train]``. With 0 steps it is FedAvg.
- Plain cross-entropy over all weights, with the optimiser of ``[train]``; batch norm is in training mode.
- Until the last stage, and where it has missed that, a client predicts with the global model, as one that is unseen
  does; an absent client is not in the mean, as in FedAvg.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.personal import FineTuning
from fedshift.page import *


class FTFA(FineTuning):
    """FedAvg, then every client tunes a copy of the final model once."""

    paper: ClassVar[str] = "Cheng, Chadha and Duchi, AISTATS 2023"
