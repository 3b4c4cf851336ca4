"""Whether sites differ in what their samples of a class look like, by a classifier's two-sample test.

A classifier learns on one half of the samples which of two sites each is of, and is scored on the other half. Were the
sites the same, it could only guess (Lopez-Paz and Oquab, Revisiting Classifier Two-Sample Tests, ICLR 2017).

*Choices.* Of each class both sites give equally many samples to each half, so that a difference in classes alone is
not seen. Of samples made from one original (``DomainData.group``) one is used, so that all are independent. The
classifier is logistic regression on the first principal components of the standardised inputs and their squares;
images and signals are averaged over small areas first, and the mean and the standard deviation of each of their
channels (of signals also of their spectrum) stand beside the components. p is that of a binomial test, corrected by
Bonferroni's method for the number of comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from fedshift.clients.domains import DomainData
from fedshift.clients.oddities import PIECE, Notify, silent
from fedshift.errors import needs
from fedshift.reporting.data_report.data_tables import Kind
from fedshift.streams import Streams

REST = "the others"
PER_SITE = 1000  # samples of a site that are used at most
TOGETHER = 20_000  # samples of all sites
COMPONENTS = 20
LEAST = 10  # held-out samples of each of two sites
MOST_PAIRED = 16  # sites of which every pair is compared; of more, each is compared with the others
SIDE, LENGTH, BANDS, TOKENS = 16, 128, 16, 1024
CATEGORIES = 50  # of a column, the most frequent ones
SIGNIFICANT = 0.05

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """How well a classifier separates two sites."""

    one: str  # a site
    other: str  # another, or "the others", which are all others together
    accuracy: float  # on the held-out half, where 0.5 is guessing
    p: float  # how likely so large an accuracy is if they do not differ, corrected for the number of comparisons
    samples: int  # how many samples the held-out half has

    @property
    def significant(self) -> bool:
        """Whether they differ, at 5 % for all comparisons together."""
        return self.p < SIGNIFICANT


def feature_drift(
    data: DomainData, looked: Tensor, kind: Kind, streams: Streams, notify: Notify = silent
) -> tuple[Difference, ...]:
    """How well a classifier separates sites; sites with too few samples of common classes are excluded.

    Args:
        data: the samples.
        looked: which are used, (N,), bool; of each site 1000 at most, drawn from the streams.
        kind: what a sample is.
        streams: where random numbers come from.
        notify: takes the progress: what is done, comparisons done, comparisons in all.
    """
    with needs("sklearn", "Comparing sites"):
        import sklearn  # noqa: F401  # which the functions below import
        from scipy.stats import binomtest

    rows = _drawn(data, looked, streams)
    site_of, y = data.domain[rows].numpy(), data.y[rows].numpy()
    sites = [site for site, count in enumerate(np.bincount(site_of, minlength=1)) if count >= 4 * LEAST]
    if len(sites) < 2:
        return ()
    z = features(data, rows, kind, streams)
    requested: list[tuple[int, int | None]] = [(site, None) for site in sites]
    if len(sites) <= MOST_PAIRED:
        requested = list(combinations(sites, 2))
    found = []
    for number, (one, other) in enumerate(requested):
        notify("Comparing sites", number, len(requested))
        use = np.flatnonzero(np.isin(site_of, sites if other is None else [one, other]))
        draw = np.random.default_rng(_seed(streams, "drift", one, -1 if other is None else other))
        right, total = distinguish_sites(z[use], y[use], site_of[use] == one, draw)
        if total >= 2 * LEAST:
            p = min(1.0, len(requested) * float(binomtest(right, total, alternative="greater").pvalue))
            name = REST if other is None else data.domains[other]
            found.append(Difference(data.domains[one], name, right / total, p, total))
    notify("Comparing sites", len(requested), len(requested))
    return tuple(found)


def distinguish_sites(z: Array, y: Array, mine: Array, draw: np.random.Generator) -> tuple[int, int]:
    """How many held-out samples a classifier assigns to the right one of two sites, and how many there are.

    Args:
        z: features (N, D), of independent samples.
        y: classes (N,).
        mine: whether each is of the first site, (N,), bool.
        draw: draws the samples of each class, and the halves.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    learnt, held = [], []
    for label in np.unique(y):
        both = [draw.permutation(np.flatnonzero((y == label) & (mine == side))) for side in (True, False)]
        count = min(map(len, both))
        held += [rows[: count // 2] for rows in both]
        learnt += [rows[count // 2 : count] for rows in both]
    train, test = np.concatenate(learnt), np.concatenate(held)
    if len(test) < 2 * LEAST or not z.shape[1]:
        return 0, 0
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)).fit(z[train], mine[train])
    return int((classifier.predict(z[test]) == mine[test]).sum()), len(test)


def features(data: DomainData, rows: Tensor, kind: Kind, streams: Streams) -> Array:
    """The classifier's features of some samples, (n, D); which site a sample is of is ignored."""
    from sklearn.decomposition import PCA

    step = max(1, PIECE // data.x[0].numel())
    made = [_summarised(data, data.x[some], kind) for some in torch.split(rows, step)]
    wide, beside = (_standardised(np.concatenate(each)) for each in zip(*made, strict=True))
    if wide.shape[1] > COMPONENTS:
        seed = _seed(streams, "drift components") % 2**32
        wide = _standardised(PCA(COMPONENTS, random_state=seed).fit_transform(wide))
    z = np.concatenate([wide, beside], axis=1).clip(-5, 5)  # so that no square of an outlier decides
    return np.concatenate([z, z**2], axis=1)


def _summarised(data: DomainData, x: Tensor, kind: Kind) -> tuple[Array, Array]:
    """A batch as some hundred numbers, (B, D), and figures of its channels, (B, F)."""
    if kind in ("text", "tokens"):  # how often each token is there
        counts = torch.zeros(len(x), TOKENS).scatter_add_(1, x.flatten(1) % TOKENS, torch.ones(x.flatten(1).shape))
        return (counts / x[0].numel()).sqrt().numpy(), np.zeros((len(x), 0))
    x = x.double()
    absent, filled = x.isnan(), x.nan_to_num(0.0)
    if kind == "rows":
        return _one_hot(data, x), absent.double().numpy()
    channels = filled.flatten(2) if x.ndim > 2 else filled.unsqueeze(1)
    figures = [channels.mean(dim=2), channels.std(dim=2, correction=0), absent.flatten(1).any(dim=1, keepdim=True)]
    if kind == "images":
        small = adaptive_avg_pool2d(filled, (min(SIDE, x.shape[2]), min(SIDE, x.shape[3])))
    else:
        small = adaptive_avg_pool1d(channels, min(LENGTH, channels.shape[2]))
        bands = torch.fft.rfft(channels, dim=2).abs().log1p()
        figures.append(adaptive_avg_pool1d(bands, min(BANDS, bands.shape[2])).flatten(1))
    return small.flatten(1).numpy(), torch.cat([each.double() for each in figures], dim=1).numpy()


def _one_hot(data: DomainData, x: Tensor) -> Array:
    columns = [x[:, [place]] for place in range(x.shape[1])]
    for place, column in enumerate(data.columns):
        if column.categories is not None:
            columns[place] = (x[:, [place]] == torch.arange(min(len(column.categories), CATEGORIES))).double()
    return torch.cat(columns, dim=1).numpy()


def _standardised(values: Array) -> Array:
    """Columns of mean 0 and variance 1; missing numbers become 0, and columns that never change go."""
    missing = np.isnan(values)
    masked = np.ma.masked_array(values, missing)
    mean, std = masked.mean(axis=0).filled(0.0), masked.std(axis=0).filled(0.0)
    varies = std > 1e-12 * np.maximum(1.0, np.abs(mean))
    result: Array = np.where(missing, 0.0, values - mean)[:, varies] / std[varies]
    return result


def _drawn(data: DomainData, looked: Tensor, streams: Streams) -> Tensor:
    rows = looked.nonzero().flatten()
    rows = rows[streams.permutation(len(rows), "drift samples")]
    rows = rows[np.sort(np.unique(data.group[rows].numpy(), return_index=True)[1])]
    per_site = max(4 * LEAST, min(PER_SITE, TOGETHER // len(data.domains)))
    return torch.cat([rows[data.domain[rows] == site][:per_site] for site in range(len(data.domains))])


def _seed(streams: Streams, purpose: str, *key: int) -> int:
    return streams.generator(purpose, *key).initial_seed() % 2**63
