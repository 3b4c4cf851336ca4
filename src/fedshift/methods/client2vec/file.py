"""An index that was made before: the vectors that ``fedshift index`` wrote, so nothing is trained or sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fedshift import parquet
from fedshift.methods.client2vec.encoder import Encoder
from fedshift.methods.client2vec.index import COUNTS, FEATURE, LABEL, ClientIndex
from fedshift.methods.client2vec.offline import Offline
from fedshift.page import *


class IndexFile(ClientIndex):
    """Vectors from ``index.parquet``, a row for each client in the federation's order."""

    encoder: Encoder = fixed(Offline())  # nothing is embedded
    path: str = setting(help="the index.parquet of a federation of the same clients", path=True)
    strategy: Literal["global", "federated"] = setting("global", help="how it was made, which decides use 3's weight")

    def check(self, federated: FederatedData) -> None:
        """Compare the file's clients and their numbers of samples with the federation's.

        Raises:
            FedshiftError: they are others.
        """
        columns = self._columns()
        described = list(zip(columns["client"], (int(count) for count in columns["samples"]), strict=True))
        here = [(client.name, len(client.train)) for client in federated.clients]
        if len(described) != len(here):
            raise self._other(f"it describes {len(described)} clients, but this federation has {len(here)}")
        for (name, count), (client, samples) in zip(described, here, strict=True):
            if (name, count) != (client, samples):
                raise self._other(
                    f"it has '{name}' of {count} samples where this federation has '{client}' of {samples}"
                )

    def _other(self, reason: str) -> FedshiftError:
        return FedshiftError(
            f"'{self.path}' is the index of other clients: {reason}. Make it with the same data, partition, protocol "
            "and seed."
        )

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """The vectors as the file has them."""
        columns = self._columns()
        scopes: dict[str, Scope] = {"feature": feature_scope, "label": "server", "samples": "server"}
        names = {"feature": FEATURE, "label": LABEL, "samples": COUNTS}
        return {
            names[name]: Part.state(torch.tensor(columns[name], dtype=torch.float32), scope)
            for name, scope in scopes.items()
            if name in columns
        }

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """Nothing is left to do."""
        return ()

    def _columns(self) -> dict[str, Any]:
        with needs("parquet", "Reading an index"):
            import pyarrow
        try:
            columns: dict[str, Any] = parquet.read(Path(self.path).expanduser()).to_pydict()
        except (pyarrow.ArrowException, OSError) as error:
            raise FedshiftError(f"index.path = '{self.path}' cannot be read as Parquet ({error}).") from error
        lacking = [name for name in ("client", "samples", "feature") if name not in columns]
        if lacking:
            raise FedshiftError(f"'{self.path}' has no column {', '.join(lacking)}; give what `fedshift index` wrote.")
        return columns
