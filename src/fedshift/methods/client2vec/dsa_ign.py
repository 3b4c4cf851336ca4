r"""DSA-IGN: a network that splits an embedding into what the label explains and what the client adds.

Guo et al., Client2Vec: improving federated learning by distribution shifts aware client indexing, 2024, Sec. 3.2 and
App. D.2.

A transformer reads the embedding as [D, D], in patches of 32, and returns [Z, U]. The losses, in unweighted sum, make
Z match the label's embedding L, U orthogonal to Z, both together reconstruct D as :math:`\hat D`, and U differ in a
batch:

.. math::

    1 - \cos(z, L) + |\cos(z, u)| + \|\hat D - D\|^2 / d + \log \sum_{k \ne j} \exp(\cos(u_j, u_k)).

A client's feature index is its mean U, its label index its mean L.

What leaves a client: with ``global``, one batch of embeddings of its samples with their labels, from which much of the
samples may be inferred; with ``federated``, network weights. Both upload the client's vectors at the end.

**Unavailable clients.** The network learns from the clients that answered; an absent client still measures its
vectors.

**Choices.**

- Adam at 1e-3, batches of 128, no dropout, learned positions, post-norm layers with ReLU.
- The paper's orthogonality :math:`\|Z U^\top\|_1` grows with the batch and with the norms of Z and U, which are about
  22 behind a layer norm: even its mean starts near 240 beside terms of 0.01 to 5, and one common direction of all U
  minimises it fastest. With the mean of :math:`|\cos(z, u)|` 60 clients of PACS have a cosine of -0.24 between domains
  after 100 epochs, with the mean entry 0.999.
- ``epochs`` (Table 1: 500) counts passes over the uploaded pairs (global), or local epochs over all rounds
  (federated).
- Federated training averages uniformly, with fresh Adam moments in every round.
- The diversity term of a batch of one is 0.
"""

from __future__ import annotations

from typing import Literal

from fedshift.methods.client2vec.index import NETWORK, ClientIndex
from fedshift.page import *


class Decomposition(nn.Module):
    """Split embeddings D (B, d) into Z and U, (B, d) each, and reconstruct D from them (App. D.2)."""

    def __init__(self, dim: int, width: int, layers: int, heads: int, feedforward: int, projection: str) -> None:
        super().__init__()
        self.width = width
        self.positions = nn.Parameter(0.02 * torch.randn(2 * dim // width, width))
        block = nn.TransformerEncoderLayer(width, heads, feedforward, dropout=0.0, batch_first=True)
        self.transformer = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.projection: nn.Module = nn.Linear(2 * dim, dim)
        if projection == "mlp":
            self.projection = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Z, U and the reconstruction, (B, d) each."""
        patches = torch.cat([data, data], dim=1).view(len(data), -1, self.width)
        split = self.transformer(patches + self.positions).flatten(1)
        z, u = split.chunk(2, dim=1)
        return z, u, self.projection(split)


def similarity_loss(z: Tensor, label: Tensor) -> Tensor:
    """1 - cos(z, L) for z and L (B, d), mean over the batch."""
    return 1 - F.cosine_similarity(z, label, dim=1).mean()


def orthogonality_loss(z: Tensor, u: Tensor) -> Tensor:
    """|cos(z, u)| for z and u (B, d), mean over all pairs."""
    return (F.normalize(z, dim=1) @ F.normalize(u, dim=1).T).abs().mean()


def diversity_loss(u: Tensor) -> Tensor:
    """Mean over j of log sum_{k != j} exp(cos(u_j, u_k)); 0 for a batch of one."""
    if len(u) < 2:
        return u.sum() * 0
    rows = F.normalize(u, dim=1)
    itself = torch.eye(len(u), dtype=torch.bool, device=u.device)
    return (rows @ rows.T).masked_fill(itself, -torch.inf).logsumexp(dim=1).mean()


def uploaded_pairs(replies: Replies) -> Samples:
    """Pairs (N, 2, d) of all replies; y is zeros, since the pairs contain the labels."""
    pairs = torch.cat([up["pairs"] for up in replies.ups])
    return Samples(pairs, torch.zeros(len(pairs), dtype=torch.int64, device=pairs.device))


class DSAIGN(ClientIndex):
    """Client2Vec's index: the means of U and L over a client's samples."""

    strategy: Literal["global", "federated"] = setting(
        "global", help="training on the server from a batch of pairs of every client, or by FedAvg", source="Sec. 3.2"
    )
    epochs: Steps = setting(500, help="total epochs of training", source="App. D.3", search=(100, 500, 1000))
    local_epochs: Steps = setting(10, help="federated: local epochs in a round", source="Sec. 3.2")
    participation: Fraction = setting(0.1, help="federated: share of the clients in a round", source="Sec. 3.2")
    upload: Count = setting(128, help="global: pairs that every client uploads", source="Sec. 3.2")
    batch: BatchSize = setting(128, help="pairs in a batch")
    lr: LearningRate = setting(1e-3, help="Adam's learning rate")
    sim: bool = setting(True, help="Z matches the label: 1 - cos(Z, L)", source="Sec. 3.2")
    orth: bool = setting(True, help="U is orthogonal to Z: mean |cos(z, u)|", source="Sec. 3.2")
    recon: bool = setting(True, help="Z and U reconstruct D", source="Sec. 3.2")
    div: bool = setting(True, help="U differs within a batch", source="Sec. 3.2")
    projection: Literal["linear", "mlp"] = setting("linear", help="network that reconstructs D", source="App. D.3")
    width: Width = setting(32, help="size of a patch and of the transformer", source="App. D.2")
    layers: Layers = setting(3, help="transformer layers", source="App. D.2")
    heads: Width = setting(8, help="attention heads", source="App. D.2")
    feedforward: Width = setting(2048, help="width of the feed-forward layers", source="App. D.2")

    def has_labels(self) -> bool:
        """True: the index has label vectors."""
        return True

    def label_dim(self) -> int:
        """Length of a label vector."""
        return self.encoder.dim

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """The vectors and the network, trained by the server (``down``) or the clients (``shared``)."""
        dim = self.encoder.dim
        if not (self.sim or self.orth or self.recon or self.div):
            raise FedshiftError("DSA-IGN needs at least one of its losses: sim, orth, recon, div.")
        if 2 * dim % self.width or self.width % self.heads:
            raise FedshiftError(
                f"index.width = {self.width} must divide {2 * dim}, twice the embedding's dimension, and be a multiple "
                f"of index.heads = {self.heads}."
            )
        network = model.initialised(
            NETWORK,
            lambda: Decomposition(dim, self.width, self.layers, self.heads, self.feedforward, self.projection),
        )
        scope: Scope = "down" if self.strategy == "global" else "shared"
        return super().parts(model, base, feature_scope) | {NETWORK: Part(network, scope, on_request=True)}

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """Training the network, then a round in which every client measures its vectors."""
        train = self._global_stage() if self.strategy == "global" else self._federated_stage()
        return (train, self.vectors_stage())

    # Global: the server trains on uploaded pairs ------------------------------------------------

    def sends(self) -> tuple[str, ...]:
        """The network."""
        return (NETWORK,)

    def _global_stage(self) -> Stage:
        pairs = Exchange(
            "pairs",
            sends=(),
            uploads=(Upload("pairs", (None, 2, self.encoder.dim), dtype=torch.float32, category="embedding"),),
            upload=self.upload_pairs,
            server_phases=(replace(self._training(self.epochs), samples=uploaded_pairs),),
        )
        return Stage("index", 1, (pairs,), 1.0, self.pairs, scored=False)

    def upload_pairs(self, work: LocalWork) -> Tensors:
        """Pairs [D, L] (upload, 2, d), or all pairs of a smaller client."""
        return Tensors({"pairs": work.train.x[: self.upload]})

    # Federated: FedAvg over all pairs -----------------------------------------------------------

    def _federated_stage(self) -> Stage:
        exchange = Exchange("index", (self._training(self.local_epochs),), self.merge_network, (NETWORK,))
        rounds = -(-self.epochs // self.local_epochs)
        participation = self.participation
        return Stage("index", rounds, (exchange,), participation, self.pairs, scored=False)

    def merge_network(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean network."""
        return state.updated(replies.mean())

    # Both ---------------------------------------------------------------------------------------

    def _training(self, epochs: int) -> Phase:
        adam = Optimiser("adam", lr=self.lr)
        objective = Objective("dsa-ign", self.terms(), (NETWORK,), optimiser=adam)
        return Phase("dsa-ign", (objective,), steps=Epochs(epochs), batch=self.batch)

    def terms(self) -> dict[str, Term]:
        """The losses that are on, for pairs [D, L] (B, 2, d)."""
        return {
            "sim": Term(self.label_distance, float(self.sim)),
            "orth": Term(self.orthogonality_term, float(self.orth)),
            "recon": Term(self.reconstruction_error, float(self.recon)),
            "div": Term(self.diversity_term, float(self.div)),
        }

    def split(self, net: Net, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Z, U and the reconstruction, (B, d) each, of a batch of pairs."""
        split: tuple[Tensor, Tensor, Tensor] = net.parts[NETWORK](batch.x[:, 0])
        return split

    def label_distance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """1 - cos(z, L), a scalar."""
        z, _, _ = batch.once(self.split, net, batch)
        return similarity_loss(z, batch.x[:, 1])

    def orthogonality_term(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The orthogonality loss of a batch, a scalar."""
        z, u, _ = batch.once(self.split, net, batch)
        return self.orthogonality(z, u)

    def reconstruction_error(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Mean squared error of the reconstruction, a scalar."""
        _, _, reconstruction = batch.once(self.split, net, batch)
        return F.mse_loss(reconstruction, batch.x[:, 0])

    def diversity_term(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Similarity of the rows of U, a scalar."""
        _, u, _ = batch.once(self.split, net, batch)
        return diversity_loss(u)

    def orthogonality(self, z: Tensor, u: Tensor) -> Tensor:
        """The orthogonality loss of z and u (B, d); subclasses may replace it."""
        return orthogonality_loss(z, u)

    def measure(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Sums of U and of L over a batch of pairs, (d,) each."""
        data, label = batch.x.unbind(dim=1)
        _, u, _ = net[NETWORK](data)
        return {"feature": u.sum(dim=0), "label": label.sum(dim=0)}
