"""FedProc: representations are drawn to their own class's global prototype, first of all, and classified later.

Mu et al., FedProc: prototypical contrastive federated learning on non-IID data, Future Generation Computer Systems
2023. In round t of T a client minimises a L_proto + (1 - a) CE with a = 1 - t/T, where for a sample of class y with
the projected representation z, prototypes c and s the cosine similarity

    L_proto = -log(e^{s(z, c_y)/tau} / sum_c e^{s(z, c)/tau}).

After its steps it sends the sum of its representations of each class, and how many there are. The server divides the
sums over all clients by the counts: prototypes are merged by class count.

Choices; the public code is https://github.com/MuXutong/FedProc, of the paper's first author:

- ``denominator``: whether the positive stands in the sum; the paper leaves it open, and "all" has it there.
- A sample whose class has no prototype has its cross-entropy alone, with the weight 1. So have all samples of the first
  round. (The public code makes prototypes of the initial model, which no loss reads.)
- The last round has a = 0. The public code counts rounds from 0, so that its last has a = 1/T, with T = 100 always.
- ``unit_length``: the representation is scaled to length 1, and head and prototypes are of that (public code).
- ``projection``: see :mod:`fedshift.methods.projection`; the public code has it. The temperature is MOON's; the public
  code has none, which is 1.
- Prototypes are of the model as the client has trained it (public code), in evaluation mode, over all its samples
  without augmentation. A class that none of a round's clients has keeps its prototype (public code).
- The mean of models is uniform; the paper's is by samples (``weighting = "samples"``).
- Absent clients, and late ones, are neither in the mean nor in the prototypes; nothing of a client's is kept.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import COUNTS, Prototypical, one_hot
from fedshift.methods.projection import Projected
from fedshift.page import *


def prototypical(
    z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, temperature: float, denominator: str
) -> Tensor:
    """L_proto of each sample, (B,); 0 where nothing stands in the denominator, and of no use where y is not known.

    Args:
        z: representations (B, d).
        y: labels (B,).
        prototypes: (classes, d).
        known: which classes have a prototype, (classes,); the others are in no denominator.
        temperature: tau.
        denominator: "all" classes, or the "others" than the sample's own.
    """
    similarity = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T / temperature
    own = one_hot(y, len(prototypes), z).bool()
    left_out = ~known if denominator == "all" else ~known | own
    among = similarity.masked_fill(left_out, -float("inf")).logsumexp(dim=1)
    return torch.where(among.isneginf(), 0.0, among - (similarity * own).sum(dim=1))


class FedProc(Prototypical, Projected):
    """FedAvg whose clients contrast representations with the global class prototypes, less and less."""

    paper: ClassVar[str] = "Mu et al., FGCS 2023"

    temperature: Positive = setting(0.5, help="temperature tau of the contrast", search=(0.1, 0.5, 1.0))
    denominator: Literal["all", "others"] = setting(
        "all", help="prototypes in the denominator: all, or all but the sample's own", source="ours"
    )
    unit_length: bool = setting(True, help="the representation is scaled to length 1 (public code)")

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with the projected representation, of length 1 unless it is left as it is."""
        batch = super().encode(net, batch, noise)
        return batch._replace(z=F.normalize(batch.z, dim=1)) if self.unit_length else batch

    def terms(self) -> dict[str, Term]:
        """(1 - a) CE + a L_proto."""
        return super().terms() | {"prototypical": Term(self.prototypical)}

    def share(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """A = 1 - t/T of each sample (B,), or 0 where its class has no prototype."""
        return (1 - context.round / context.rounds) * (net.value(COUNTS) > 0)[batch.y].to(batch.z.dtype)

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mean of (1 - a) CE."""
        risk = batch.cross_entropy(net.head(batch.z), "none")
        return ((1 - self.share(net, batch, context)) * risk).mean()

    def prototypical(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mean of a L_proto."""
        prototypes, known = net.value("prototypes"), net.value(COUNTS) > 0
        contrast = prototypical(batch.z, batch.y, prototypes, known, self.temperature, self.denominator)
        return (self.share(net, batch, context) * contrast).mean()
