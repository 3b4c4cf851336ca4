"""The projection of MOON and FedProc: two layers behind the encoder, which the head reads.

Li, He and Song (MOON, CVPR 2021, Sec. 3.2) introduce it: linear d to d, ReLU, linear d to ``projection_dim``. It is
off by default, so that a table compares methods on one network; the published forms have ``projection = "mlp"``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class Projected(FedAvg):
    """FedAvg whose head reads a projected representation; methods add a contrast."""

    paper: ClassVar[str] = "Li, He and Song, CVPR 2021, Sec. 3.2"

    projection: Literal["mlp", "none"] = setting(
        "none",
        help="projection of z by two layers, which the head reads too: a larger network than other methods have",
        source="MOON Sec. 3.2: mlp",
    )
    projection_dim: Width = setting(256, help="outputs of the projection 'mlp'", source="MOON Sec. 4.1")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Shared encoder, projection and head."""
        if self.projection == "none":
            return super().parts(model)
        projection = model.initialised("projection", lambda: self._mlp(model.dim))
        modules = {
            "encoder": model.encoder(),
            "projection": projection,
            "head": model.head(features=self.projection_dim),
        }
        return {name: Part(module) for name, module in modules.items()}

    def _mlp(self, dim: int) -> nn.Module:
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, self.projection_dim))

    def width(self, model: ModelBuilder) -> int:
        """Number of features that the head reads."""
        return self.projection_dim if self.projection == "mlp" else super().width(model)

    def moves(self) -> tuple[str, ...]:
        """The parts that local training updates."""
        return ("encoder", "projection", "head") if self.projection == "mlp" else super().moves()

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with its projected representation (B, ``projection_dim``), or z (B, d)."""
        batch = super().encode(net, batch, noise)
        return batch._replace(z=net.projection(batch.z)) if self.projection == "mlp" else batch
