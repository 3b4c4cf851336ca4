"""What is odd about a data set and how it is divided, each a sentence with numbers, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median, median_low
from typing import TYPE_CHECKING

from fedshift.clients.missing import mostly_missing, mostly_missing_text, remedy
from fedshift.clients.oddities import too_large
from fedshift.reporting.data_report.data_tables import WORDS, ColumnValues
from fedshift.reporting.data_report.drift import REST
from fedshift.reporting.data_report.duplicates import Duplicates

if TYPE_CHECKING:
    from fedshift.reporting.data_report.report import DataReport

FEW = 20  # samples on which a client trains, or of which an accuracy is made
SHARE = 0.1  # of the median client's samples
IMBALANCE = 10.0  # of the most frequent class for one of the rarest
OTHER_SCALE = 5.0  # times the median site's standard deviation of a column, or as many of them from its mean
LEAST = 10  # samples of a site whose values are compared
NAMED = 5  # things that are named one by one

REMEDIES = {
    "refused": "Mend that first.",
    "test": "Remove duplicates, or give equal samples one group, which a split keeps whole.",
    "sites": "Keep each at one site, or give equal samples one group: a site that is held out is else not unseen.",
    "labels": "Correct the labels, or leave such samples out; no model can be right on both.",
    "reveals": "Would it be known before the label is? If not, or if it numbers the samples, leave it out: --set "
    "data.exclude={name}",
    "unique": "It reveals nothing about a sample that is not among these, if it is an id: --set data.exclude={name}",
    "batch": "Take a smaller one, unless each step should be on all of a client's samples (train.batch).",
    "untrained": "No model can learn them: leave them out, or divide the data so that training has some.",
    "lacking": "A local head forgets such classes: inspect balanced accuracy, and compare methods such as fedlc.",
    "imbalance": "Use class weights or balanced batches, and select by balanced accuracy or macro F1.",
    "clients": "Such a client overfits: join it with another, leave it out, or weight clients by their samples.",
    "scored": "Give more samples, hold out a larger part, and use several seeds.",
    "missing": "State how they are filled in (data.statistics); where a site lacks more, that alone shows the site.",
    "ranges": "Look for other units or encodings, or standardise with each site's own statistics.",
    "drift": "Compare methods for feature shift (fedbn, fedsr, ...) with fedavg, and report each site for itself. At "
    "nearly 100 %, look for marks of the site itself in its samples: borders, stamps, units.",
}


@dataclass(frozen=True)
class Finding:
    """Something odd, and what to do about it."""

    kind: str  # what it is about, such as "duplicates" or "imbalance"
    text: str  # a sentence with numbers
    remedy: str  # what to do, a sentence or several
    sites: tuple[str, ...] = ()  # the sites or clients that it is about; empty: all, or none

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"


def find(report: DataReport) -> Iterator[Finding]:
    """Everything odd, what spoils results first."""
    for reason in report.refused:
        yield Finding("refused", f"A run would not begin. {reason}", REMEDIES["refused"])
    for each in report.duplicates:
        yield duplicates_finding(each)
    yield from _columns(report)
    yield from _classes(report)
    yield from _sizes(report)
    yield from _mostly_missing(report)
    yield from _missing(report)
    if report.kind != "images":
        yield from _ranges(report)
    yield from _drift(report)


def duplicates_finding(found: Duplicates) -> Finding:
    """Equal samples as a finding."""
    first = found.sets[0]
    if found.where == "labels":
        text = f"{found.samples} samples are equal bit by bit to one of another class: {_listed(first)}."
        return Finding("conflicting labels", text, REMEDIES["labels"])
    if found.where == "sites":
        where = f"at several sites ({_listed(found.sites)})"
        text = f"{found.samples} samples occur, bit by bit, {where}; {_equal(first)}."
        return Finding("duplicates", text, REMEDIES["sites"], found.sites)
    text = (
        f"{found.samples} of {found.of} samples of {found.where} are also in training, bit by bit ({_equal(first)}): "
        "what is scored on them is too good."
    )
    return Finding("duplicates", text, REMEDIES["test"], found.sites)


def _classes(report: DataReport) -> Iterator[Finding]:
    trained = report.trained
    untrained = [name for name, count in trained.items() if not count and any(s.classes[name] for s in report.sites)]
    if untrained:
        what = f"{len(untrained)} of {len(trained)} classes have samples, but no client trains on one"
        yield Finding("absent class", f"{what}: {_quoted(untrained)}.", REMEDIES["untrained"])
    absent = {each.name: [name for name, count in each.classes.items() if not count] for each in report.clients}
    lacking = {name: f"{name} lacks {_quoted(classes)}" for name, classes in absent.items() if classes}
    if lacking:
        what = f"{len(lacking)} of {len(absent)} clients train without a sample of some class"
        yield Finding(
            "absent class", f"{what}: {_listed([*lacking.values()], '; ')}.", REMEDIES["lacking"], (*lacking,)
        )
    there = sorted((count, name) for name, count in trained.items() if count)
    if there and there[-1][0] >= IMBALANCE * there[0][0]:
        (few, rare), (many, common) = there[0], there[-1]
        text = f"In training the class '{common}' has {many} samples and '{rare}' {few}, {many / few:.0f} times fewer."
        yield Finding("imbalance", text, REMEDIES["imbalance"])


def _columns(report: DataReport) -> Iterator[Finding]:
    """Columns that reveal the label, and columns of ids."""
    revealing = sorted((each for each in report.alone if each.reveals), key=lambda each: -(each.auroc or 0))
    if revealing:
        named = _listed([f"'{each.column}' (AUROC {each.auroc:.3f})" for each in revealing])
        what = f"{len(revealing)} of {len(report.alone)} columns separate the classes by themselves"
        text = f"{what}, on training rows: {named}."
        yield Finding("revealing column", text, _excluding("reveals", [each.column for each in revealing]))
    unique = [each.column for each in report.alone if each.unique]
    if unique:
        what = f"{len(unique)} of {len(report.alone)} columns have another value in every training row"
        yield Finding("unique column", f"{what}, as an id has: {_quoted(unique)}.", _excluding("unique", unique))


def _excluding(remedy: str, names: Sequence[str]) -> str:
    return REMEDIES[remedy].format(name=",".join(names[:NAMED]))


def _sizes(report: DataReport) -> Iterator[Finding]:
    sizes = {client.name: client.samples for client in report.clients}
    middle = median(sizes.values())
    few = {name: size for name, size in sizes.items() if size < max(FEW, SHARE * middle)}
    if few:
        what = f"{len(few)} of {len(sizes)} clients train on few samples, {_numbered(few)}"
        yield Finding("few samples", f"{what}, where the median is {middle:g}.", REMEDIES["clients"], (*few,))
    if report.batch and (why := too_large(report.batch, max(sizes.values()))):
        yield Finding("batch", f"{why}.", REMEDIES["batch"])
    for role in ("validation", "test"):
        small = {each.name: each.samples for each in report.scored if each.role == role and each.samples < FEW}
        if small:
            moved = f"moves an accuracy by {100 / max(1, min(small.values())):.0f} percentage points"
            what = f"{len(small)} {role} environments have few samples, {_numbered(small)}"
            text = f"{what}: one sample more or less that is right {moved}."
            yield Finding("few samples", text, REMEDIES["scored"], (*small,))


def _mostly_missing(report: DataReport) -> Iterator[Finding]:
    shares: dict[str, dict[str, float]] = {each.site: {} for each in report.values}
    for each in report.values:
        shares[each.site][each.column] = each.missing
    found = mostly_missing(shares, report.settled) if report.kind == "rows" else {}
    if found:
        yield Finding("mostly missing", mostly_missing_text(found, len(shares)), remedy(found), (*found,))


def _missing(report: DataReport) -> Iterator[Finding]:
    most: dict[str, ColumnValues] = {}  # of each site the column that lacks most
    for each in sorted(report.values, key=lambda each: -each.missing):
        if each.missing:
            most.setdefault(each.site, each)
    if most:
        looked, word = {each.site for each in report.values}, WORDS.get(report.kind, "input")
        words = [f"{each.site} {100 * each.missing:.0f} % of {word} {each.column}" for each in most.values()]
        text = f"Numbers are missing at {len(most)} of {len(looked)} sites, most of all {_listed(words)}."
        yield Finding("missing values", text, REMEDIES["missing"], (*most,))


def _ranges(report: DataReport) -> Iterator[Finding]:
    """Sites at which a column has another scale than at the site in the middle, as with other units."""
    measured = [each for each in report.values if each.samples >= LEAST and None not in (each.mean, each.std)]
    moments = {(each.column, each.site): (each.mean or 0.0, each.std or 0.0) for each in measured}
    found: dict[str, list[str]] = {}
    for column, sites in groupby(moments, key=lambda key: key[0]):
        own = {site: moments[column, site] for _, site in sites}
        middle, spread = (median_low(each) for each in zip(*own.values(), strict=True))
        for site, (mean, std) in own.items():
            scaled = std > 0 < spread and (std >= OTHER_SCALE * spread or spread >= OTHER_SCALE * std)
            moved = mean != middle and abs(mean - middle) >= OTHER_SCALE * max(std, spread)
            if scaled or moved:
                word = f"{column} ({mean:.3g} ± {std:.3g}, at the median site {middle:.3g} ± {spread:.3g})"
                found.setdefault(site, []).append(word)
    if found:
        words = [f"{site}, {WORDS.get(report.kind, 'input')} {_listed(own)}" for site, own in found.items()]
        compared = len({site for _, site in moments})
        text = f"{len(found)} of {compared} sites have values of another range: {_listed(words, '; ')}."
        yield Finding("value ranges", text, REMEDIES["ranges"], (*found,))


def _drift(report: DataReport) -> Iterator[Finding]:
    found = [each for each in report.features or () if each.significant]
    if not found:
        return
    best = max(found, key=lambda each: each.accuracy)
    compared = "sites and the others" if best.other == REST else "pairs of sites"
    names = dict.fromkeys(name for each in found for name in (each.one, each.other) if name != REST)
    p = f"{best.p:.2g}" if best.p >= 1e-10 else "less than 1e-10"
    yield Finding(
        "feature drift",
        f"Sites differ in what samples of one class look like: {len(found)} of {len(report.features or ())} {compared} "
        f"are distinguished by a classifier, {best.one} and {best.other} best, with {100 * best.accuracy:.0f} % of "
        f"{best.samples} held-out samples (guessing: 50 %; p = {p}, corrected).",
        REMEDIES["drift"],
        tuple(names),
    )


# Words --------------------------------------------------------------------------------------------


def _equal(names: Sequence[str]) -> str:
    return f"{names[0]} is as {names[1]}, counted from 0"


def _listed(words: Sequence[str], between: str = ", ") -> str:
    more = len(words) - NAMED
    return between.join([*words[:NAMED], *([f"{more} more"] if more > 0 else [])])


def _quoted(names: Sequence[str]) -> str:
    return _listed([f"'{name}'" for name in names])


def _numbered(counts: Mapping[str, int]) -> str:
    return _listed([f"{name}: {count}" for name, count in sorted(counts.items(), key=lambda item: item[1])])
