"""ComBat: columns that sites measure on other scales, brought to one location and scale by empirical Bayes.

Johnson, Li and Rabinovic (Biostatistics, 2007). Of row j of site i in column v it models::

    x = mean_v + (z - means_v) effects_v + scale_v (gamma_iv + delta_iv e)

with covariates z, whose effects are preserved; gamma and delta, the site's location and scale, are shrunk towards
what its other columns have, and taken away. As in d-ComBat (Chen et al., Human Brain Mapping, 2022) ``mean``,
``effects`` and ``scale`` follow from sums of each site about its own means, and gamma and delta of a site from its own
rows then. With every cell there it is what pooled rows would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ROUNDS = 10_000  # of the iteration for gamma and delta, which ends long before
CLOSE = 1e-12  # how little changes at its end
ROUNDED = 1e-20  # a sum of squares, in units of the scale, that rounding alone leaves


def covariate_sums(x: Tensor, z: Tensor) -> dict[str, Tensor]:
    """Sums of a site's covariates over the rows that have a value in each column.

    Args:
        x: columns (n, columns), float64; NaN is a missing cell.
        z: covariates (n, k), float64; one that is missing counts as the site's mean.

    Returns:
        ``covariates`` (columns, k), their means; and, about these, ``covariate_squares`` (columns, k, k), the sums of
        products of covariates, and ``covariate_products`` (columns, k), those of the covariates and the column.
    """
    known, location, z = ~x.isnan(), _means(z), _apart(z)
    count = known.sum(dim=0).clamp_min(1)[:, None]
    shift = known.double().T @ z / count
    squares = torch.einsum("nv,na,nb->vab", known.double(), z, z)
    squares = squares - count[..., None] * shift[:, :, None] * shift[:, None, :]
    return {
        "covariates": location + shift,
        "covariate_squares": squares,
        "covariate_products": _apart(x).T @ z,
    }


def effects_of(sites: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The covariates' effects within sites, of what :func:`covariate_sums` gave with ``present`` (columns,) beside.

    Returns:
        ``effects`` (columns, k); ``covariates`` (columns, k), their means over all rows; and ``explained`` (columns,),
        the sum of squares within sites that the effects explain.
    """
    present = torch.stack([site["present"] for site in sites]).double()[..., None]
    means = (present * torch.stack([site["covariates"] for site in sites])).sum(dim=0)
    squares, products = (
        torch.stack([site[f"covariate_{name}"] for site in sites]).sum(dim=0) for name in ("squares", "products")
    )
    effects = (torch.linalg.pinv(squares, hermitian=True) @ products[..., None])[..., 0]
    return {
        "effects": effects,
        "covariates": means / present.sum(dim=0).clamp_min(1),
        "explained": (effects * products).sum(dim=1),
    }


def residuals(x: Tensor, z: Tensor, effects: Tensor, means: Tensor) -> Tensor:
    """Columns x (n, columns) less the effects (columns, k) of covariates z (n, k), missing ones as in the sums."""
    z = _apart(z) + _means(z)
    return x - z @ effects.T + (means * effects).sum(dim=1)


def location_and_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """A site's gamma and delta (the square of what Johnson et al. divide by) of standardised columns.

    A column without two different values is left alone (0 and 1). Of a single other one nothing is shrunk.

    Args:
        x: residuals (n, columns) in units of the scale that sites share; NaN is a missing cell.

    Returns:
        gamma and delta, each (columns,).
    """
    count, squares = (~x.isnan()).sum(dim=0).double(), _apart(x).square().sum(dim=0)
    gamma, delta, some = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), squares > ROUNDED
    if some.any():
        gamma[some], delta[some] = _shrunk(count[some], _means(x)[some], squares[some])
    return gamma, delta


def _shrunk(count: Tensor, mean: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior modes of a site's gamma and delta, of that many values' means and squares about them (columns,)."""
    variance = squares / (count - 1)
    middle = variance.mean()
    if len(mean) == 1:
        return mean, variance
    spread = variance.var().clamp_min(1e-9 * middle**2)  # all equal: the prior is nearly certain
    a, b = 2 + middle**2 / spread, middle + middle**3 / spread
    center, width = mean.mean(), mean.var()
    gamma, delta = mean, variance
    for _ in range(ROUNDS):
        before = gamma, delta
        gamma = (width * count * mean + delta * center) / (width * count + delta)
        delta = ((squares + count * (mean - gamma).square()) / 2 + b) / (count / 2 + a - 1)
        if (gamma - before[0]).abs().max() < CLOSE and ((delta - before[1]) / before[1]).abs().max() < CLOSE:
            break
    return gamma, delta


def _means(x: Tensor) -> Tensor:
    return x.nanmean(dim=0).nan_to_num()


def _apart(x: Tensor) -> Tensor:
    return (x - _means(x)).nan_to_num()
