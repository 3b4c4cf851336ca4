"""Client indices for comparison: embedding means, weights of local models (Client2Vec, Table 2), random directions.

Each has one vector for a client, so similarity is a single cosine. A class that a client lacks has zeros in its
prototypes. Model weights are the classifier's after a round of the base method's local training, which clients
discard. Random directions are a control of ours. A client that is absent from the measurement has zeros.
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
        """Sum of the embeddings, (d,)."""
        return {"feature": batch.x[:, 0].sum(dim=0)}


class ClassPrototypes(ClientIndex):
    """The mean embeddings of a client's classes, concatenated."""

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """Classes times the embedding's dimension."""
        return model.classes * self.encoder.dim

    def measure(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Class sums of the embeddings, (classes, d)."""
        one_hot = F.one_hot(batch.y, len(context.counts)).to(batch.x)
        return {"feature": one_hot.T @ batch.x[:, 0]}

    def vectors(self, work: LocalWork) -> Tensors:
        """The class means, concatenated: (classes * d,)."""
        means = work.measured["feature"] / work.counts.clamp_min(1).unsqueeze(1)
        return Tensors({"feature": means.flatten()})


class ModelWeights(ClientIndex):
    """The classifier's weights after one round of local training."""

    category: ClassVar[Category] = "model update"

    encoder: Encoder = fixed(Offline())  # nothing is embedded

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """The number of weights of the head."""
        return sum(tensor.numel() for tensor in base["head"].module.state_dict().values())

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """One round of the base method's local training, whose weights are uploaded and not averaged."""
        vectors = self.vectors_exchange(base.phases(), sends=None)
        return (Stage("vectors", 1, (vectors,), participation=1.0, scored=False),)

    def vectors(self, work: LocalWork) -> Tensors:
        """The head's weights in name order, as one vector."""
        weights = [tensor.flatten() for _, tensor in sorted(work.trained.of("head").items())]
        return Tensors({"feature": torch.cat(weights)})


class RandomDirections(ClientIndex):
    """Random orthonormal directions, assigned to clients in turn: an index without information.

    Clients upload their number of samples, which Eq. 3 needs.
    """

    encoder: Encoder = fixed(Offline())  # nothing is embedded
    size: Width = setting(512, help="length of a client's vector")
    rank: Count | None = setting(None, help="number of directions; by default one for each client, at most `size`")
    norm: Positive = setting(1.0, help="norm of every client's vector")
    strategy: Literal["global", "federated"] = setting(
        "global", help="strategy that it replaces, which sets the weight of use 3"
    )

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """The setting ``size``."""
        return self.size

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """The directions, drawn on the server."""
        limit = min(model.clients, self.size)
        rank = limit if self.rank is None else self.rank
        if rank > limit:
            raise FedshiftError(
                f"index.rank = {rank}: {model.clients} clients have at most {limit} orthonormal directions of length "
                f"{self.size}; set at most {limit}."
            )
        drawn = torch.randn(self.size, rank, generator=model.streams.generator("random directions"))
        directions = torch.linalg.qr(drawn).Q.T[torch.arange(model.clients) % rank]
        return super().parts(model, base, feature_scope) | {FEATURE: Part.state(self.norm * directions, feature_scope)}

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """One round in which clients upload their number of samples."""
        counts = Exchange("counts", (), self.merge, sends=(), returns=(), counted=True)
        return (Stage("counts", 1, (counts,), participation=1.0, scored=False),)
