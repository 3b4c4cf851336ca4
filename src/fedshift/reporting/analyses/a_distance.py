"""How well a linear classifier separates the representations of two domains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import mean
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from matplotlib.figure import Figure
from torch import Tensor

from fedshift.errors import FedshiftError, needs
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.analyses.represented import by_domain
from fedshift.reporting.charts import COLOURS, INK, MARKERS, Chart, style
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting

OTHERS = "the others"
SIZE = (4.8, 4.4)  # inches
MOST_PAIRS = 15  # that a table lists


def a_distance(a: Tensor, b: Tensor) -> float:
    """The proxy A-distance 2 (1 - 2 err) of two samples (n, d) and (m, d), in 0..2.

    err is the error of a linear SVM on standardised features that was fitted on the even rows and tested on the odd
    ones, and the other way around, of as many rows of each; an error above 1/2 counts as 1/2.
    """
    with needs("analyse", "The proxy A-distance"):
        from sklearn.svm import LinearSVC

    few = min(len(a), len(b))
    if few < 2:
        raise FedshiftError("The A-distance needs two samples of each domain or more.")
    x = _mixed([a, b])  # of each pair of rows one is a's
    domain = torch.tensor([0, 1]).repeat(few)
    half = torch.arange(few).repeat_interleave(2) % 2
    wrong = 0
    for fitted in (0, 1):
        train, test = half == fitted, half != fitted
        center, spread = x[train].mean(dim=0), x[train].std(dim=0)
        scaled = (x - center) / torch.where(spread > 0, spread, 1.0)
        svm = LinearSVC(dual=False, random_state=0).fit(scaled[train].numpy(), domain[train].numpy())
        wrong += int((svm.predict(scaled[test].numpy()) != domain[test].numpy()).sum())
    return 2 * max(0.0, 1 - 2 * wrong / len(x))


class ADistance(Analysis):
    """Proxy A-distance between domains, 2 (1 - 2 err), 0 to 2: how well a linear SVM separates their z.

    0: not at all; 2: without an error. It is measured for every two domains, and for each domain against a mixture of
    the others, with cross-fitting in two halves on as many samples of each.
    """

    title: ClassVar[str] = "Proxy A-distance between domains"
    source: ClassVar[str] = "FedCiR, Fig. 12; Ben-David et al., Analysis of representations for domain adaptation, 2007"
    version: ClassVar[int] = 2

    samples: Annotated[int, Ge(4)] = setting(500, help="Samples of a domain, at most")
    against: str = setting("fedavg", help="The row on the horizontal axis; the first row if there is no such one")

    def measure(self, trained: TrainedSimulation) -> Measured:
        domains = {domain.name: domain.z for domain in by_domain(trained, self.samples)}
        if len(domains) < 2:
            raise FedshiftError(f"'{trained.run.path}' scores samples of one domain; the A-distance needs two.")
        pairs = [(a, b, domains[b]) for a, b in combinations(domains, 2)]
        if len(domains) > 2:
            pairs += [(name, OTHERS, _mixed([z for other, z in domains.items() if other != name])) for name in domains]
        return Measured(
            rows=[{"domain": a, "other": b, "distance": a_distance(domains[a], z)} for a, b, z in pairs],
        )

    def tables(self, rows: Rows) -> list[Table]:
        """The mean over pairs of domains, mean and standard deviation over runs; then each pair."""
        base = self._base(rows)
        means = []
        for label, its in rows.items():
            found = [MeanStd.of([mean(_pairs(one).values()) for one in its])]
            found += [MeanStd.of([mean(_pairs(one, others=True).values()) for one in its if _pairs(one, others=True)])]
            below = "" if label == base else _share_below(_averaged(rows[base]), _averaged(its))
            means.append([label, *(each.text(decimals=2) if each else "" for each in found), below])
        columns = ["method", "every two domains", "a domain and the others", f"pairs below {base}"]
        tables = [Table("Proxy A-distance, 0 (the same) to 2 (distinguished without an error)", columns, means)]
        pairs = [*dict.fromkeys(pair for its in rows.values() for pair in _averaged(its))]
        if len(pairs) <= MOST_PAIRS:
            by_label = {label: _averaged(its) for label, its in rows.items()}
            cells = [
                [" and ".join(pair), *(f"{its[pair]:.2f}" if pair in its else "" for its in by_label.values())]
                for pair in pairs
            ]
            tables.append(Table("Proxy A-distance by pair, mean over runs", ["domains", *by_label], cells))
        return tables

    def charts(self, rows: Rows) -> list[Chart]:
        """Each pair of domains, under one row against under another; below the diagonal they are more similar."""
        base = self._base(rows)
        if len(rows) < 2:
            return []
        first = _averaged(rows[base])
        data = [
            {"method": label, "domain": a, "other": b, base: first[a, b], "distance": value}
            for label, its in rows.items()
            if label != base
            for (a, b), value in _averaged(its).items()
            if (a, b) in first
        ]
        with style():
            figure = Figure(figsize=SIZE, layout="constrained")
            axis = figure.subplots()
            axis.plot([0, 2], [0, 2], ":", color=INK, linewidth=0.8)
            others = [label for label in rows if label != base]
            for number, label in enumerate(others):
                averaged = _averaged(rows[label])
                common = [pair for pair in averaged if pair in first]
                axis.plot(
                    [first[pair] for pair in common],
                    [averaged[pair] for pair in common],
                    MARKERS[number % len(MARKERS)],
                    color=COLOURS[number % len(COLOURS)],
                    label=label,
                    markersize=5,
                )
            on_y = others[0] if len(others) == 1 else "the other method"
            axis.set(xlim=(-0.05, 2.05), ylim=(-0.05, 2.05), xlabel=f"under {base}", ylabel=f"under {on_y}")
            axis.set_aspect("equal")
            if len(others) > 1:
                axis.legend(frameon=False)
        return [
            Chart(
                "a-distance-pairs",
                "Proxy A-distance of every two domains",
                f"A mark for each pair, mean over runs. Below the diagonal they are more similar than under {base}.",
                f"Distances under {', '.join(others)} against those under {base}, with the diagonal.",
                figure,
                data,
            )
        ]

    def _base(self, rows: Rows) -> str:
        return self.against if self.against in rows else next(iter(rows))


def _mixed(parts: Sequence[Tensor]) -> Tensor:
    few = min(map(len, parts))
    spaced = [part[torch.linspace(0, len(part) - 1, few).round().long()] for part in parts]
    return torch.stack(spaced, dim=1).flatten(0, 1)


def _pairs(one: MeasuredRun, *, others: bool = False) -> dict[tuple[str, str], float]:
    rows = [row for row in one.measured.rows if (row["other"] == OTHERS) == others]
    return {(str(row["domain"]), str(row["other"])): float(row["distance"] or 0.0) for row in rows}


def _averaged(runs: Sequence[MeasuredRun]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for one in runs:
        for pair, value in _pairs(one).items():
            found.setdefault(pair, []).append(value)
    return {pair: mean(values) for pair, values in found.items()}


def _share_below(base: dict[tuple[str, str], float], its: dict[tuple[str, str], float]) -> str:
    common = [pair for pair in its if pair in base]
    return f"{sum(its[pair] < base[pair] for pair in common)} of {len(common)}"
