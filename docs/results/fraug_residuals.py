"""FRAug that records how large its residuals are: ||l_syn m(g(z, y))|| / ||u||; see docs/results/fraug.md.

A plugin: its method is FRAug to the bit, with one more term, a constant of which nothing is a gradient.
"""

from __future__ import annotations

from fedshift.methods import METHODS
from fedshift.methods.fraug import FRAug
from fedshift.page import *


@METHODS.register("fraug-sizes")
class FRAugSizes(FRAug):
    """FRAug whose records have ``residual_size`` beside its losses."""

    def terms(self) -> dict[str, Term]:
        """FRAug's, and the size."""
        return super().terms() | {"residual_size": Term(self.size)}

    def size(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mean over the batch of ||u^ - u|| / ||u||."""
        u = batch.z.detach()
        made = batch.once(self.synthesise, net, batch, context, False).batch
        sizes: Tensor = (made - u).norm(dim=1) / u.norm(dim=1)
        return sizes.mean().detach()
