"""pFedAvg: FedAvg, whose clients are scored with the models that they have after their local training.

A baseline of many papers, among them FRAug's Table 2 (Chen et al., ICCV 2023). That FedAvg and more local training make
good personal models is studied by Jiang et al., Improving federated learning personalization via model agnostic meta
learning, arXiv 1909.12488, 2019.

Choices:

- After every round a client's model is the one that it has just trained and sent. After the last round one more stage,
  ``personal``, lets every client, sampled or not, train the final global model for a local phase of ``[train]``'s own
  length: the headline is FedAvg's w_T and one more local phase. Nothing is sent back in it, so w_T is FedAvg's.
- Batches of the last stage are those of the client's first local phase; moments begin anew unless they are kept.
- A client that never trained is predicted for with the global model.
- An absent client's model stays that of its last round, also where it misses the last stage.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.personal import PersonalModel
from fedshift.page import *


class PFedAvg(PersonalModel):
    """FedAvg, scored with each client's model after its local training."""

    paper: ClassVar[str] = "the baseline of Chen et al., ICCV 2023, Table 2, after McMahan et al., AISTATS 2017"

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, and a copy that is never trained itself."""
        parts = super().parts(model)
        for name in self.own.names:
            parts[name].module.requires_grad_(False)
        return parts

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """FedAvg's, then one more local phase of every client."""
        local = self.exchange("personal", returns=(), merge=leave)
        return (*super().stages(rounds), Stage("personal", 1, (local,), participation=1.0))

    def keep(self, work: LocalWork) -> Tensors:
        """The model as trained, batch norms of the client's own included."""
        return self.own.named(work.private | work.trained)
