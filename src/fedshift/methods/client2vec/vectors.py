"""How alike the vectors of clients are."""

from __future__ import annotations

from fedshift.page import *

ALIKE = 0.99  # the cosine of two clients that an index hardly tells apart


def least_cosine(feature: Tensor) -> float:
    """The least cosine between two of the feature vectors (K, d); those of absent clients, zeros, are left out."""
    made = feature[feature.norm(dim=1) > 0]
    return float(similarity(made, None).min()) if len(made) > 1 else 1.0


def notes_on(feature: Tensor) -> tuple[str, ...]:
    """A note if feature vectors (K, d) do not separate the clients: every two have a cosine above :data:`ALIKE`."""
    least = least_cosine(feature)
    if least <= ALIKE:
        return ()
    return (
        f"The feature index does not separate the clients: the least cosine between two of them is {least:.3f}, above "
        f"{ALIKE}. What it decides is nearly the same for all.",
    )


def similarity(feature: Tensor | None, label: Tensor | None) -> Tensor:
    """The cosine between every two clients (K, K); with two parts, the mean of both cosines (Client2Vec, Sec. 4)."""
    cosines = [nn.functional.normalize(rows, dim=1) for rows in (feature, label) if rows is not None]
    return torch.stack([rows @ rows.T for rows in cosines]).mean(dim=0)
