"""What follows from records alone: the round whose result is reported, and where training ends early.

``last`` is the headline: the last evaluation, or the mean of the last ones (``evaluate.last``). ``source_validation``
may be used to choose. ``target_best`` uses the test data, so it is an oracle, only ever shown next to the others.
All use the metric that the records name as selecting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedshift.core.metrics import ACCURACY, Metric
from fedshift.errors import FedshiftError
from fedshift.rounds.coordinator import Coordinator
from fedshift.runs.schema import Record

ORACLES = ("target_best",)
SERVER = "server"  # what the server's phases minimise is not part of any client's loss


def selects(record: Record) -> Metric:
    return Metric(record.get("select", ACCURACY))


def value_of(row: Mapping[str, Any], metric: str) -> float | None:
    """A metric (or "loss") of a row of a record; None if it is undefined."""
    value: float | None = row[metric] if metric in (ACCURACY, "loss") else row["metrics"][metric]
    return value


def by_environment(record: Record, role: str, metric: str | None = None) -> dict[str, float]:
    """A metric, or "loss", for each environment of a role ("test" or "validation"): the mean over its clients.

    ``metric`` None is the metric that selects; environments on which it is undefined are excluded.
    """
    metric, found = selects(record).name if metric is None else metric, dict[str, list[float]]()
    for row in record["environments"]:
        if row["role"] == role and (value := value_of(row, metric)) is not None:
            found.setdefault(row["environment"], []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def mean_score(record: Record, role: str, metric: str | None = None) -> float | None:
    """The mean of a metric over a record's environments of a role, with equal weights.

    Environments on which the metric is undefined are excluded; None if it is undefined on all.
    """
    scores = by_environment(record, role, metric).values()
    return sum(scores) / len(scores) if scores else None


def over_clients(record: Record) -> list[Record]:
    """A row for each environment, role and kind of model: the mean over clients of accuracy, loss and metrics."""
    clients: dict[tuple[str, str, str], list[Record]] = {}
    for row in record["environments"]:
        clients.setdefault((row["environment"], row["role"], row["model"]), []).append(row)
    return [
        {"environment": environment, "role": role, "model": model, **_means(rows)}
        for (environment, role, model), rows in clients.items()
    ]


def _means(rows: Sequence[Record]) -> Record:
    plain = {name: sum(row[name] for row in rows) / len(rows) for name in (ACCURACY, "loss")}
    names = rows[0].get("metrics", {})
    there = {name: [value for row in rows if (value := row["metrics"][name]) is not None] for name in names}
    metrics = {name: fmean(values) if values else None for name, values in there.items()}
    return {**plain, **({"metrics": metrics} if metrics else {})}


def last(records: Sequence[Record]) -> Record:
    """The last evaluation, with the mean scores of the last ones of its stage where the run requires several."""
    averaged = _averaged(records)
    if len(averaged) == 1:
        return averaged[0]
    rows = zip(*(each["environments"] for each in averaged), strict=True)
    return averaged[-1] | {"environments": [its[-1] | _means(its) for its in rows]}


def spread(records: Sequence[Record], role: str, metric: str | None = None) -> float | None:
    """The standard deviation of :func:`mean_score` over the evaluations that :func:`last` averages; None of one."""
    scores = [score for each in _averaged(records) if (score := mean_score(each, role, metric)) is not None]
    return stdev(scores) if len(scores) > 1 else None


def _averaged(records: Sequence[Record]) -> list[Record]:
    newest = records[-1]
    requested = records[-newest.get("last", 1) :]
    return [each for each in requested if each["stage"] == newest["stage"] and _scored(each) == _scored(newest)]


def _scored(record: Record) -> list[tuple[Any, ...]]:
    return [tuple(row.get(key) for key in ("environment", "role", "model", "n")) for row in record["environments"]]


def moment(records: Sequence[Record]) -> str:
    count = records[-1].get("last", 1)
    return "last round" if count == 1 else f"mean of the last {count} evaluations"


def source_validation(records: Sequence[Record]) -> Record:
    """The evaluation with the best mean over validation environments; the earliest of equals."""
    return _best(records, "validation")


def target_best(records: Sequence[Record]) -> Record:
    """An oracle: the evaluation with the best mean over test environments."""
    return _best(records, "test")


def _best(records: Sequence[Record], role: str) -> Record:
    of_stage = [record for record in records if record["stage"] == records[-1]["stage"]]
    scored = [(record, score) for record in of_stage if (score := mean_score(record, role)) is not None]
    if not scored:
        return records[-1]
    return max(scored, key=lambda one: selects(one[0]).merit(one[1]))[0]


RULES: dict[str, Callable[[Sequence[Record]], Record]] = {
    "last": last,
    "source_validation": source_validation,
    "target_best": target_best,
}


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """The round that each rule selects, with the means of the selecting metric over test and validation."""
    if not records:
        raise FedshiftError("The run has no records yet.")
    chosen = {name: rule(records) for name, rule in RULES.items()}
    return {
        name: {
            "position": record["position"],
            "test": mean_score(record, "test"),
            "validation": mean_score(record, "validation"),
            "oracle": name in ORACLES,
        }
        for name, record in chosen.items()
    }


def shares(record: Record) -> dict[str, float]:
    """Each loss term's share, in 0..1, of the clients' loss in a record's round; together 1.

    A term is weighted, as it is minimised, and counts by the absolute value of its mean over a client's steps; clients
    count equally, and the objectives of a method are summed. Empty where clients reported nothing, or all terms are 0.
    """
    sizes: dict[str, float] = {}
    for who, terms in record["terms"].items():
        if who != SERVER:
            for name, mean in terms.items():
                sizes[name] = sizes.get(name, 0.0) + abs(mean)
    whole = sum(sizes.values())
    return {name: size / whole for name, size in sizes.items()} if whole else {}


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record that can be followed over rounds, by name.

    ``ROLE/METRIC/ENVIRONMENT``, for accuracy, loss and every other metric, is the mean over the clients of an
    environment, and ``ROLE/METRIC`` the mean of these; ``terms/NAME`` the mean over clients of a weighted loss term,
    ``terms/server/NAME`` a term of the server's; ``bytes/down`` and ``bytes/up`` are totals since the run's start.
    """
    found: dict[str, float] = {"bytes/down": record["bytes_down"], "bytes/up": record["bytes_up"]}
    terms: dict[str, list[float]] = {}
    for who, means in record["terms"].items():
        for name, mean in means.items():
            terms.setdefault(f"terms/{SERVER}/{name}" if who == SERVER else f"terms/{name}", []).append(mean)
    found |= {name: fmean(means) for name, means in terms.items()}
    for role in ("test", "validation"):
        for metric in (ACCURACY, "loss", *record["environments"][0].get("metrics", {})):
            if scores := by_environment(record, role, metric):
                found[f"{role}/{metric}"] = sum(scores.values()) / len(scores)
                found |= {f"{role}/{metric}/{environment}": score for environment, score in scores.items()}
    return found


# Early stopping ------------------------------------------------------------------------------------


def end_early(coordinator: Coordinator, records: Sequence[Record]) -> str:
    """End the stage of the newest record before its last round, if its patience is exhausted.

    ``records`` are all of the run. Returns where the stage ended and why, for a record; empty if it continues, or is at
    its last round anyway.
    """
    train, newest = coordinator.setup.train, records[-1]
    if train.patience == "off" or coordinator.stage_over:
        return ""
    of_stage = [record for record in records if record["stage"] == newest["stage"]]
    best, waited = best_of(of_stage, train.min_delta)
    if waited < train.patience:
        return ""
    planned = coordinator.schedule[coordinator.position - 1].stage.rounds
    coordinator.end_stage()
    by = f" by more than {train.min_delta:g}" if train.min_delta else ""
    times = f"{waited} evaluations" if waited > 1 else "the next evaluation"
    score = f"{mean_score(best, 'validation'):.4f} after round {best['round']}"
    return f"after round {newest['round']} of {planned}: no better validation score{by} than {score} in {times}"


def best_of(records: Sequence[Record], min_delta: float) -> tuple[Record, int]:
    """The last record that exceeded all before it by ``min_delta``, and how many came after it.

    The count starts at the first score: a metric may be undefined in the first rounds, or in all.
    """
    best, waited = records[0], 0
    for record in records[1:]:
        least = _merit(best) + min_delta
        best, waited = (record, 0) if least == -math.inf or _merit(record) > least else (best, waited + 1)
    return best, waited


def _merit(record: Record) -> float:
    score = mean_score(record, "validation")
    return -math.inf if score is None else selects(record).merit(score)


def endings(records: Sequence[Record]) -> dict[str, str]:
    """Where stages ended early and why, by the stage's name."""
    return {record["stage"]: record["ended"] for record in records if record.get("ended")}
