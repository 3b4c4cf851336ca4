"""Columns that a site hardly has: which they are, and what can be done about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from fedshift.clients.domains import DomainData
from fedshift.clients.preparation import Preparation

MOSTLY = 0.9  # of a site's cells of a column, from which on it is named
NAMED = 5  # sites, and columns of each, that are named one by one
REMEDY = (
    "Leave such a column out (--set data.exclude={name}), add an input that names where it is missing (--set "
    "data.indicate={name}), or, where rows are prepared by statistics of each site, prepare it by those of all (--set "
    "data.pool={name})."
)


def mostly_missing(shares: Mapping[str, Mapping[str, float]], settled: Collection[str]) -> dict[str, dict[str, float]]:
    """The columns of each site that are almost entirely missing there, with the share of cells, most of all first.

    Args:
        shares: by site and column, the share of cells that are missing.
        settled: columns that are ignored, as settings decide about missing cells.
    """
    found = dict[str, dict[str, float]]()
    for site, own in shares.items():
        most = sorted(own.items(), key=lambda each: -each[1])
        found[site] = {name: share for name, share in most if share >= MOSTLY and name not in settled}
    return {site: own for site, own in found.items() if own}


def mostly_missing_text(found: Mapping[str, Mapping[str, float]], sites: int) -> str:
    """A sentence on what :func:`mostly_missing` found at that many sites."""
    words = []
    for site, own in [*found.items()][:NAMED]:
        columns = [f"{100 * share:.0f} % of '{name}'" for name, share in [*own.items()][:NAMED]]
        more = f" and {len(own) - NAMED} more columns" if len(own) > NAMED else ""
        words.append(f"{site} {', '.join(columns)}{more}")
    if len(found) > NAMED:
        words.append(f"{len(found) - NAMED} more")
    return f"Almost all of a column is missing at {len(found)} of {sites} sites: {'; '.join(words)}."


def remedy(found: Mapping[str, Mapping[str, float]]) -> str:
    """What to do about what :func:`mostly_missing` found, with the column that most sites lack."""
    sites: dict[str, int] = {}
    for own in found.values():
        for name in own:
            sites[name] = sites.get(name, 0) + 1
    return REMEDY.format(name=max(sites, key=lambda name: sites[name]))


def notes_on_missing(data: DomainData, preparation: Preparation | None) -> tuple[str, ...]:
    """A note on the columns that sites hardly have, of rows that are prepared, but for those that settings name."""
    if preparation is None:
        return ()
    names, missing = [column.name for column in data.columns], data.x.isnan().double()
    shares = {
        data.domains[number]: dict(zip(names, missing[data.domain == number].mean(dim=0).tolist(), strict=True))
        for number in torch.unique(data.domain).tolist()
    }
    found = mostly_missing(shares, preparation.settled)
    return (f"{mostly_missing_text(found, len(shares))} {remedy(found)}",) if found else ()
