"""DSA-IGN with orthogonality by the mean entry of Z U^T, which knows the length of its rows; see client2vec.md.

A client that is absent when vectors are measured has zeros.
"""

from __future__ import annotations

from fedshift.methods.client2vec import INDICES
from fedshift.methods.client2vec.dsa_ign import DSAIGN
from fedshift.page import *


@INDICES.register("dsa-ign-entries")
class ByEntries(DSAIGN):
    """DSA-IGN whose orthogonality is the mean of the absolute entries of Z U^T."""

    def orthogonality(self, z: Tensor, u: Tensor) -> Tensor:
        """The mean of |Z U^T|."""
        return (z @ u.T).abs().mean()
