"""Columns that are almost entirely missing at a site, and remedies."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from fedshift.clients.domains import DomainData
from fedshift.clients.preparation import Preparation

MOSTLY = 0.9  # missing part of a site's cells of a column, from which on it is named
NAMED = 5  # sites, and columns of each, that a message lists
REMEDY = (
    "Exclude such a column (--set data.exclude={name}), add an input that marks missing cells (--set "
    "data.indicate={name}), or, if each site's statistics prepare rows, pool this column's statistics (--set "
    "data.pool={name})."
)


def mostly_missing(shares: Mapping[str, Mapping[str, float]], settled: Collection[str]) -> dict[str, dict[str, float]]:
    """The columns almost entirely missing at each site, largest share first; shares are by site and column.

    Columns in ``settled`` are ignored, as settings decide about their missing cells.
    """
    found = dict[str, dict[str, float]]()
    for site, own in shares.items():
        most = sorted(own.items(), key=lambda each: -each[1])
        found[site] = {name: share for name, share in most if share >= MOSTLY and name not in settled}
    return {site: own for site, own in found.items() if own}


def mostly_missing_text(found: Mapping[str, Mapping[str, float]], sites: int) -> str:
    """A sentence on the result of :func:`mostly_missing` at ``sites`` sites."""
    words = []
    for site, own in [*found.items()][:NAMED]:
        columns = [f"{100 * share:.0f} % of '{name}'" for name, share in [*own.items()][:NAMED]]
        more = f" and {len(own) - NAMED} more columns" if len(own) > NAMED else ""
        words.append(f"{site} {', '.join(columns)}{more}")
    if len(found) > NAMED:
        words.append(f"{len(found) - NAMED} more")
    return f"Almost all of a column is missing at {len(found)} of {sites} sites: {'; '.join(words)}."


def remedy(found: Mapping[str, Mapping[str, float]]) -> str:
    """A remedy for the result of :func:`mostly_missing`, with the column that most sites lack."""
    sites: dict[str, int] = {}
    for own in found.values():
        for name in own:
            sites[name] = sites.get(name, 0) + 1
    return REMEDY.format(name=max(sites, key=lambda name: sites[name]))


def notes_on_missing(data: DomainData, preparation: Preparation | None) -> tuple[str, ...]:
    """A note on columns that are almost missing at sites, for prepared rows, without columns that settings name."""
    if preparation is None:
        return ()
    names, missing = [column.name for column in data.columns], data.x.isnan().double()
    shares = {
        data.domains[number]: dict(zip(names, missing[data.domain == number].mean(dim=0).tolist(), strict=True))
        for number in torch.unique(data.domain).tolist()
    }
    found = mostly_missing(shares, preparation.settled)
    return (f"{mostly_missing_text(found, len(shares))} {remedy(found)}",) if found else ()
