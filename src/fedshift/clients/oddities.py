"""A quick check of loaded data for what would spoil a run's results most.

``fedshift data`` checks more, and recommends remedies. Data that are only small or uneven stay below the limits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

import torch
from torch import Tensor

from fedshift.clients.columns import score_columns
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.preparation import Column
from fedshift.streams import Streams

Notify = Callable[[str, int, int], None]
PIECE = 1 << 22  # numbers read together, so that inputs that are mapped from a file need no memory
RARE = 5  # training samples of a class, below which it cannot be learned
SHARE = 0.1  # minimum part of the classes, or of the sites, for a problem
EQUAL = 0.01  # minimum part of all samples that equal a sample of another site
HUGE = 10  # a batch of more than this many times the largest client's samples is too large
ROWS, COLUMNS = 1000, 100  # maximum columns of a table to check
CLIENTS = 1000  # maximum clients whose classes are counted
COMPARED, BYTES = 20_000, 2**26  # maximum samples that are compared with each other, and their bytes


def silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


def most_serious(data: DomainData, federated: FederatedData, batch: int, rows: bool) -> str:
    """The most serious problem, a sentence with the number of others; empty if there is no problem.

    ``rows``: whether inputs (n, columns) are the columns of a table, not features from a network.
    """
    found = [*(_revealing(federated) if rows else ()), *_shared(data)]
    if 0 < len(federated.clients) <= CLIENTS:
        found += [*_rare(federated), *_one_class(federated)]
    found += [*_batch(federated, batch)]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    statement = "`fedshift data` with the same options (fedshift.inspect_data) shows more"
    return f"Data: {found[0]}{more}; {statement}." if found else ""


def too_large(batch: int, most: int) -> str:
    """Why a batch is too large for the largest client, of ``most`` samples; empty if it is not."""
    if batch < HUGE * most:
        return ""
    return f"train.batch = {batch:,}, but no client has more than {most:,} training samples: each step takes all"


def _revealing(federated: FederatedData) -> Iterator[str]:
    """Columns that separate the classes alone, on a sample of each client's training rows."""
    columns = _columns(federated)
    each = max(1, ROWS // max(1, len(federated.clients)))
    draw = Streams(0).generator("oddities")
    if not 0 < len(columns) <= COLUMNS:
        return
    parts = [client.train for client in islice(federated.clients, ROWS)]
    parts = [part.subset(torch.randperm(len(part), generator=draw)[:each]) for part in parts if len(part)]
    if not parts:
        return
    x, y, group = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "group"))
    found = [one for one in score_columns(x, y, group, columns, draw) if one.reveals]
    if found:
        best = max(found, key=lambda one: one.auroc or 0)
        more = f", as {len(found) - 1} more do" if len(found) > 1 else ""
        yield f"the column '{best.column}' alone separates the classes (AUROC {best.auroc:.3f}){more}"


def _columns(federated: FederatedData) -> Sequence[Column]:
    """The columns of inputs; none unless data are rows of numbers."""
    prepared = federated.inputs.preparation
    if prepared is not None:
        return prepared.columns
    if len(federated.shape) != 1 or not federated.type.startswith("float"):
        return ()
    return tuple(map(Column, federated.columns or map(str, range(federated.shape[0]))))


def _shared(data: DomainData) -> Iterator[str]:
    """Samples that occur at several sites, if they are more than chance makes equal within a site."""
    if len(data.domains) < 2:
        return
    most = min(COMPARED, max(1, BYTES // data.x[0].nbytes))
    rows = Streams(0).permutation(len(data.y), "samples of several sites")[:most].sort().values
    content, domain = contents(data.x[rows]), data.domain[rows]
    same = torch.bincount(content)[content]
    _, place, count = torch.unique(content * len(data.domains) + domain, return_inverse=True, return_counts=True)
    at_home = count[place]
    across, within = int((same > at_home).sum()), int((at_home > 1).sum())
    if across >= max(2, EQUAL * len(rows)) and across > len(data.domains) * within:
        drawn = " drawn" if len(rows) < len(data.y) else ""
        yield f"{across:,} of {len(rows):,} samples{drawn} are, bit by bit, at another site as well"


def _rare(federated: FederatedData) -> Iterator[str]:
    """Classes with too few training samples, though samples of them exist or are scored."""
    trained = [sum(counts) for counts in zip(*federated.trained_classes().values(), strict=True)]
    scored = [0] * len(federated.classes)
    for environments in federated.scored_classes().values():
        for counts in environments.values():
            scored = [have + count for have, count in zip(scored, counts, strict=True)]
    classes = zip(federated.classes, trained, scored, strict=True)
    rare = sorted((count, name) for name, count, tested in classes if count < RARE and count + tested)
    if rare and len(rare) >= SHARE * len(federated.classes):
        (count, name), more = rare[0], f", and {len(rare) - 1} more classes have few" if len(rare) > 1 else ""
        yield f"the class '{name}' has {count} of {sum(trained):,} training samples{more}"


def _one_class(federated: FederatedData) -> Iterator[str]:
    """Sites that train on samples of one class only."""
    sites: dict[str, set[int]] = {}
    for client, counts in zip(federated.clients, federated.trained_classes().values(), strict=True):
        sites.setdefault(client.domain, set()).update(number for number, count in enumerate(counts) if count)
    alone = {site: min(classes) for site, classes in sites.items() if len(classes) == 1}
    if alone and len(alone) >= SHARE * len(sites):
        site, label = next(iter(alone.items()))
        yield f"{len(alone)} of {len(sites)} sites train on a single class ({site}: '{federated.classes[label]}')"


def _batch(federated: FederatedData, batch: int) -> Iterator[str]:
    if reason := too_large(batch, max(federated.trained_sizes, default=0)):
        yield reason


def contents(x: Tensor, notify: Notify = silent) -> Tensor:
    """A hash of each sample's bytes, (N,), int64."""
    step = max(1, PIECE // x[0].numel())
    number: dict[bytes, int] = {}
    found: list[int] = []
    for start in range(0, len(x), step):
        notify("Comparing samples", start, len(x))
        piece = x[start : start + step].contiguous().flatten(1).numpy()
        found += [number.setdefault(blake2b(row, digest_size=16).digest(), len(number)) for row in piece]
    notify("Comparing samples", len(x), len(x))
    return torch.tensor(found)
