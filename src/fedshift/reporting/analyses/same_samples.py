"""How uncertain scores are within test environments, and whether two models differ on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, ClassVar

import numpy as np

from fedshift.core.metrics import ACCURACY, Array, Metric, measured
from fedshift.core.uncertainty import Bounds, ScoreEstimate, auroc, intervals, resampled, share
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.table import Table
from fedshift.runs.observed import Observed, TrainedSimulation

BASE = "fedavg"  # what others are compared with, if it is there
SEED = 0  # of resamples
AREA = "auroc"
Scored = dict[str, Array]
"""Of an environment's samples: ``group``, ``right``, ``own`` (of the second class) and ``p`` (of the second class)."""


class Uncertainty(Analysis):
    """95 % intervals of every metric within each test environment, by group, and paired differences to FedAvg.

    Differences of accuracy and, of two classes, AUROC are on the same samples, in points; without FedAvg, to the first
    row. Over seeds the ends are averaged, so an interval is that of one run. An environment that several models are
    scored on has the first one's.
    """

    title: ClassVar[str] = "Uncertainty within test environments"
    source: ClassVar[str] = (
        "Wilson, JASA 1927; DeLong, DeLong and Clarke-Pearson, Biometrics 1988; Efron and Tibshirani, 1993"
    )

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The metrics of every test environment with their intervals, then what was predicted for each sample."""
        metrics, samples = list[dict[str, Any]](), list[dict[str, Any]]()
        seen = set[str]()
        for one in trained.observe("test"):
            if (name := one.environment.name) not in seen:
                seen.add(name)
                metrics += [{"environment": name, **row} for row in _metrics(trained, one)]
                samples += [{"environment": name, **row} for row in _samples(one)]
        return Measured(rows=[*metrics, *samples])

    def tables(self, rows: Rows) -> list[Table]:
        return [_scores(rows), *_differences(rows)]

    def notes(self, rows: Rows) -> list[str]:
        return [
            "The measurements have a row for each test sample, so they stay where the samples may be; the tables have "
            "none."
        ]


def _metrics(trained: TrainedSimulation, one: Observed) -> list[dict[str, Any]]:
    """Accuracy and declared metrics, their intervals, and how many samples and groups they rest on."""
    setup, group = trained.simulation.setup, one.environment.samples.group.cpu().numpy()
    requested = setup.evaluate.metrics, setup.classes, one.log_probabilities, one.y
    values = {ACCURACY: float(one.right.double().mean())}
    defined = measured(*requested, setup.evaluate.support_of(len(setup.classes)))
    values |= {name: value for name, value in defined.items() if value is not None}
    bounds = intervals(*requested, group) | resampled(*requested, group, SEED)
    size = {"n": len(one.y), "groups": len(np.unique(group))}
    return [
        {"metric": name, "value": value, "low": bounds[name].low, "high": bounds[name].high, **size}
        for name, value in values.items()
        if name in bounds
    ]


def _samples(one: Observed) -> list[dict[str, Any]]:
    second = one.log_probabilities.double().exp()[:, -1].tolist()
    group, right, y = one.environment.samples.group.tolist(), one.right.tolist(), one.y.tolist()
    last = one.log_probabilities.shape[1] - 1
    return [
        {"sample": number, "group": group[number], "right": int(right[number]), "own": int(y[number] == last), "p": p}
        for number, p in enumerate(second)
    ]


def _scores(rows: Rows) -> Table:
    cells = []
    for label, its in rows.items():
        found: dict[tuple[str, str], list[Any]] = {}
        for row in (row for one in its for row in one.measured.rows if "metric" in row):
            found.setdefault((str(row["environment"]), str(row["metric"])), []).append(row)
        for (name, metric), of_seeds in found.items():
            value, low, high = (f"{100 * mean(row[key] for row in of_seeds):.1f}" for key in ("value", "low", "high"))
            size = [f"{of_seeds[0][key]:,}" for key in ("n", "groups")]
            cells.append([f"{label}: {name}", Metric(metric).title, *size, value, f"{low} to {high}"])
    return Table(
        "Metrics in % and their 95 % intervals, means over seeds",
        ["row", "metric", "n", "groups", "value", "95 % interval"],
        cells,
    )


def _differences(rows: Rows) -> list[Table]:
    """A row's accuracy and AUROC minus the base's, by environment; none of a single row."""
    if len(rows) < 2:
        return []
    base = BASE if BASE in rows else next(iter(rows))
    cells = [
        [f"{label}: {name}", quantity, *_difference(pairs, estimate)]
        for label, its in rows.items()
        if label != base
        for name, pairs in _pairs(its, rows[base]).items()
        for quantity, estimate in _estimates(its[0]).items()
    ]
    title = f"Difference to {base} on the same samples, in points, means over seeds"
    return [Table(title, ["row", "metric", "n", "difference", "95 % interval", "in a word"], cells)]


def _estimates(one: MeasuredRun) -> dict[str, Callable[[Scored], ScoreEstimate | None]]:
    def accuracy(scored: Scored) -> ScoreEstimate:
        return share(scored["right"] == 1)

    least = one.run.experiment.evaluate.support_of(2)

    def area(scored: Scored) -> ScoreEstimate | None:
        own = scored["own"] == 1
        return auroc(own, scored["p"]) if min(own.sum(), (~own).sum()) >= least else None

    two = len(one.run.data_facts["classes"]) == 2
    return {ACCURACY: accuracy, **({Metric(AREA).title: area} if two else {})}


def _pairs(ours: Sequence[MeasuredRun], theirs: Sequence[MeasuredRun]) -> dict[str, list[tuple[Scored, Scored]]]:
    """By environment, what runs of the same seed predicted for the same samples."""
    others = [(one.seed, _scored(one)) for one in theirs]
    found: dict[str, list[tuple[Scored, Scored]]] = {}
    for seed, mine in ((one.seed, _scored(one)) for one in ours):
        for other in (scored for number, scored in others if number == seed):
            for name in mine.keys() & other.keys():
                if all(np.array_equal(mine[name][key], other[name][key]) for key in ("group", "own")):
                    found.setdefault(name, []).append((mine[name], other[name]))
    return dict(sorted(found.items()))


def _scored(one: MeasuredRun) -> dict[str, Scored]:
    by_name: dict[str, list[Any]] = {}
    for row in one.measured.rows:
        if "sample" in row:
            by_name.setdefault(str(row["environment"]), []).append(row)
    return {
        name: {key: np.array([row[key] for row in its]) for key in ("group", "right", "own", "p")}
        for name, its in by_name.items()
    }


def _difference(
    pairs: Sequence[tuple[Scored, Scored]], estimate: Callable[[Scored], ScoreEstimate | None]
) -> tuple[str, str, str, str]:
    found = list[tuple[float, Bounds]]()
    for ours, theirs in pairs:
        one, other = estimate(ours), estimate(theirs)
        if one is not None and other is not None:
            found.append(((one - other).value, (one - other).bounds(ours["group"], least=-1.0)))
    n = f"{len(pairs[0][0]['group']):,}"
    if not found:
        return n, "", "", "undefined"
    value = mean(value for value, _ in found)
    low, high = (mean(bounds[end] for _, bounds in found) for end in (0, 1))
    word = "not clear" if low <= 0 <= high else "better" if value > 0 else "worse"
    return n, f"{100 * value:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}", word
