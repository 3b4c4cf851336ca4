"""Distances between domains of a class in the representation, compared with distances between classes."""

from __future__ import annotations

from itertools import combinations
from statistics import mean
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from fedshift.errors import FedshiftError
from fedshift.reporting.analyses.analysis import Analysis, Measured, Rows
from fedshift.reporting.analyses.represented import by_domain
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting

LEAST = 2  # samples of a class in a domain, whose mean then counts
COLUMNS = {"domains": "domains apart", "classes": "classes apart", "ratio": "ratio"}


def gaps(domains: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Distances between domains within a class, and between classes within a domain.

    Both are the mean Euclidean distance of two means of z, of a class in a domain: over every two domains that have the
    class, and over every two classes that a domain has.

    Args:
        domains: of each domain representations (n, d) and labels (n,).
    """
    means: dict[tuple[int, int], Tensor] = {}
    for domain, (z, y) in enumerate(domains):
        values, counts = torch.unique(y, return_counts=True)
        means |= {(domain, label): z[y == label].mean(dim=0) for label in values[counts >= LEAST].tolist()}
    pairs = [*combinations(means, 2)]
    apart = {pair: float((means[pair[0]] - means[pair[1]]).norm()) for pair in pairs}
    of_domains = [distance for ((a, c), (b, e)), distance in apart.items() if c == e and a != b]
    of_classes = [distance for ((a, c), (b, e)), distance in apart.items() if a == b and c != e]
    if not (of_domains and of_classes):
        raise FedshiftError(f"it needs two domains with {LEAST} samples of the same class, and two classes in a domain")
    return mean(of_domains), mean(of_classes)


class DomainGap(Analysis):
    """Distance between domains within a class over the distance between classes within a domain, in z.

    Distances are those between means of z of a class in a domain, over all pairs. The ratio does not see a common scale
    of z: 0: domains agree on where each class is; 1: another domain is as far away as another class.
    """

    title: ClassVar[str] = "Distances between domains and between classes"
    source: ClassVar[str] = "FedCiR, Sec. 5.2: representations of a class that are the same at every client"

    samples: Annotated[int, Ge(4)] = setting(1000, help="Samples of a domain, at most")

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The two distances, and their ratio."""
        try:
            domains, classes = gaps([(domain.z, domain.y) for domain in by_domain(trained, self.samples)])
        except FedshiftError as error:
            raise FedshiftError(
                f"'{trained.run.path}' has no distances between domains and classes: {error}."
            ) from error
        return Measured(
            rows=[{"domains": domains, "classes": classes, "ratio": domains / classes if classes else None}]
        )

    def tables(self, rows: Rows) -> list[Table]:
        """Mean and standard deviation over runs."""
        cells = []
        for label, its in rows.items():
            found = [
                MeanStd.of([float(value) for one in its if (value := one.measured.rows[0][name]) is not None])
                for name in COLUMNS
            ]
            cells.append([label, *(each.text(decimals=3) if each else "" for each in found)])
        return [Table("Distances between means of z", ["method", *COLUMNS.values()], cells)]
