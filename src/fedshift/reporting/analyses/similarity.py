"""How similar a method finds clients before it trains, within a domain and between domains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import mean
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from fedshift.heat_maps import by_domain, heat_maps
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.charts import Chart, style
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting
from fedshift.written import file_name

MOST_DOMAINS = 12  # that a table lists
CLEAR, APART = 0.75, 0.01  # the AUC and the difference below which a note warns

Pairs = Sequence[dict[str, Any]]


def separation(within: Sequence[float], between: Sequence[float]) -> float:
    """The part of all pairs, one of each list, of which the first is larger, 0..1; a tie counts half.

    It is the area under the ROC curve of separating the lists: 1 without an error, 1/2 by chance.
    """
    less = torch.tensor(within, dtype=torch.float64).unsqueeze(1) - torch.tensor(between, dtype=torch.float64)
    return float((less > 0).double().mean() + (less == 0).double().mean() / 2)


class Similarity(Analysis):
    """Cosine similarity of the vectors by which a method describes clients before it trains, -1 to 1.

    Pairs of clients of a domain are compared with pairs of two domains: the difference of the means, and the AUC, the
    part of all pairs of pairs of which those of a domain are more similar (1: distinguished without an error, 0.5:
    not).
    """

    title: ClassVar[str] = "Similarity of clients before training"
    source: ClassVar[str] = "Guo et al., Client2Vec, 2024, Fig. 2, 3, 8 and 9"

    clients: Annotated[int, Ge(2)] = setting(100, help="Clients, at most, evenly spaced")

    def measure(self, trained: TrainedSimulation) -> Measured:
        cosines, clients = trained.prepared.cosines, trained.simulation.federated.clients
        chosen = torch.linspace(0, len(clients) - 1, min(self.clients, len(clients))).round().long().tolist()
        rows = [
            {
                "compared": name,
                "client": clients[a].name,
                "domain": clients[a].domain,
                "other": clients[b].name,
                "other_domain": clients[b].domain,
                "cosine": float(matrix[a, b]),
            }
            for name, matrix in cosines.items()
            for a, b in combinations(chosen, 2)
        ]
        return Measured(rows=rows)

    def tables(self, rows: Rows) -> list[Table]:
        """Of each part of the vectors the means and what separates domains; and the means between domains."""
        columns = ["method", "compared", "within a domain", "between domains", "difference", "AUC"]
        cells = [
            [label, name, *(found.text(decimals=3) if found else "" for found in _figures(its, name))]
            for label, its in rows.items()
            for name in _compared(its)
        ]
        tables = [Table("Cosine similarity of every two clients", columns, cells)]
        for label, its in rows.items():
            *_, last = _compared(its)
            matrix, domains = _matrix(_pairs(its[0], last))
            names = sorted(set(domains))
            if 1 < len(names) <= MOST_DOMAINS:
                means = by_domain(matrix, domains).tolist()
                lines = [[name, *(f"{value:.3f}" for value in line)] for name, line in zip(names, means, strict=True)]
                tables.append(Table(f"Mean of the {last} by domain: {label}", ["domain", *names], lines))
        return tables

    def charts(self, rows: Rows) -> list[Chart]:
        """For each row, its first seed: clients by clients, and domains by domains."""
        return [self._chart(label, its[0]) for label, its in rows.items()]

    def notes(self, rows: Rows) -> list[str]:
        """Which vectors do not separate domains, or are nearly the same for all clients."""
        words = []
        for label, its in rows.items():
            for name in _compared(its):
                _, _, difference, area = _figures(its, name)
                if area and area.mean < CLEAR:
                    words.append(f"{label}: the {name} does not separate domains (AUC {area.mean:.2f}).")
                elif difference and difference.mean < APART:
                    words.append(f"{label}: the {name} is nearly the same for all (difference {difference.mean:.3f}).")
        return words

    def _chart(self, label: str, one: MeasuredRun) -> Chart:
        matrices = {name: _matrix(_pairs(one, name)) for name in _compared([one])}
        *_, (_, domains) = matrices.values()
        with style():
            figure = heat_maps({name: matrix for name, (matrix, _) in matrices.items()}, domains)
        return Chart(
            file_name("similarity", label),
            f"Similarity of clients: {label}",
            f"Seed {one.seed}, {len(domains)} clients, those of a domain together. On the right, means by domain.",
            f"Heat maps of {label}: clients by clients, and domains by domains.",
            figure,
            one.measured.rows,
            label,
        )


def _compared(runs: Sequence[MeasuredRun]) -> list[str]:
    return [*dict.fromkeys(str(row["compared"]) for row in runs[0].measured.rows)]


def _pairs(one: MeasuredRun, name: str) -> Pairs:
    return [row for row in one.measured.rows if row["compared"] == name]


def _figures(runs: Sequence[MeasuredRun], name: str) -> list[MeanStd | None]:
    """Means within and between domains, their difference, and the AUC, over runs; None where there are no such pairs.

    A run whose clients are all of one domain, or all of different domains, has neither difference nor AUC.
    """
    found: list[list[float]] = [[], [], [], []]
    for one in runs:
        pairs = _pairs(one, name)
        within = [row["cosine"] for row in pairs if row["domain"] == row["other_domain"]]
        between = [row["cosine"] for row in pairs if row["domain"] != row["other_domain"]]
        found[0] += [mean(within)] if within else []
        found[1] += [mean(between)] if between else []
        if within and between:
            found[2].append(mean(within) - mean(between))
            found[3].append(separation(within, between))
    return [MeanStd.of(values) for values in found]


def _matrix(pairs: Pairs) -> tuple[Tensor, list[str]]:
    """The symmetric matrix of pairs, with 1 on its diagonal, and the domain of each client."""
    domains: dict[str, str] = {}
    for row in pairs:
        domains |= {row["client"]: row["domain"], row["other"]: row["other_domain"]}
    place = {name: number for number, name in enumerate(domains)}
    matrix = torch.eye(len(place), dtype=torch.float64)
    for row in pairs:
        a, b = place[row["client"]], place[row["other"]]
        matrix[a, b] = matrix[b, a] = row["cosine"]
    return matrix, [*domains.values()]
