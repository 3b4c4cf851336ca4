"""What is odd about a data set and how it is divided, each a sentence with numbers, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

from fedshift.clients.domains import DomainData
from fedshift.errors import FedshiftError
from fedshift.reporting.data_report.drift import REST
from fedshift.reporting.data_report.duplicates import Duplicates
from fedshift.reporting.data_report.roles import Roles
from fedshift.reporting.data_report.values import column_word

if TYPE_CHECKING:
    from fedshift.reporting.data_report.report import DataReport

FEW = 20  # samples on which a client trains, or of which an accuracy is made
SHARE = 0.1  # of the median client's samples
IMBALANCE = 10.0  # of the most frequent class for one of the rarest
OTHER_SCALE = 5.0  # times the median site's standard deviation of a column, or as many of them from its mean
LEAST = 10  # samples of a site whose values are compared
NAMED = 5  # things that are named one by one


@dataclass(frozen=True)
class Finding:
    """Something odd, and what to do about it.

    Attributes:
        kind: what it is about, such as "duplicates" or "imbalance".
        text: a sentence with numbers.
        remedy: what to do, a sentence or several.
        sites: the sites or clients that it is about; empty: all, or none.
    """

    kind: str
    text: str
    remedy: str
    sites: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"


def find(report: DataReport, roles: Roles, refused: Sequence[FedshiftError]) -> Iterator[Finding]:
    """Everything odd, what spoils results first.

    Args:
        report: all else that is known.
        roles: how each sample is used.
        refused: why a run of the experiment would not begin.
    """
    for error in refused:
        yield Finding("refused", f"A run would not begin. {error}", "Mend that first.")
    yield from crossing(report.duplicates, report.data, roles)
    yield from _duplicates(report)
    yield from _classes(report)
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


def _duplicates(report: DataReport) -> Iterator[Finding]:
    data = report.data
    for each in report.duplicates:
        rows = each.sets[0]
        if each.where == "labels":
            other = next(row for row in rows if data.y[row] != data.y[rows[0]])
            named = ", ".join(f"{place(data, row)} is '{data.classes[int(data.y[row])]}'" for row in (rows[0], other))
            yield Finding(
                "conflicting labels",
                f"{each.samples} samples are equal bit by bit to one of another class: {named}.",
                "Correct the labels, or leave such samples out; no model can be right on both.",
            )
        if each.where == "sites":
            other = next(row for row in rows if data.domain[row] != data.domain[rows[0]])
            pairs = _listed([f"{a} and {b} share {count}" for a, b, count in each.pairs])
            yield Finding(
                "duplicates",
                f"{each.samples} samples occur, bit by bit, at several sites: {pairs}; {place(data, rows[0])} is as "
                f"{place(data, other)}.",
                "Sites are then not independent, and one that is held out is not unseen: keep each at one site, or "
                "give equal samples one group.",
                tuple(dict.fromkeys(name for a, b, _ in each.pairs for name in (a, b))),
            )


def _classes(report: DataReport) -> Iterator[Finding]:
    trained = report.trained
    untrained = [name for name, count in trained.items() if not count and any(s.classes[name] for s in report.sites)]
    if untrained:
        yield Finding(
            "absent class",
            f"{len(untrained)} of {len(trained)} classes have samples, but nobody trains on one: {_quoted(untrained)}.",
            "No model can learn them: leave them out, or divide the data so that training has some.",
        )
    lacking = {each.name: [name for name, count in each.classes.items() if not count] for each in report.clients}
    lacking = {name: absent for name, absent in lacking.items() if absent}
    if lacking:
        words = [f"{name} lacks {_quoted(absent)}" for name, absent in lacking.items()]
        yield Finding(
            "absent class",
            f"{len(lacking)} of {len(report.clients)} clients train without a sample of some class: "
            f"{_listed(words, '; ')}.",
            "That is normal in a federation, but a local head forgets such classes: look at balanced accuracy beside "
            "accuracy, and compare methods for label shift, such as fedlc.",
            tuple(lacking),
        )
    there = {name: count for name, count in trained.items() if count}
    most, least = max(there, key=there.__getitem__, default=""), min(there, key=there.__getitem__, default="")
    if there and there[most] >= IMBALANCE * there[least]:
        yield Finding(
            "imbalance",
            f"In training the class '{most}' has {there[most]} samples and '{least}' {there[least]}, "
            f"{there[most] / there[least]:.0f} times fewer.",
            "Use class weights or balanced batches, and select by and report a metric that counts classes equally, "
            "such as balanced accuracy or macro F1.",
        )


def _sizes(report: DataReport) -> Iterator[Finding]:
    sizes = {client.name: client.samples for client in report.clients}
    middle = median(sizes.values())
    few = {name: size for name, size in sizes.items() if size < max(FEW, SHARE * middle)}
    if few:
        yield Finding(
            "few samples",
            f"{len(few)} of {len(sizes)} clients train on few samples, {_numbered(few)}, where the median is "
            f"{middle:g}.",
            "Such a client overfits, and weighs as much as any other where models are averaged uniformly: join it "
            "with another, leave it out, or weight clients by their samples.",
            tuple(few),
        )
    for role in ("validation", "test"):
        small = {each.name: each.samples for each in report.scored if each.role == role and each.samples < FEW}
        if small:
            yield Finding(
                "few samples",
                f"{len(small)} {role} environments have few samples, {_numbered(small)}: one sample more or less that "
                f"is right moves an accuracy by {100 / max(1, min(small.values())):.0f} percentage points.",
                f"Give more samples, hold out a larger part (protocol.{role}, where the protocol has it), and use "
                "several seeds.",
                tuple(small),
            )


def _values(report: DataReport) -> Iterator[Finding]:
    if report.kind in ("text", "tokens"):
        return
    values, word = report.values, column_word(report.kind)
    names = {site: each.name for site, each in enumerate(report.sites) if values.samples[site]}
    missing = values.missing.nan_to_num(0.0)
    lacking = sorted((site for site in names if missing[site].any()), key=lambda site: -float(missing[site].max()))
    if lacking:
        words = [
            f"{names[site]} {100 * float(missing[site].max()):.0f} % of {word} "
            f"{report.columns[int(missing[site].argmax())]}"
            for site in lacking
        ]
        yield Finding(
            "missing values",
            f"Numbers are missing at {len(lacking)} of {len(names)} sites, most of all {_listed(words)}.",
            "Say how they are filled in (data.statistics); where a site lacks more, that alone tells the site.",
            tuple(names[site] for site in lacking),
        )
    compared = [site for site in names if values.samples[site] >= LEAST]
    if report.kind != "images" and compared:
        yield from _ranges(report, compared)


def _ranges(report: DataReport, compared: Sequence[int]) -> Iterator[Finding]:
    """Sites of which a column has another scale than at the site in the middle, as with other units."""
    values, word = report.values, column_word(report.kind)
    mean, std = (each[compared].nanmedian(dim=0).values for each in (values.mean, values.std))
    found: dict[str, str] = {}
    for site in compared:
        own = values.std[site]
        scaled = (own > 0) & (std > 0) & ((own >= OTHER_SCALE * std) | (std >= OTHER_SCALE * own))
        apart = (values.mean[site] - mean).abs()  # of categories NaN, which is no reason
        moved = (apart > 0) & (apart >= OTHER_SCALE * torch.maximum(own, std))
        columns = (scaled | moved).nonzero().flatten().tolist()
        if columns:
            first, name = columns[0], report.sites[site].name
            found[name] = (
                f"{name}, {word} {_columns(report, columns)} ({report.columns[first]} is "
                f"{_moments(values.mean[site, first], own[first])}, at the median site "
                f"{_moments(mean[first], std[first])})"
            )
    if found:
        yield Finding(
            "value ranges",
            f"{len(found)} of {len(compared)} sites have values of another range: {_listed([*found.values()], '; ')}.",
            "Look for other units or encodings. If the ranges are right, standardise with each site's own statistics.",
            tuple(found),
        )


def _drift(report: DataReport) -> Iterator[Finding]:
    found = [each for each in report.features or () if each.significant]
    if not found:
        return
    best = max(found, key=lambda each: each.accuracy)
    compared = "sites and the others" if best.other == REST else "pairs of sites"
    names = dict.fromkeys(name for each in found for name in (each.one, each.other) if name != REST)
    yield Finding(
        "feature drift",
        f"Sites differ in what samples of one class look like: {len(found)} of {len(report.features or ())} {compared} "
        f"are told apart by a classifier, {best.one} and {best.other} best, with {100 * best.accuracy:.0f} % of "
        f"{best.samples} held-out samples (guessing: 50 %; p = {p_text(best.p)}, corrected).",
        "Compare methods for feature shift (fedbn, fedsr, ...) with fedavg, and report each site for itself. At "
        "nearly 100 %, look for marks of the site itself in its samples: borders, stamps, units.",
        tuple(names),
    )


# Words --------------------------------------------------------------------------------------------


def p_text(p: float) -> str:
    """A p value for a reader."""
    return f"{p:.2g}" if p >= 1e-10 else "less than 1e-10"


def _moments(mean: torch.Tensor, std: torch.Tensor) -> str:
    return f"{float(mean):.3g} ± {float(std):.3g}"


def _columns(report: DataReport, columns: Sequence[int]) -> str:
    return _listed([report.columns[column] for column in columns])


def _listed(words: Sequence[object], between: str = ", ") -> str:
    more = len(words) - NAMED
    return between.join([*map(str, words[:NAMED]), *([f"{more} more"] if more > 0 else [])])


def _quoted(names: Sequence[str]) -> str:
    return _listed([f"'{name}'" for name in names])


def _numbered(counts: dict[str, int]) -> str:
    """Names with numbers, the smallest first."""
    return _listed([f"{name}: {count}" for name, count in sorted(counts.items(), key=lambda item: item[1])])
