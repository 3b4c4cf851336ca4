"""What Client2Vec's index is compared with (Table 2): means of embeddings, and the weights of local models.

Each gives one vector a client, so similarity is a single cosine.

Choices: a class that a client lacks leaves zeros in its prototypes. The table's "local model weights" are those of the
classifier; here they are taken once, after one round of the base method's own local training from the initial model,
of which clients keep nothing.

A client that is absent when vectors are measured has zeros.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.client2vec.encoder import Encoder
from fedshift.methods.client2vec.index import ClientIndex
from fedshift.methods.client2vec.offline import Offline
from fedshift.page import *


class FeatureAverage(ClientIndex):
    """The mean embedding of a client's samples."""

    def measure(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The sum of embeddings."""
        return {"feature": batch.x[:, 0].sum(dim=0)}


class ClassPrototypes(ClientIndex):
    """The mean embedding of each class at a client, one after the other."""

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """A vector for each class."""
        return model.classes * self.encoder.dim

    def measure(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The sum of embeddings of each class, and how many there are."""
        one_hot = F.one_hot(batch.y, len(context.counts)).to(batch.x)
        return {"feature": one_hot.T @ batch.x[:, 0]}

    def vectors(self, work: LocalWork) -> Tensors:
        """The mean of each class."""
        means = work.measured["feature"] / work.counts.clamp_min(1).unsqueeze(1)
        return Tensors({"feature": means.flatten()})


class ModelWeights(ClientIndex):
    """The classifier's weights of the model that a client trains on its own for a round."""

    category: ClassVar[Category] = "model update"

    encoder: Encoder = fixed(Offline())  # nothing is embedded

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """All weights of the head."""
        return sum(tensor.numel() for tensor in base["head"].module.state_dict().values())

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """One round of the base method's local training, from which the weights are uploaded, not averaged."""
        vectors = self.vectors_exchange(base.phases(), sends=None)
        return (Stage("vectors", 1, (vectors,), participation=1.0, scored=False),)

    def vectors(self, work: LocalWork) -> Tensors:
        """The head's weights in name order, as one vector."""
        weights = [tensor.flatten() for _, tensor in sorted(work.trained.of("head").items())]
        return Tensors({"feature": torch.cat(weights)})
