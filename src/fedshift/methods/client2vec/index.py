"""Client indices: stages before training that leave a vector of every client on the server.

Client2Vec, Sec. 3: the client index is [feature index; label index], the means over the client's samples.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fedshift.files import make_folder, write
from fedshift.methods.client2vec import ENCODERS
from fedshift.methods.client2vec.encoder import Encoder, pairs
from fedshift.methods.client2vec.vectors import least_cosine, separation_notes, similarity
from fedshift.page import *

FEATURE, LABEL, COUNTS = "feature_index", "label_index", "sample_counts"
NETWORK = "index_network"


class ClientIndex(Spec):
    """Describe every client by a feature vector and, if :meth:`label_dim` is not 0, a label vector.

    Attributes:
        category: the kind of information in a feature vector.
    """

    section: ClassVar[str] = "method.index"
    category: ClassVar[Category] = "statistic"

    encoder: Annotated[Encoder, From(ENCODERS)] = setting("offline", help="encoder of samples and labels")

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """Length of a feature vector; ``base`` contains the parts of the base method."""
        return self.encoder.dim

    def label_dim(self) -> int:
        """Length of a label vector; 0 if the index has features alone."""
        return 0

    def has_labels(self) -> bool:
        """Whether the index has label vectors, without loading the encoder."""
        return self.label_dim() > 0

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """Vectors (clients, d) and sample counts (clients,), and the parts that create them."""
        parts = {
            FEATURE: Part.state(torch.zeros(model.clients, self.feature_dim(model, base)), feature_scope),
            COUNTS: Part.state(torch.zeros(model.clients), "server"),
        }
        if self.label_dim():
            parts[LABEL] = Part.state(torch.zeros(model.clients, self.label_dim()), "server")
        return parts

    def check(self, federated: FederatedData) -> None:
        """Raise an error if the index does not fit these clients."""

    def prepared(self, federated: FederatedData, state: ServerState, messages: dict[str, Any]) -> Index:
        """The index with the clients' names, domains and messages."""
        clients = federated.clients
        return Index(
            tuple(client.name for client in clients),
            tuple(client.domain for client in clients),
            tuple(len(client.train) for client in clients),
            state.tensors[FEATURE].cpu(),
            state.tensors[LABEL].cpu() if LABEL in state.tensors else None,
            messages,
        )

    def notes(self, state: ServerState) -> tuple[str, ...]:
        """A note if the index does not separate the clients."""
        return separation_notes(state.tensors[FEATURE])

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """By default one round in which every client measures and uploads its vectors."""
        return (self.vectors_stage(),)

    def vectors_stage(self) -> Stage:
        """One round in which every client uploads its vectors and its number of samples."""
        vectors = self.vectors_exchange((Measure("vectors", self.measure),), sends=self.sends())
        return Stage("vectors", 1, (vectors,), participation=1.0, view=self.pairs, scored=False)

    def vectors_exchange(self, phases: Phases, sends: tuple[str, ...] | None) -> Exchange:
        """The exchange that uploads every client's vectors."""
        rows = [
            Upload.row("feature", FEATURE, self.category),
            *([Upload.row("label", LABEL)] if self.label_dim() else []),
        ]
        return Exchange(
            "vectors", phases, self.merge, sends, returns=(), uploads=tuple(rows), upload=self.vectors, counted=True
        )

    def sends(self) -> tuple[str, ...]:
        """The parts that clients need to measure their vectors."""
        return ()

    def pairs(self, federated: FederatedData, streams: Streams) -> FederatedData:
        """The federation with pairs of embeddings (N, 2, d) as samples, in random order."""
        embedded = pairs(self.encoder, federated)
        clients = []
        for client in embedded.clients:
            order = streams.permutation(len(client.train), "order of pairs", client.id)
            clients.append(replace(client, train=Samples(client.train.x[order], client.train.y[order])))
        return replace(embedded, clients=tuple(clients))

    def measure(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Sums over a batch of pairs: ``feature`` (d,) and, with label vectors, ``label`` (d,)."""
        raise NotImplementedError

    def vectors(self, work: LocalWork) -> Tensors:
        """The client's mean vectors."""
        return work.means

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """Store every client's vectors in its row."""
        rows = {"feature": FEATURE, "label": LABEL, SAMPLES: COUNTS}
        written = {name: state.tensors[name].clone() for name in rows.values() if name in state.tensors}
        for client, up in replies:
            for name, tensor in up.items():
                written[rows[name]][client] = tensor
        return state.updated(written)


@dataclass(frozen=True)
class Index:
    """The vectors of a federation's clients, in the order of their ids.

    Attributes:
        clients: names.
        domains: domain of each client.
        samples: training samples of each client.
        feature: feature vectors (K, d).
        label: label vectors (K, d), or None.
        messages: tensors, clients, rounds and bytes sent to create it, by exchange and direction.
    """

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    samples: tuple[int, ...]
    feature: Tensor
    label: Tensor | None
    messages: dict[str, Any]

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if the index does not separate the clients."""
        return separation_notes(self.feature)

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {tuple(self.label.shape)}"
        return f"Index(clients: {len(self.clients)}, feature {tuple(self.feature.shape)}{label})"

    @property
    def cosines(self) -> dict[str, Tensor]:
        """Cosines (K, K) between clients, of the feature index and, with label vectors, of the whole index."""
        feature = {"feature index": similarity(self.feature, None)}
        return feature if self.label is None else {"client index": similarity(self.feature, self.label)} | feature

    @property
    def summary(self) -> tuple[str, ...]:
        """Lines with its size, the bytes sent and the cosines."""
        sent = [message["up"] for message in self.messages.values()]
        return (
            f"{len(self.clients)} clients of {len(set(self.domains))} domains, {self.feature.shape[1]} features; "
            f"clients sent {sum(up['bytes'] for up in sent)} bytes in {sum(up['messages'] for up in sent)} messages.",
            self._cosine_summary(),
        )

    def _cosine_summary(self) -> str:

        from fedshift.heat_maps import by_domain  # with matplotlib

        text = f"Cosines of the feature index: {least_cosine(self.feature):.3f} at least between two clients"
        table = by_domain(similarity(self.feature, None), self.domains)
        if len(table) < 2:
            return f"{text}."
        inside = torch.diag(table)
        between = table[~torch.eye(len(table), dtype=torch.bool)]
        return f"{text}; inside a domain {inside.mean():.3f}, between domains {between.mean():.3f} in the mean."

    def write(self, folder: Path) -> list[Path]:
        """Write ``index.parquet``, ``similarity.png`` and ``messages.json`` into a folder, and return their paths.

        Raises:
            FedshiftError: a file cannot be written, or pyarrow is not installed.
        """
        from fedshift.heat_maps import heat_maps  # with matplotlib

        with needs("parquet", "Writing an index"):
            import pyarrow
            import pyarrow.parquet

        columns = {"client": self.clients, "domain": self.domains, "samples": self.samples}
        vectors = {"feature": self.feature.tolist()} | ({} if self.label is None else {"label": self.label.tolist()})
        table, image = BytesIO(), BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns | vectors), table)
        heat_maps(self.cosines, self.domains).savefig(image, format="png", dpi=110)
        contents: dict[str, bytes | str] = {
            "index.parquet": table.getvalue(),
            "similarity.png": image.getvalue(),
            "messages.json": json.dumps(self.messages, indent=2),
        }
        make_folder(folder)
        for name, content in contents.items():
            write(folder / name, content)
        return [folder / name for name in contents]
