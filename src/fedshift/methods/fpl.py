"""FPL: every class has several prototypes, one for each kind of clients, which teach how it looks elsewhere.

Huang et al., Rethinking federated learning with domain shift: a prototype view, CVPR 2023. Clients send the mean
representation of each of their classes. The server clusters those of a class by FINCH, and clients receive each
cluster's mean. Beside the cross-entropy a client minimises, for a sample of class y with the representation z, over
cluster prototypes p and s the cosine similarity, with u_y the mean of the clusters of y,

    L_CPCL = -log(sum_{p of y} e^{s(z, p)/tau} / sum_p e^{s(z, p)/tau}),    L_UPCR = ||z - u_y||^2.

Choices:

- All three have the same weight, as in the paper; L_UPCR is the mean over dimensions (public code; the paper's Eq. 11
  has their sum). ``consistency`` and ``contrast`` are their weights.
- tau = 0.02 divides the similarity (public code; as printed it would multiply).
- A sample whose class has no prototype has its cross-entropy alone; so have all in the first round.
- Prototypes are of the model as the client has trained it, in evaluation mode, over all its samples without
  augmentation (public code: of the batches of the last epoch, before each step). A class that none of a round's clients
  has keeps its clusters.
- Clusters: see :mod:`fedshift.methods.finch`; the mean of a cluster is that of its clients' means (public code). K
  clients have at most K/2 clusters of a class, or one: so many rows are sent, zeros where there are fewer.
- The mean of models is uniform; the public code's is by samples (``weighting = "samples"``).
- Nothing stays on a client: the unseen are predicted for with the global model; absent clients, and late ones, are
  neither in the mean nor in the prototypes.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import CLASS_COUNTS, COUNTS, SUMS, Prototypical, stack_replies
from fedshift.methods.finch import centres, finch
from fedshift.page import *


class FPL(Prototypical):
    """FedAvg whose clients contrast representations with the clusters of each class, and are drawn to their mean."""

    paper: ClassVar[str] = "Huang et al., CVPR 2023"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload.row(SUMS, "prototypes"), CLASS_COUNTS)

    temperature: Positive = setting(
        0.02, help="temperature tau of the contrast", source="Sec. 4", search=(0.02, 0.1, 0.5)
    )
    contrast: NonNegative = setting(1.0, help="weight of L_CPCL", source="Eq. 12")
    consistency: NonNegative = setting(1.0, help="weight of L_UPCR", source="Eq. 12")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts; the cluster prototypes (clusters, classes, d), and of each class (classes,) how many."""
        shape = max(1, model.clients // 2), model.classes, self.width(model)
        return super().parts(model) | {"prototypes": Part.state(torch.zeros(shape), "down")}

    def terms(self) -> dict[str, Term]:
        """CE + L_CPCL + L_UPCR."""
        clusters = {"contrast": Term(self.contrasted, self.contrast), "consistency": Term(self.drawn, self.consistency)}
        return super().terms() | clusters

    def contrasted(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mean of L_CPCL."""
        prototypes, number = net.value("prototypes"), net.value(COUNTS)
        similarity = torch.einsum("bd,kcd->bkc", F.normalize(batch.z, dim=1), F.normalize(prototypes, dim=2))
        there = torch.arange(len(prototypes), device=number.device).unsqueeze(1) < number  # (clusters, classes)
        own = there & (batch.y.unsqueeze(1) == torch.arange(len(number), device=number.device)).unsqueeze(1)
        scaled = similarity / self.temperature
        among, positive = (scaled.masked_fill(~which, -float("inf")).flatten(1).logsumexp(1) for which in (there, own))
        return torch.where(number[batch.y] > 0, among - positive, 0.0).mean()

    def drawn(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mean of L_UPCR."""
        number = net.value(COUNTS)
        unbiased = net.value("prototypes").sum(dim=0) / number.clamp(min=1).unsqueeze(1)
        return ((batch.z - unbiased[batch.y]).square().mean(dim=1) * (number > 0)[batch.y]).mean()

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The clusters of each class that one of the round's clients has, and how many there are."""
        counts, sums = (stack_replies(replies, name) for name in (COUNTS, SUMS))
        prototypes, number = state.down["prototypes"].clone(), state.down[COUNTS].clone()
        for label in counts.sum(dim=0).nonzero().flatten().tolist():
            has = counts[:, label] > 0
            means = sums[has, label] / counts[has, label].unsqueeze(1)
            clusters = centres(means, finch(means))
            prototypes[:, label] = 0
            prototypes[: len(clusters), label], number[label] = clusters, len(clusters)
        return {"prototypes": prototypes, COUNTS: number}
