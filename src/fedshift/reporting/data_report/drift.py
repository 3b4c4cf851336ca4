"""Whether sites differ: in what their samples of a class look like (feature drift), and in their classes (label drift).

Feature drift is told by a classifier's two-sample test (Lopez-Paz and Oquab, Revisiting Classifier Two-Sample
Tests, ICLR 2017): a classifier learns on one half of the samples which of two sites each is of, and is scored on the
other half. Were the sites alike, it could only guess.

*Choices.* Of each class both sites give equally many samples, to each half, so that a difference in classes alone is
not seen; classes that only one of them has are left out. Of samples made from one original (``DomainData.group``) one
is used, so that all are independent. The classifier is logistic regression on the first principal components of the
standardised inputs and their squares; images and signals are averaged over small areas first, and the mean and the
standard deviation of each of their channels (of signals also of their spectrum) are inputs beside the components. Of a
table each category is a column of its own, 0 or 1.
Given the predictions, and were the sites alike, any assignment of the held-out samples of a class to the two sites
would be as likely as that observed. So how many are told right follows a sum of hypergeometric distributions, which
gives the p value exactly. The paper has the normal distribution that this tends to. Values of p are corrected by
Holm's method.

Label drift is the total variation distance between two sites' classes, with a chi-squared test of homogeneity; classes
of which fewer than five are expected at a site count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from fedshift.errors import needs
from fedshift.federation.domains import DomainData
from fedshift.federation.preparation import Column
from fedshift.reporting.data_report.duplicates import PIECE, Tell, silent
from fedshift.reporting.data_report.values import Kind
from fedshift.streams import Streams

REST = "the others"
PER_SITE = 1000  # samples of a site that are used at most
COMPONENTS = 20
LEAST = 10  # held-out samples of each of two sites
MOST_PAIRED = 16  # sites of which every pair is compared
TOGETHER = 20_000  # samples of all sites
SIDE, LENGTH, BANDS, TOKENS = 16, 128, 16, 1024
CATEGORIES = 50  # of a column, the most frequent ones
EXPECTED = 5
SIGNIFICANT = 0.05

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """How two sites differ.

    Attributes:
        one: a site.
        other: another, or "the others", which are all others together.
        value: of features the accuracy on the held-out half, where 0.5 is guessing; of labels the total variation
            distance, from 0 (equal) to 1 (no class in common).
        p: how likely so large a value is, or a larger one, if they do not differ.
        adjusted: the same, corrected for the number of comparisons.
        samples: how many samples of both it is made on; of features, the held-out half.
    """

    one: str
    other: str
    value: float
    p: float
    adjusted: float
    samples: int

    @property
    def significant(self) -> bool:
        """Whether they differ, at 5 % for all comparisons of the kind together."""
        return self.adjusted < SIGNIFICANT


@dataclass(frozen=True)
class Drift:
    """How sites differ from each other.

    Attributes:
        pairs: every two sites that could be compared, unless they are too many.
        rest: each site against the others, where there are several.
        per_site: how many samples of a site are used at most; 0: all.
    """

    pairs: tuple[Difference, ...] = ()
    rest: tuple[Difference, ...] = ()
    per_site: int = 0


def feature_drift(data: DomainData, looked: Tensor, kind: Kind, streams: Streams, tell: Tell = silent) -> Drift:
    """How far a classifier tells sites apart.

    Args:
        data: the samples.
        looked: which are used, (N,), bool; of each site 1000 at most, drawn from the streams.
        kind: what a sample is.
        streams: where random numbers come from.
        tell: hears how far the work is.

    Raises:
        FedshiftError: scikit-learn is not installed.
    """
    per_site = max(4 * LEAST, min(PER_SITE, TOGETHER // len(data.domains)))
    rows = [_drawn(data, looked, site, streams)[:per_site] for site in range(len(data.domains))]
    sites = [site for site, own in enumerate(rows) if len(own) >= 4 * LEAST]
    if len(sites) < 2:
        return Drift(per_site=per_site)
    every = torch.cat([rows[site] for site in sites])
    tell("Comparing sites", 0, 1)
    z = features(data, every, kind, streams)
    if not z.shape[1]:  # nothing varies
        return Drift(per_site=per_site)
    y, group, site_of = data.y[every].numpy(), data.group[every].numpy(), data.domain[every].numpy()
    several = len(sites) > 2
    asked: list[tuple[int, int | None]] = list(combinations(sites, 2)) if len(sites) <= MOST_PAIRED else []
    asked += [(site, None) for site in sites] if several else []
    found: list[Difference] = []
    for number, (one, other) in enumerate(asked):
        tell("Comparing sites", number, len(asked))
        mine = np.isin(site_of, [one] if other is None else [one, other])
        use = np.ones_like(mine) if other is None else mine
        draw = np.random.default_rng(_seed(streams, "drift", one, -1 if other is None else other))
        kept = np.flatnonzero(use)[_one_of_each(group[use], draw)]
        told = two_sample_test(z[kept], y[kept], site_of[kept] == one, draw)
        if told is not None:
            name = REST if other is None else data.domains[other]
            found.append(Difference(data.domains[one], name, told[0], told[1], told[1], told[2]))
    tell("Comparing sites", len(asked), len(asked))
    return replace(_corrected(found), per_site=per_site)


def label_drift(data: DomainData, holder: Tensor, names: Sequence[str]) -> Drift:
    """How far sites, or clients, differ in their classes; of samples made from one original, the first counts.

    Args:
        data: the samples.
        holder: the site or client of each, (N,), int64; -1: it is not used.
        names: what these are called.
    """
    table = np.zeros((len(names), len(data.classes)), dtype=np.int64)
    rows = (holder >= 0).nonzero().flatten().numpy()
    held, group = holder.numpy()[rows], np.unique(data.group.numpy()[rows], return_inverse=True)[1]
    first = np.unique(held * len(data.y) + group, return_index=True)[1]
    np.add.at(table, (held[first], data.y.numpy()[rows[first]]), 1)
    sites = [site for site, counts in enumerate(table) if counts.sum() >= 2 * LEAST]
    asked: list[tuple[int, int | None]] = list(combinations(sites, 2)) if len(sites) <= MOST_PAIRED else []
    asked += [(site, None) for site in sites] if len(sites) > 2 else []
    found: list[Difference] = []
    for one, other in asked:
        theirs = table[sites].sum(axis=0) - table[one] if other is None else table[other]
        both = np.stack([table[one], theirs])
        p = homogeneity(both)
        if p is not None:
            shares = both / both.sum(axis=1, keepdims=True)
            distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
            name = REST if other is None else names[other]
            found.append(Difference(names[one], name, distance, p, p, int(both.sum())))
    return _corrected(found)


# The tests ----------------------------------------------------------------------------------------


def two_sample_test(z: Array, y: Array, mine: Array, draw: np.random.Generator) -> tuple[float, float, int] | None:
    """The accuracy of telling two sites apart on a held-out half, its p value, and how many samples that half has.

    Args:
        z: features (N, D), of independent samples.
        y: classes (N,).
        mine: whether each is of the first site, (N,), bool.
        draw: draws the samples of each class, and the halves.

    Returns:
        None if the sites have too few samples of common classes.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    learnt: list[Array] = []
    held: list[tuple[Array, Array]] = []
    for label in np.unique(y):
        a, b = (draw.permutation(np.flatnonzero((y == label) & (mine == side))) for side in (True, False))
        count = min(len(a), len(b))
        half = count // 2
        held.append((a[:half], b[:half]))
        learnt += [a[half:count], b[half:count]]
    if sum(len(a) for a, _ in held) < LEAST:
        return None
    rows = np.concatenate(learnt)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    classifier.fit(z[rows], mine[rows])
    told = [
        Told(len(a), int(classifier.predict(z[a]).sum()), int(classifier.predict(z[b]).sum()))
        for a, b in held
        if len(a)
    ]
    total = 2 * sum(each.of_each for each in told)
    right = sum(each.mine + each.of_each - each.theirs for each in told)
    return right / total, by_chance(told), total


class Told(NamedTuple):
    """What a classifier says of held-out samples of a class: of ``of_each`` of each of two sites.

    ``mine`` and ``theirs`` are how many of the first site's, and of the other's, it says to be of the first.
    """

    of_each: int
    mine: int
    theirs: int


def by_chance(told: Sequence[Told]) -> float:
    """How likely as many samples, or more, are told right if the samples of each class are exchanged at random."""
    from scipy.stats import hypergeom

    pmf = np.ones(1)  # of how many of the first site are told to be of it, on which the number of right ones depends
    for of_each, mine, theirs in told:
        pmf = np.convolve(pmf, hypergeom(2 * of_each, of_each, mine + theirs).pmf(np.arange(of_each + 1)))
    return float(min(1.0, pmf[sum(each.mine for each in told) :].sum()))


def homogeneity(table: Array) -> float | None:
    """The p value of a chi-squared test that two sites (2, K) have the same classes.

    Classes of which fewer than five are expected at a site are counted together; None if fewer than two are left.
    """
    with needs("sklearn", "Comparing sites"):
        from scipy.stats import chi2_contingency

    table = table[:, table.sum(axis=0) > 0]
    share = table.sum(axis=1).min() / table.sum()
    table = table[:, table.sum(axis=0).argsort(kind="stable")]  # the rarest first
    expected = table.sum(axis=0) * share
    rare = int((expected < EXPECTED).sum())
    while rare and expected[:rare].sum() < EXPECTED and rare < table.shape[1]:
        rare += 1
    if rare:
        table = np.concatenate([table[:, :rare].sum(axis=1, keepdims=True), table[:, rare:]], axis=1)
    if table.shape[1] < 2:
        return None
    return float(chi2_contingency(table, correction=False).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Values of p so corrected that, of all, one below 5 % occurs by chance with 5 % at most (Holm, 1979)."""
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda place: p[place])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = highest
    return adjusted


def _corrected(found: Sequence[Difference]) -> Drift:
    """Pairs and each against the rest, each kind corrected for itself."""
    kinds = [[each for each in found if (each.other == REST) == rest] for rest in (False, True)]
    pairs, rest = (
        tuple(replace(each, adjusted=p) for each, p in zip(kind, holm([each.p for each in kind]), strict=True))
        for kind in kinds
    )
    return Drift(pairs, rest)


# Features -----------------------------------------------------------------------------------------


def features(data: DomainData, rows: Tensor, kind: Kind, streams: Streams) -> Array:
    """What the classifier reads of some samples, (n, D): principal components, figures of each sample, their squares.

    Which site a sample is of is not looked at.

    Args:
        data: all samples.
        rows: which of them, (n,), int64.
        kind: what a sample is.
        streams: where the random numbers of the decomposition come from.

    Raises:
        FedshiftError: scikit-learn is not installed.
    """
    with needs("sklearn", "Comparing sites"):
        from sklearn.decomposition import PCA

    x, step = data.x, max(1, PIECE // data.x[0].numel())
    tokens = 0 if x.is_floating_point() or x.dtype == torch.uint8 else min(int(x[rows].max()) + 1, TOKENS)
    made = [_reduced(x[rows[start : start + step]], kind, tokens) for start in range(0, len(rows), step)]
    wide, beside = (np.concatenate(each) for each in zip(*made, strict=True))
    wide, beside = _standardised(_without_codes(wide, data.columns)), _standardised(beside)
    if wide.shape[1] > COMPONENTS:
        seed = _seed(streams, "drift components") % 2**32
        wide = _standardised(PCA(COMPONENTS, random_state=seed).fit_transform(wide))
    z = np.concatenate([wide, beside], axis=1).clip(-5, 5)  # so that no square of an outlier decides
    return np.concatenate([z, z**2], axis=1)


def _reduced(x: Tensor, kind: Kind, tokens: int) -> tuple[Array, Array]:
    """A batch as some hundred numbers, (B, D), and figures of its channels, (B, F); of tokens, how often each is."""
    if tokens:
        counts = torch.zeros(len(x), tokens)
        counts.scatter_add_(1, x.flatten(1) % tokens, torch.ones(x.flatten(1).shape))
        return (counts / x[0].numel()).sqrt().numpy(), np.zeros((len(x), 0))
    x = x.double() if x.is_floating_point() else x.float()
    absent = x.isnan()
    filled = x.nan_to_num(0.0)
    if kind == "rows":
        return x.numpy(), absent.float().numpy()
    channels = filled.flatten(2) if x.ndim > 2 else filled.unsqueeze(1)
    figures = [channels.mean(dim=2), channels.std(dim=2, correction=0), absent.flatten(1).any(dim=1, keepdim=True)]
    if kind == "images":
        small = adaptive_avg_pool2d(filled, (min(SIDE, x.shape[2]), min(SIDE, x.shape[3])))
    else:
        small = adaptive_avg_pool1d(channels, min(LENGTH, channels.shape[2]))
        bands = torch.fft.rfft(channels, dim=2).abs().log1p()
        figures.append(adaptive_avg_pool1d(bands, min(BANDS, bands.shape[2])).flatten(1))
    return small.flatten(1).numpy(), torch.cat([each.to(x.dtype) for each in figures], dim=1).numpy()


def _without_codes(rows: Array, columns: Sequence[Column]) -> Array:
    """Rows (n, C) with a column for each frequent category, 0 or 1, in the place of codes."""
    made = [rows[:, [column.categories is None for column in columns]]] if columns else [rows]
    for place, column in enumerate(columns):
        if column.categories is not None:
            codes, counts = np.unique(rows[~np.isnan(rows[:, place]), place], return_counts=True)
            frequent = codes[np.argsort(-counts, kind="stable")[:CATEGORIES]]
            made.append((rows[:, [place]] == frequent).astype(np.float64))
    return np.concatenate(made, axis=1)


def _standardised(values: Array) -> Array:
    """Columns of mean 0 and variance 1; missing numbers become 0, and columns that never change go."""
    known = ~np.isnan(values)
    count = known.sum(axis=0).clip(1)
    filled = np.where(known, values, 0.0).astype(np.float64)
    mean = filled.sum(axis=0) / count
    centred = np.where(known, filled - mean, 0.0)
    std = np.sqrt((centred**2).sum(axis=0) / count)
    varies = std > 1e-12 * np.maximum(1.0, np.abs(mean))
    result: Array = centred[:, varies] / std[varies]
    return result


# Drawing ------------------------------------------------------------------------------------------


def _drawn(data: DomainData, looked: Tensor, site: int, streams: Streams) -> Tensor:
    """Samples of a site, no two made from one original, in random order."""
    rows = (looked & (data.domain == site)).nonzero().flatten()
    rows = rows[streams.permutation(len(rows), "drift samples", site)]
    return rows[np.sort(np.unique(data.group[rows].numpy(), return_index=True)[1])]


def _one_of_each(group: Array, draw: np.random.Generator) -> Array:
    """Places of samples, one of each group, whichever comes first in a random order."""
    order = draw.permutation(len(group))
    return order[np.sort(np.unique(group[order], return_index=True)[1])]


def _seed(streams: Streams, purpose: str, *key: int) -> int:
    return streams.generator(purpose, *key).initial_seed() % 2**63
