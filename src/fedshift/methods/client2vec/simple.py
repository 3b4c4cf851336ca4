"""What Client2Vec's index is compared with: means of embeddings, weights of local models (Table 2), random directions.

Each gives one vector a client, so similarity is a single cosine.

Choices: a class that a client lacks leaves zeros in its prototypes. The table's "local model weights" are those of the
classifier; here they are taken once, after one round of the base method's own local training from the initial model,
of which clients keep nothing. Random directions are a control of ours: an index that says nothing of any client.

A client that is absent when vectors are measured has zeros.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.client2vec.encoder import Encoder
from fedshift.methods.client2vec.index import FEATURE, ClientIndex
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


class RandomDirections(ClientIndex):
    """Orthonormal directions drawn by the seed, dealt out to clients in turn: nothing is learnt of any client.

    Clients say how many samples they have, as Eq. 3 needs.
    """

    encoder: Encoder = fixed(Offline())  # nothing is embedded
    size: Width = setting(512, help="length of a client's vector")
    rank: Count | None = setting(None, help="how many directions; by default one for each client, at most `size`")
    norm: Positive = setting(1.0, help="the norm of every client's vector")
    strategy: Literal["global", "federated"] = setting("global", help="in whose place it stands: use 3's weight")

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """The length that was asked for."""
        return self.size

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """The directions, which the server draws."""
        most = min(model.clients, self.size)
        rank = most if self.rank is None else self.rank
        if rank > most:
            raise FedshiftError(
                f"index.rank = {rank}: {model.clients} clients have at most {most} orthonormal directions of length "
                f"{self.size}; give at most {most}."
            )
        drawn = torch.randn(self.size, rank, generator=model.streams.generator("random directions"))
        directions = torch.linalg.qr(drawn).Q.T[torch.arange(model.clients) % rank]
        return super().parts(model, base, feature_scope) | {FEATURE: Part.state(self.norm * directions, feature_scope)}

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """A round in which clients are counted."""
        counts = Exchange("counts", (), self.merge, sends=(), returns=(), counted=True)
        return (Stage("counts", 1, (counts,), participation=1.0, scored=False),)
