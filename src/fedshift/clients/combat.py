"""ComBat: harmonises columns that sites measure on different scales, by empirical Bayes.

Johnson, Li and Rabinovic (Biostatistics, 2007). The model of row j of site i in column v is::

    x = mean_v + (z - means_v) effects_v + scale_v (gamma_iv + delta_iv e)

with covariates z, whose effects are preserved; gamma and delta, the site's location and scale, are shrunk towards its
other columns, and removed. As in d-ComBat (Chen et al., Human Brain Mapping, 2022), ``mean``, ``effects`` and ``scale``
follow from sites' sums about their means. Without missing cells the result equals ComBat on pooled rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ROUNDS = 10_000  # maximum iterations for gamma and delta, never reached
CLOSE = 1e-12  # the change at which they end
ROUNDED = 1e-20  # a sum of squares, in units of the scale, that rounding alone leaves


def covariate_sums(x: Tensor, z: Tensor) -> dict[str, Tensor]:
    """Sums of a site's covariates z (n, k) over the rows with a value in each column of x (n, columns), float64.

    NaN is a missing cell; a missing covariate counts as the site's mean. Returns ``covariates`` (columns, k), their
    means; about these, ``covariate_squares`` (columns, k, k) and ``covariate_products`` (columns, k), with the column.
    """
    known, location, z = ~x.isnan(), _means(z), _centred(z)
    count = known.sum(dim=0).clamp_min(1)[:, None]
    shift = known.double().T @ z / count
    squares = torch.einsum("nv,na,nb->vab", known.double(), z, z)
    squares = squares - count[..., None] * shift[:, :, None] * shift[:, None, :]
    return {
        "covariates": location + shift,
        "covariate_squares": squares,
        "covariate_products": _centred(x).T @ z,
    }


def effects_of(sites: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The covariates' effects within sites, from :func:`covariate_sums` and ``present`` (columns,).

    Returns ``effects`` (columns, k); ``covariates`` (columns, k), their means over all rows; and ``explained``
    (columns,), the sum of squares within sites that the effects explain.
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
    """Columns x (n, columns) minus the effects (columns, k) of covariates z (n, k), missing ones as in the sums."""
    z = _centred(z) + _means(z)
    return x - z @ effects.T + (means * effects).sum(dim=1)


def location_and_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Gamma and delta, each (columns,), of residuals (n, columns) in units of the shared scale; NaN is a missing cell.

    Delta is the square of what Johnson et al. divide by. A column without two different values keeps 0 and 1; if a site
    has a single other column, nothing is shrunk.
    """
    count, squares = (~x.isnan()).sum(dim=0).double(), _centred(x).square().sum(dim=0)
    gamma, delta, some = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), squares > ROUNDED
    if some.any():
        gamma[some], delta[some] = _shrunk(count[some], _means(x)[some], squares[some])
    return gamma, delta


def _shrunk(count: Tensor, mean: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior modes of a site's gamma and delta, from counts, means and squares about these, each (columns,)."""
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


def _centred(x: Tensor) -> Tensor:
    return (x - _means(x)).nan_to_num()
