"""How similar the encoders of clients are."""

from __future__ import annotations

from itertools import combinations
from math import isnan
from statistics import mean
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from matplotlib.figure import Figure
from torch import Tensor

from fedshift.errors import FedshiftError
from fedshift.reporting.analyses.analysis import Analysis, Measured, Rows
from fedshift.reporting.charts import Chart, draw_heat_map, style
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting
from fedshift.written import file_name


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Linear centred kernel alignment of two representations (n, d) and (n, e) of the same samples, in 0..1.

    |B'A|^2 / (|A'A| |B'B|) with centred columns and Frobenius norms. 1: one is the other turned, reflected or scaled;
    0: no feature of one is correlated with one of the other. NaN if one does not vary.
    """
    a, b = (part.double() - part.double().mean(dim=0) for part in (a, b))
    norm = torch.linalg.matrix_norm
    return float(norm(b.T @ a) ** 2 / (norm(a.T @ a) * norm(b.T @ b)))


class CKA(Analysis):
    """Linear CKA between the encoders of every two clients, 0 to 1, on the same samples.

    1: one's z is the other's, turned, reflected or scaled; 0: uncorrelated. The samples are those of one
    test environment of each name, or of validation where there are none, evenly spaced. With fewer samples than a few
    times the size of z, CKA of unrelated encoders is far above 0.
    """

    title: ClassVar[str] = "Linear CKA between clients' encoders"
    source: ClassVar[str] = "Kornblith et al., Similarity of neural network representations revisited, ICML 2019"

    samples: Annotated[int, Ge(2)] = setting(500, help="Samples of an environment, at most")
    clients: Annotated[int, Ge(2)] = setting(30, help="Clients that are compared, at most: the first")

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The similarity of every two clients."""
        every = trained.simulation.federated.environments
        environments = [one for one in every if one.role == "test"] or list(every)
        found: dict[str, list[Tensor]] = {}
        for environment in {one.name: one for one in environments}.values():
            for client, observed in trained.observe_by_client(environment, self.clients).items():
                rows = torch.linspace(0, len(observed.y) - 1, min(self.samples, len(observed.y))).round().long()
                found.setdefault(client, []).append(observed.z[rows])
        z = {client: torch.cat(parts) for client, parts in found.items()}
        first = next(iter(z.values()))
        if len(z) > 1 and all(torch.equal(first, other) for other in z.values()):
            raise FedshiftError(
                f"'{trained.run.path}': z is the same at every client, so there is nothing to compare: the encoder is "
                "shared, or the method encodes by the shared one, as ditto and pfedme do beside their personal models."
            )
        if len(z) < 2:
            raise FedshiftError(f"'{trained.run.path}' has one client; CKA compares two or more.")
        values = {pair: linear_cka(z[pair[0]], z[pair[1]]) for pair in combinations(z, 2)}
        if constant := [" and ".join(pair) for pair, value in values.items() if isnan(value)]:
            raise FedshiftError(
                f"'{trained.run.path}': z does not vary at a client ({constant[0]}), so CKA is undefined: its encoder "
                "collapsed. Inspect the run's accuracy first."
            )
        return Measured(rows=[{"client": a, "other": b, "cka": value} for (a, b), value in values.items()])

    def tables(self, rows: Rows) -> list[Table]:
        """Mean, least and greatest over pairs; mean and standard deviation over runs."""
        cells = []
        for label, its in rows.items():
            by_run = [[float(row["cka"] or 0.0) for row in one.measured.rows] for one in its]
            found = [MeanStd.of([function(values) for values in by_run]) for function in (mean, min, max)]
            cells.append([label, *(each.text(decimals=3) if each else "" for each in found)])
        title = "Linear CKA between clients' encoders, 0 to 1"
        return [Table(title, ["method", "mean over pairs", "least alike", "most alike"], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """A heat map of clients by clients for each row, the mean over runs."""
        charts = []
        for label, its in rows.items():
            values: dict[tuple[str, str], list[float]] = {}
            for one in its:
                for row in one.measured.rows:
                    values.setdefault((str(row["client"]), str(row["other"])), []).append(float(row["cka"] or 0.0))
            means = {pair: mean(found) for pair, found in values.items()}
            names = [*dict.fromkeys(name for pair in means for name in pair)]
            matrix = [[1.0 if a == b else means.get((a, b), means.get((b, a), 0.0)) for b in names] for a in names]
            with style():
                figure = Figure(figsize=(4.8, 4.2), layout="constrained")
                draw_heat_map(figure.subplots(), matrix, names, names, (0.0, 1.0), "linear CKA")
            data = [{"client": a, "other": b, "cka": value} for (a, b), value in means.items()]
            about = "1: one client's z is the other's, turned, reflected or scaled. Mean over runs."
            alt = f"Heat map of the linear CKA of every two clients under {label}."
            charts.append(Chart(file_name("cka", label), f"Linear CKA: {label}", about, alt, figure, data, label))
        return charts
