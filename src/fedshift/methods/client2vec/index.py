"""What an index of clients is: stages before training that leave a vector of every client on the server.

Client2Vec, Sec. 3: the client index is [feature index; label index], each the mean over the client's samples.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fedshift.files import make_folder, write
from fedshift.methods.client2vec import ENCODERS
from fedshift.methods.client2vec.encoder import Encoder, pairs
from fedshift.methods.client2vec.vectors import least_cosine, notes_on, similarity
from fedshift.page import *

FEATURE, LABEL, COUNTS = "feature_index", "label_index", "sample_counts"
NETWORK = "index_network"


class ClientIndex(Spec):
    """Describes every client by a feature vector and, where :meth:`label_dim` is not 0, a label vector.

    Attributes:
        category: what a feature vector says of a client.
    """

    section: ClassVar[str] = "method.index"
    category: ClassVar[Category] = "statistic"

    encoder: Annotated[Encoder, From(ENCODERS)] = setting("offline", help="how samples and labels are embedded")

    def feature_dim(self, model: ModelBuilder, base: Mapping[str, Part]) -> int:
        """The length of a feature vector; ``base`` are the parts of the method it is made for."""
        return self.encoder.dim

    def label_dim(self) -> int:
        """The length of a label vector; 0: the index has one part only."""
        return 0

    def has_labels(self) -> bool:
        """Whether there is a label vector, which is known before its length."""
        return self.label_dim() > 0

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """The vectors of all clients, and what makes them; feature vectors may be sent to clients (``down``)."""
        parts = {
            FEATURE: Part.state(torch.zeros(model.clients, self.feature_dim(model, base)), feature_scope),
            COUNTS: Part.state(torch.zeros(model.clients), "server"),
        }
        if self.label_dim():
            parts[LABEL] = Part.state(torch.zeros(model.clients, self.label_dim()), "server")
        return parts

    def check(self, federated: FederatedData) -> None:
        """Raise an error if the index cannot be one of these clients."""

    def prepared(self, federated: FederatedData, state: ServerState, messages: dict[str, Any]) -> Index:
        """The clients' vectors."""
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
        """That the index does not separate the clients, if so."""
        return notes_on(state.tensors[FEATURE])

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """By default one round in which every client measures its vectors and uploads them."""
        return (self.vectors_stage(),)

    def vectors_stage(self) -> Stage:
        """Every client measures its vectors over all of its samples, and uploads them with their number."""
        vectors = self.vectors_exchange((Measure("vectors", self.measure),), sends=self.sends())
        return Stage("vectors", 1, (vectors,), participation=1.0, view=self.pairs, scored=False)

    def vectors_exchange(self, phases: Phases, sends: tuple[str, ...] | None) -> Exchange:
        """An exchange after which the server has every client's vectors."""
        rows = [
            Upload.row("feature", FEATURE, self.category),
            *([Upload.row("label", LABEL)] if self.label_dim() else []),
        ]
        return Exchange(
            "vectors", phases, self.merge, sends, returns=(), uploads=tuple(rows), upload=self.vectors, counted=True
        )

    def sends(self) -> tuple[str, ...]:
        """The parts that make the index, which clients need to measure their vectors."""
        return ()

    def pairs(self, federated: FederatedData, streams: Streams) -> FederatedData:
        """Pairs of embeddings (N, 2, d) in place of samples, in a random order."""
        embedded = pairs(self.encoder, federated)
        clients = []
        for client in embedded.clients:
            order = streams.permutation(len(client.train), "order of pairs", client.id)
            clients.append(replace(client, train=Samples(client.train.x[order], client.train.y[order])))
        return replace(embedded, clients=tuple(clients))

    def measure(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Sums over a batch of pairs: ``feature`` and, for an index of two parts, ``label``."""
        raise NotImplementedError

    def vectors(self, work: LocalWork) -> Tensors:
        """The mean vectors."""
        return work.means

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """Write every client's vectors into its row."""
        rows = {"feature": FEATURE, "label": LABEL, SAMPLES: COUNTS}
        written = {name: state.tensors[name].clone() for name in rows.values() if name in state.tensors}
        for client, up in replies:
            for name, tensor in up.items():
                written[rows[name]][client] = tensor
        return state.updated(written)


@dataclass(frozen=True)
class Index:
    """A vector for every client of a federation, in the order of their ids.

    Attributes:
        clients: their names.
        domains: the domain of each.
        samples: how many training samples each has.
        feature: feature vectors (K, d).
        label: label vectors (K, d), or None for an index of one part.
        messages: what crossed the wire to make it, by exchange and direction: tensors, clients, rounds and bytes.
    """

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    samples: tuple[int, ...]
    feature: Tensor
    label: Tensor | None
    messages: dict[str, Any]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: that it does not separate the clients, if so."""
        return notes_on(self.feature)

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {tuple(self.label.shape)}"
        return f"Index(clients: {len(self.clients)}, feature {tuple(self.feature.shape)}{label})"

    @property
    def cosines(self) -> dict[str, Tensor]:
        """The cosines (K, K) between clients: of the whole index, if it has two parts, and of the feature index."""
        feature = {"feature index": similarity(self.feature, None)}
        return feature if self.label is None else {"client index": similarity(self.feature, self.label)} | feature

    @property
    def summary(self) -> tuple[str, ...]:
        """What was made, what clients sent for it, and how alike they are."""
        sent = [message["up"] for message in self.messages.values()]
        return (
            f"{len(self.clients)} clients of {len(set(self.domains))} domains, {self.feature.shape[1]} features; "
            f"clients sent {sum(up['bytes'] for up in sent)} bytes in {sum(up['messages'] for up in sent)} messages.",
            self._alike(),
        )

    def _alike(self) -> str:
        """The least cosine of the feature index, and its means inside and between domains."""
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
