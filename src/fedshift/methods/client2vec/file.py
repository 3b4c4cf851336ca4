"""An index from a file that ``fedshift index`` wrote; nothing is trained or sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fedshift import parquet
from fedshift.methods.client2vec.encoder import Encoder
from fedshift.methods.client2vec.index import COUNTS, FEATURE, LABEL, ClientIndex
from fedshift.methods.client2vec.offline import Offline
from fedshift.page import *


class IndexFile(ClientIndex):
    """Vectors from ``index.parquet``, one row for each client in the federation's order."""

    encoder: Encoder = fixed(Offline())  # nothing is embedded
    path: str = setting(help="the index.parquet of a federation of the same clients", path=True)
    strategy: Literal["global", "federated"] = setting(
        "global", help="strategy that created it, which sets the weight of use 3"
    )

    def check(self, federated: FederatedData) -> None:
        """Compare the file's clients and sample counts with the federation's.

        Raises:
            FedshiftError: they differ.
        """
        columns = self._columns()
        described = list(zip(columns["client"], (int(count) for count in columns["samples"]), strict=True))
        here = [(client.name, len(client.train)) for client in federated.clients]
        if len(described) != len(here):
            raise self._mismatch(f"it describes {len(described)} clients, but this federation has {len(here)}")
        for (name, count), (client, samples) in zip(described, here, strict=True):
            if (name, count) != (client, samples):
                raise self._mismatch(
                    f"it has '{name}' with {count} samples where this federation has '{client}' with {samples}"
                )

    def _mismatch(self, reason: str) -> FedshiftError:
        return FedshiftError(
            f"'{self.path}' is the index of other clients: {reason}. Create it with the same data, partition, protocol "
            "and seed."
        )

    def parts(self, model: ModelBuilder, base: Mapping[str, Part], feature_scope: Scope) -> dict[str, Part]:
        """The vectors and sample counts of the file."""
        columns = self._columns()
        scopes: dict[str, Scope] = {"feature": feature_scope, "label": "server", "samples": "server"}
        names = {"feature": FEATURE, "label": LABEL, "samples": COUNTS}
        return {
            names[name]: Part.state(torch.tensor(columns[name], dtype=torch.float32), scope)
            for name, scope in scopes.items()
            if name in columns
        }

    def stages(self, base: Averaging) -> tuple[Stage, ...]:
        """No stages."""
        return ()

    def _columns(self) -> dict[str, Any]:
        with needs("parquet", "Reading an index"):
            import pyarrow
        try:
            columns: dict[str, Any] = parquet.read(Path(self.path).expanduser()).to_pydict()
        except (pyarrow.ArrowException, OSError) as error:
            raise FedshiftError(f"index.path = '{self.path}' cannot be read as Parquet ({error}).") from error
        missing = [name for name in ("client", "samples", "feature") if name not in columns]
        if missing:
            raise FedshiftError(f"'{self.path}' has no column {', '.join(missing)}; use a file of `fedshift index`.")
        return columns
