"""Similarity of client vectors."""

from __future__ import annotations

from fedshift.page import *

INDISTINCT = 0.99  # an index whose cosines are all above does not separate clients


def least_cosine(feature: Tensor) -> float:
    """Smallest cosine between two feature vectors (K, d), without the zeros of absent clients."""
    present = feature[feature.norm(dim=1) > 0]
    return float(similarity(present, None).min()) if len(present) > 1 else 1.0


def separation_notes(feature: Tensor) -> tuple[str, ...]:
    """A note if feature vectors (K, d) do not separate the clients: all cosines are above :data:`INDISTINCT`."""
    least = least_cosine(feature)
    if least <= INDISTINCT:
        return ()
    return (
        f"The feature index does not separate the clients: the least cosine between two of them is {least:.3f}, above "
        f"{INDISTINCT}. Its decisions are nearly the same for all clients.",
    )


def similarity(feature: Tensor | None, label: Tensor | None) -> Tensor:
    """Cosines (K, K) between clients; with two parts, the mean of both cosines (Client2Vec, Sec. 4)."""
    cosines = [nn.functional.normalize(rows, dim=1) for rows in (feature, label) if rows is not None]
    return torch.stack([rows @ rows.T for rows in cosines]).mean(dim=0)
