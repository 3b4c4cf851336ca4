"""FedProto: clients exchange prototypes of the classes and nothing else; every model stays where it is.

Tan et al., FedProto: federated prototype learning across heterogeneous clients, AAAI 2022. With C_j the mean
representation of class j at a client and G_j the global one, a client minimises CE + lam L_R, L_R = sum_j d(C_j, G_j),
sends its C_j, and the server averages them by class. A sample is of the class whose G_j is nearest to its z.

Choices:

- ``pull``: in a step C_j is the mean over the batch, the sum over the classes there ("means", the paper's Eq. 7), or
  each sample's own z is pulled and the mean over the batch is taken ("samples", public code). d is the mean of squares
  over dimensions (public code). A class without a global prototype pulls nothing; so does none in the first round.
- G_j is the mean over all samples of class j (the paper's Eq. 6 has one more factor 1/|N_j|, which would shrink
  prototypes with the number of clients; the public code takes the plain mean over clients).
- Prototypes are of the model as the client has trained it, in evaluation mode, over all its samples without
  augmentation (public code: of the batches of its epochs, before each step). A class that none of a round's clients has
  keeps its prototype.
- ``inference``: by the nearest global prototype, with logits -||z - G_j||^2 (paper, Sec. 3), or by the client's own
  head; the public code scores both. By the head and with lam = 0 it is local training.
- All clients start from the same model, as in local training; the paper's may have different networks.
- An unseen client has no model: every client's is scored on it, and the accuracies are averaged. (The paper lets it
  train one of its own.)
- An absent client's model stands still and its prototypes are in no mean; a late one's model has moved.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import COUNTS, Prototypical, one_hot, sum_by_class
from fedshift.page import *


class FedProto(Prototypical):
    """Local training whose class means are drawn to those of all clients."""

    paper: ClassVar[str] = "Tan et al., AAAI 2022"

    lam: NonNegative = setting(
        1.0, help="weight of the distance to the prototypes", source="Sec. 5", search=(0.1, 1.0, 10.0)
    )
    pull: Literal["means", "samples"] = setting("means", help="what is drawn to a prototype", source="Eq. 7")
    inference: Literal["prototypes", "head"] = setting(
        "prototypes", help="who predicts: the nearest prototype, or the client's head", source="Sec. 3"
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The model, which stays on the client, and the prototypes."""
        parts = super().parts(model)
        own = {name: replace(parts[name], scope="client", unseen="every") for name in self.moves()}
        return parts | own

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The prototypes; no part of a model is merged."""
        return state.updated(self.after_mean(state, replies))

    def terms(self) -> dict[str, Term]:
        """CE + lam L_R."""
        return super().terms() | {"distance": Term(self.distance, self.lam)}

    def distance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L_R."""
        prototypes, known = net.value("prototypes"), net.value(COUNTS) > 0
        if self.pull == "samples":
            squares = (batch.z - prototypes[batch.y]).square().mean(dim=1)
            return (squares * known[batch.y]).mean()
        counts = one_hot(batch.y, len(known), batch.z).sum(dim=0)
        means = sum_by_class(batch.z, batch.y, len(known)) / counts.clamp(min=1).unsqueeze(1)
        return ((means - prototypes).square().mean(dim=1) * (known & (counts > 0))).sum()

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of -||z - G_j||^2, without what all classes have in common, or of the head's logits."""
        if self.inference == "head":
            return super().predict(net, x, noise)
        z, prototypes = self.encode(net, Batch(x), {}).z, net.value("prototypes")
        logits = 2 * z @ prototypes.T - prototypes.square().sum(dim=1)
        unknown = net.value(COUNTS) == 0
        return torch.where(unknown, logits.min(dim=1, keepdim=True).values, logits).log_softmax(dim=1)
