"""What is odd about a data set and how it is divided, each a sentence with numbers, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import torch

from fedshift.errors import FedshiftError
from fedshift.federation.domains import DomainData
from fedshift.reporting.data_report.drift import Difference, Drift
from fedshift.reporting.data_report.duplicates import Duplicates
from fedshift.reporting.data_report.inspection import Finding, Inspection
from fedshift.reporting.data_report.roles import Roles
from fedshift.reporting.data_report.values import column_word

FEW = 20  # samples on which a client trains, or of which an accuracy is made
SHARE = 0.1  # of the median client's samples
IMBALANCE = 10.0  # of the most frequent class for one of the rarest
IDS = 20  # classes from which on labels may be identifiers, where they have at most so many samples in the middle:
PER_ID = 2
OTHER_LEVEL = 2.0  # standard deviations of a sample's mean, from a site to the median site
OTHER_SCALE = 5.0  # times the median site's standard deviation of a column, or as many of them from its mean
LEAST = 10  # samples of a site whose values are compared
NAMED = 5  # things that are named one by one


def find(report: Inspection, roles: Roles, refused: Sequence[FedshiftError]) -> Iterator[Finding]:
    """Everything odd, what spoils results first.

    Args:
        report: all else that is known.
        roles: what each sample is used for.
        refused: why a run of the experiment would not begin.
    """
    for error in refused:
        yield Finding("refused", f"A run would not begin. {error}", "Mend that first.")
    yield from _duplicates(report, roles)
    yield from _labels(report)
    yield from _sizes(report)
    yield from _values(report)
    yield from _drift(report)


def place(data: DomainData, row: int) -> str:
    """A sample by its number from 0, with the file or row that it was read from where the data set knows it."""
    return f"sample {row} ({data.where[row]})" if data.where else f"sample {row}"


def crossing(duplicates: Sequence[Duplicates], data: DomainData, roles: Roles) -> Iterator[Finding]:
    """Samples that are scored and also trained on."""
    for each in duplicates:
        if each.where in roles.masks:
            scored, trained = each.sets[0]
            yield Finding(
                "duplicates",
                f"{each.samples} of {int(roles.masks[each.where].sum())} samples of {each.where} are also in "
                f"training, bit by bit ({place(data, scored)} is as {place(data, trained)}, counted from 0): what is "
                "scored on them is too good.",
                "Remove duplicates, or give equal samples one group, which a split keeps whole, unless they are equal "
                "by chance.",
                tuple(dict.fromkeys(data.domains[number] for number in data.domain[[row for row, _ in each.sets]])),
            )


# Duplicates ---------------------------------------------------------------------------------------


def _duplicates(report: Inspection, roles: Roles) -> Iterator[Finding]:
    data = report.data
    yield from crossing(report.duplicates, data, roles)
    for each in report.duplicates:
        some = each.sets[0]
        if each.where == "labels":
            one = some[0]
            other = next(row for row in some if data.y[row] != data.y[one])
            named = ", ".join(f"{place(data, row)} is '{data.classes[int(data.y[row])]}'" for row in (one, other))
            yield Finding(
                "conflicting labels",
                f"{each.samples} samples are equal bit by bit to one of another class: {named}.",
                "Correct the labels, or leave such samples out; no model can be right on both.",
            )
        if each.where == "sites":
            one = some[0]
            other = next(row for row in some if data.domain[row] != data.domain[one])
            pairs = _listed([f"{a} and {b} share {count}" for a, b, count in each.pairs])
            yield Finding(
                "duplicates",
                f"{each.samples} samples occur, bit by bit, at several sites: {pairs}; {place(data, one)} is as "
                f"{place(data, other)}.",
                "Sites are then not independent, and one that is held out is not unseen: keep each at one site, or "
                "give equal samples one group.",
                tuple(dict.fromkeys(name for a, b, _ in each.pairs for name in (a, b))),
            )
        if each.where == "class":
            yield Finding(
                "duplicates",
                f"{each.samples} training samples repeat, bit by bit, one of the same site and class: "
                f"{place(data, some[0])} and {place(data, some[1])}.",
                "They count twice: remove them unless they are meant.",
                tuple(dict.fromkeys(data.domains[int(data.domain[rows[0]])] for rows in each.sets)),
            )


# Labels -------------------------------------------------------------------------------------------


def _labels(report: Inspection) -> Iterator[Finding]:
    every = torch.tensor([site.classes for site in report.sites]).sum(dim=0)
    occurring = every[every > 0]
    if len(occurring) >= IDS and float(occurring.median()) <= PER_ID:
        yield Finding(
            "labels like identifiers",
            f"There are {len(occurring)} classes for {int(every.sum())} samples, and half of the classes have "
            f"{int(occurring.median())} or fewer: labels look like identifiers or measured values.",
            "Name the column that holds the class, or put values into a few classes.",
        )
        return
    trained = torch.tensor(report.trained)
    yield from _untrained(report, every, trained)
    lacking = {
        client.name: [name for name, count in zip(report.classes, client.classes, strict=True) if not count]
        for client in report.clients
    }
    lacking = {name: classes for name, classes in lacking.items() if classes}
    if lacking:
        words = [f"{name} lacks {_quoted(classes)}" for name, classes in lacking.items()]
        yield Finding(
            "absent class",
            f"{len(lacking)} of {len(report.clients)} clients train without a sample of some class: "
            f"{_listed(words, '; ')}.",
            "That is normal in a federation, but a local head forgets such classes: look at balanced accuracy beside "
            "accuracy, and compare methods for label shift, such as fedlc.",
            tuple(lacking),
        )
    there = trained[trained > 0]
    if len(there) > 1 and int(there.max()) >= IMBALANCE * int(there.min()):
        most, least = int(trained.argmax()), int(trained.masked_fill(trained == 0, trained.max() + 1).argmin())
        yield Finding(
            "imbalance",
            f"In training the class '{report.classes[most]}' has {int(trained[most])} samples and "
            f"'{report.classes[least]}' {int(trained[least])}, {int(trained[most]) / int(trained[least]):.0f} times "
            "fewer.",
            "Use class weights or balanced batches, and select by and report a metric that counts classes equally, "
            "such as balanced accuracy or macro F1.",
        )


def _untrained(report: Inspection, every: torch.Tensor, trained: torch.Tensor) -> Iterator[Finding]:
    names = [report.classes[number] for number in ((every > 0) & (trained == 0)).nonzero().flatten().tolist()]
    if names:
        yield Finding(
            "absent class",
            f"{len(names)} of {len(report.classes)} classes have samples, but nobody trains on one: {_quoted(names)}.",
            "No model can learn them: leave them out, or divide the data so that training has some.",
        )


# Sizes --------------------------------------------------------------------------------------------


def _sizes(report: Inspection) -> Iterator[Finding]:
    sizes = {client.name: client.samples for client in report.clients}
    least = max(FEW, SHARE * median(sizes.values()))
    few = {name: size for name, size in sizes.items() if size < least}
    if few:
        yield Finding(
            "few samples",
            f"{len(few)} of {len(sizes)} clients train on few samples, {_numbered(few)}, where the median is "
            f"{median(sizes.values()):g}.",
            "Such a client overfits, and weighs as much as any other where models are averaged uniformly: join it "
            "with another, leave it out, or weight clients by their samples.",
            tuple(few),
        )
    below = {name: size for name, size in sizes.items() if size < report.batch}
    if below:
        yield Finding(
            "batch",
            f"A batch of {report.batch} is larger than what {len(below)} of {len(sizes)} clients train on "
            f"({_numbered(below)}): each of their steps takes all they have.",
            f"Lower train.batch to {max(1, min(below.values()))} or less, unless that is meant.",
            tuple(below),
        )
    for role, setting in (("validation", "protocol.validation"), ("test", "protocol.test")):
        small = {each.name: each.samples for each in report.scored if each.role == role and each.samples < FEW}
        if small:
            fewest = max(1, min(small.values()))
            yield Finding(
                f"small {role}",
                f"{len(small)} {role} environments have few samples, {_numbered(small)}: one sample more or less that "
                f"is right moves an accuracy by {100 / fewest:.0f} percentage points.",
                f"Give more samples, hold out a larger part ({setting}, where the protocol has it), and use several "
                "seeds.",
                tuple(small),
            )


# Values -------------------------------------------------------------------------------------------


def _values(report: Inspection) -> Iterator[Finding]:
    yield from _constant(report)
    if report.kind == "images":
        yield from _brightness(report)
    if report.kind in ("rows", "signals", "arrays"):
        yield from _columns(report)
        yield from _ranges(report)


def _constant(report: Inspection) -> Iterator[Finding]:
    if report.kind in ("rows", "text", "tokens"):
        return
    found = {site.name: rows for site, rows in zip(report.sites, report.values.constant, strict=True) if len(rows)}
    if found:
        first = next(iter(found.values()))[0]
        yield Finding(
            "constant samples",
            f"{sum(map(len, found.values()))} {report.kind} show nothing, as all their numbers are the same: "
            f"{_numbered({name: len(rows) for name, rows in found.items()})}; {place(report.data, first)}.",
            "Look at how they were made or read, and leave them out.",
            tuple(found),
        )


def _brightness(report: Inspection) -> Iterator[Finding]:
    """Sites whose images are brighter or darker than those of the site in the middle."""
    values = report.values
    enough = (values.samples >= LEAST).nonzero().flatten()
    level, spread = values.level[enough].nanmedian(), values.spread[enough].nanmedian()
    apart = (values.level - level).abs()
    other = (apart > 0) & (apart >= OTHER_LEVEL * torch.maximum(values.spread, spread))
    found = {report.sites[site].name: float(values.level[site]) for site in enough.tolist() if other[site]}
    if found:
        yield Finding(
            "brightness",
            f"Images of {len(found)} of {len(enough)} sites have another brightness, as the mean of a pixel: "
            f"{_listed([f'{name}: {own:.3g}' for name, own in found.items()])}, where the median site has "
            f"{float(level):.3g}.",
            "If devices differ like that, it is the shift to study: normalise images, or keep batch-norm statistics "
            "at the sites (fedbn, or method.bn = 'local'). If not, look at how that site's images were written.",
            tuple(found),
        )


def _columns(report: Inspection) -> Iterator[Finding]:
    """Columns that never change, and those that are missing."""
    values, word = report.values, column_word(report.kind)
    seen = values.samples > 0
    constant = values.unchanging(seen).nonzero().flatten().tolist()
    if constant:
        yield Finding(
            "constant columns",
            f"{len(constant)} of {values.mean.shape[1]} {word}s are the same in all samples: "
            f"{_columns_of(report, constant)}.",
            "They tell nothing: leave them out.",
        )
    at_site: dict[str, list[int]] = {}
    for site in (seen & (values.samples >= LEAST)).nonzero().flatten().tolist():
        own = values.unchanging(torch.tensor([site])).nonzero().flatten().tolist()
        if columns := [column for column in own if column not in constant]:
            at_site[report.sites[site].name] = columns
    if at_site:
        words = [f"{name}: {word} {_columns_of(report, columns)}" for name, columns in at_site.items()]
        yield Finding(
            "constant columns",
            f"{len(at_site)} sites have {word}s that never change, or are missing, there alone: "
            f"{_listed(words, '; ')}.",
            "A site's own statistics cannot scale or fill in such columns: use those of all sites, or leave the "
            "columns out.",
            tuple(at_site),
        )
    missing = values.missing.nan_to_num(0.0)
    most, which = missing.max(dim=1)
    lacking = (most > 0).nonzero().flatten().tolist()
    if lacking:
        words = [
            f"{report.sites[site].name} {100 * float(most[site]):.0f} % of {word} {report.columns[int(which[site])]}"
            for site in sorted(lacking, key=lambda site: -float(most[site]))
        ]
        yield Finding(
            "missing values",
            f"Numbers are missing at {len(lacking)} of {int(seen.sum())} sites, most of all {_listed(words)}.",
            f"{_filling(report)}; where a site lacks more than others, that it is missing tells the site.",
            tuple(report.sites[site].name for site in lacking),
        )


def _filling(report: Inspection) -> str:
    """What stands for missing cells, or that somebody should say so."""
    prepared = report.inputs.preparation
    if prepared is None:
        return "Say how they are filled in"
    whose = {"site": "the site's own", "pooled": "all sites'"}[prepared.statistics]
    return f"In training the {prepared.impute} of {whose} rows stands for them, or the most frequent category"


def _ranges(report: Inspection) -> Iterator[Finding]:
    """Sites of which a column has another scale than at the site in the middle, as with other units."""
    values, word = report.values, column_word(report.kind)
    enough = (values.samples >= LEAST).nonzero().flatten()
    if not len(enough):
        return
    mean, std = (each[enough].nanmedian(dim=0).values for each in (values.mean, values.std))
    found: dict[str, str] = {}
    for site in enough.tolist():
        own = values.std[site]
        scaled = (own > 0) & (std > 0) & ((own >= OTHER_SCALE * std) | (std >= OTHER_SCALE * own))
        apart = (values.mean[site] - mean).abs()  # of categories NaN, which is no reason
        moved = (apart > 0) & (apart >= OTHER_SCALE * torch.maximum(own, std))
        columns = (scaled | moved).nonzero().flatten().tolist()
        if columns:
            first = columns[0]
            found[report.sites[site].name] = (
                f"{word} {_columns_of(report, columns)} ({report.columns[first]} is "
                f"{_moments(values.mean[site, first], own[first])}, at the median site "
                f"{_moments(mean[first], std[first])})"
            )
    if found:
        yield Finding(
            "value ranges",
            f"{len(found)} of {len(enough)} sites have values of another range: "
            f"{_listed([f'{name}, {text}' for name, text in found.items()], '; ')}.",
            "Look for other units or encodings. If the ranges are right, standardise with each site's own statistics.",
            tuple(found),
        )


def _moments(mean: torch.Tensor, std: torch.Tensor) -> str:
    return f"{float(mean):.3g} ± {float(std):.3g}"


# Drift --------------------------------------------------------------------------------------------


def _drift(report: Inspection) -> Iterator[Finding]:
    if report.features is not None and (most := _most(report.features, "sites")):
        count, of, what, top = most
        yield Finding(
            "feature drift",
            f"Sites differ in what samples of one class look like: {count} of {of} {what} are told apart by a "
            f"classifier, {_named(top)} best, with {100 * top.value:.0f} % of {top.samples} held-out samples "
            f"(guessing: 50 %; p = {p_text(top.adjusted)}, corrected).",
            "Compare methods for feature shift (fedbn, fedsr, ...) with fedavg, and report each site for itself. At "
            "nearly 100 %, look for marks of the site itself in its samples: borders, stamps, units.",
            _sites_of(report.features),
        )
    for drift, who in ((report.labels, "sites"), (report.client_labels, "clients")):
        most = None if drift is None else _most(drift, who)
        if drift is None or most is None:
            continue
        count, of, what, top = most
        yield Finding(
            "label drift",
            f"{who.capitalize()} differ in their classes: {count} of {of} {what} do, {_named(top)} most, by a total "
            f"variation distance of {top.value:.2f} (0: equal, 1: no class in common; p = {p_text(top.adjusted)}, "
            "corrected).",
            "Report metrics that count classes equally, and compare methods for label shift, such as fedlc.",
            _sites_of(drift),
        )


def _most(drift: Drift, who: str) -> tuple[int, int, str, Difference] | None:
    """How many comparisons are significant, of how many, of what, and the clearest."""
    compared, what = (drift.pairs, f"pairs of {who}") if drift.pairs else (drift.rest, f"{who} and the others")
    found = [each for each in compared if each.significant]
    return (len(found), len(compared), what, max(found, key=lambda each: each.value)) if found else None


def _sites_of(drift: Drift) -> tuple[str, ...]:
    found = [each for each in drift.pairs if each.significant]
    names = [name for each in found for name in (each.one, each.other)]
    return tuple(dict.fromkeys([*names, *(each.one for each in drift.rest if each.significant)]))


def _named(found: Difference) -> str:
    return f"{found.one} and {found.other}"


def p_text(p: float) -> str:
    """A p value for a reader."""
    return f"{p:.2g}" if p >= 1e-10 else "less than 1e-10"


def _columns_of(report: Inspection, columns: Sequence[int]) -> str:
    return _listed([report.columns[column] for column in columns])


# Words --------------------------------------------------------------------------------------------


def _listed(words: Sequence[object], between: str = ", ") -> str:
    more = len(words) - NAMED
    return between.join([*map(str, words[:NAMED]), *([f"{more} more"] if more > 0 else [])])


def _quoted(names: Sequence[str]) -> str:
    return _listed([f"'{name}'" for name in names])


def _numbered(counts: dict[str, int]) -> str:
    """Names with numbers, the smallest first."""
    return _listed([f"{name}: {count}" for name, count in sorted(counts.items(), key=lambda item: item[1])])
