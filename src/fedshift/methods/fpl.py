r"""FPL: several prototypes for each class, one per cluster of clients, teach how the class looks elsewhere.

Huang et al., Rethinking federated learning with domain shift: a prototype view, CVPR 2023.

Clients upload the mean representation of each class; the server clusters these by FINCH and broadcasts the cluster
means. For a sample of class y with the representation z, cluster prototypes p, their mean :math:`u_y` over the
clusters of y and the cosine similarity s, a client minimises :math:`\mathrm{CE} + L_{CPCL} + L_{UPCR}` (Eq. 12):

.. math::

    L_{CPCL} = -\log \frac{\sum_{p \in P_y} e^{s(z, p) / \tau}}{\sum_p e^{s(z, p) / \tau}}, \qquad
    L_{UPCR} = \|z - u_y\|^2.

**When to choose it.** For domain shift between clients under one global model. No gain over FedAvg was measured (-1.0
points on Heart, -0.5 on OPT, +0.1 on held-out domains of frozen PACS features, +2.1 on a held-out angle of
RotatedMNIST, +3.1 with other digits, not clear) but under a colour shortcut (+1.4), where ``irm`` gains 19.

**Unavailable clients.** An absent or late client is in neither the mean nor the prototypes. A class that no client of
the round has keeps its clusters.

**Choices.**

- All three terms have weight 1, as in the paper (``contrast``, ``consistency``). :math:`L_{UPCR}` is the mean over
  dimensions (public code; Eq. 11 has the sum).
- :math:`\tau = 0.02` divides the similarity (public code; as printed it would multiply).
- A sample whose class has no prototype has the cross-entropy alone, as have all samples of round 1.
- Prototypes are computed with the trained local model, in evaluation mode, over all samples without augmentation
  (public code: on the batches of the last epoch, before each step).
- A cluster's mean is the mean of its clients' means (public code). K clients have at most K/2 clusters of a class, or
  one; that many rows are sent, with zeros where there are fewer.
- The mean of models is uniform; the public code's is by samples (``weighting = "samples"``).
- A client that never trained predicts with the global model.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import CLASS_COUNTS, COUNTS, SUMS, Prototypical, stack_replies
from fedshift.methods.finch import cluster_means, finch
from fedshift.page import *


class FPL(Prototypical):
    """FedAvg with a contrast of representations and cluster prototypes, and a pull to their mean."""

    paper: ClassVar[str] = "Huang et al., CVPR 2023"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload.row(SUMS, "prototypes"), CLASS_COUNTS)

    temperature: Positive = setting(
        0.02, help="temperature tau of the contrast", source="Sec. 4", search=(0.02, 0.1, 0.5)
    )
    contrast: NonNegative = setting(1.0, help="weight of L_CPCL", source="Eq. 12")
    consistency: NonNegative = setting(1.0, help="weight of L_UPCR", source="Eq. 12")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts, the cluster prototypes (clusters, classes, d) and their number by class (classes,)."""
        shape = max(1, model.clients // 2), model.classes, self.width(model)
        return super().parts(model) | {"prototypes": Part.state(torch.zeros(shape), "down")}

    def terms(self) -> dict[str, Term]:
        """The terms of Eq. 12."""
        pull = Term(self.consistency_loss, self.consistency)
        clusters = {"contrast": Term(self.contrast_loss, self.contrast), "consistency": pull}
        return super().terms() | clusters

    def contrast_loss(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L_CPCL, mean over the batch."""
        prototypes, number = net.value("prototypes"), net.value(COUNTS)
        similarity = torch.einsum("bd,kcd->bkc", F.normalize(batch.z, dim=1), F.normalize(prototypes, dim=2))
        exists = torch.arange(len(prototypes), device=number.device).unsqueeze(1) < number  # (clusters, classes)
        true = exists & (batch.y.unsqueeze(1) == torch.arange(len(number), device=number.device)).unsqueeze(1)
        scaled = similarity / self.temperature
        masked = (scaled.masked_fill(~mask, -float("inf")) for mask in (exists, true))
        total, positive = (similarities.flatten(1).logsumexp(1) for similarities in masked)
        return torch.where(number[batch.y] > 0, total - positive, 0.0).mean()

    def consistency_loss(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L_UPCR, mean over the batch."""
        number = net.value(COUNTS)
        unbiased = net.value("prototypes").sum(dim=0) / number.clamp(min=1).unsqueeze(1)
        return ((batch.z - unbiased[batch.y]).square().mean(dim=1) * (number > 0)[batch.y]).mean()

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The cluster prototypes, and their number by class."""
        counts, sums = (stack_replies(replies, name) for name in (COUNTS, SUMS))
        prototypes, number = state.down["prototypes"].clone(), state.down[COUNTS].clone()
        for label in counts.sum(dim=0).nonzero().flatten().tolist():
            has = counts[:, label] > 0
            means = sums[has, label] / counts[has, label].unsqueeze(1)
            clusters = cluster_means(means, finch(means))
            prototypes[:, label] = 0
            prototypes[: len(clusters), label], number[label] = clusters, len(clusters)
        return {"prototypes": prototypes, COUNTS: number}
