"""Which round's result is reported: rules with names, made from records only.

``last`` is the headline. ``source_validation`` may be used to choose. ``target_best`` looks at the test data, so
it is an oracle, only ever shown beside the others. All go by the metric that the records say selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedshift.core.metrics import ACCURACY, Metric
from fedshift.errors import FedshiftError
from fedshift.runs.records import Record

ORACLES = ("target_best",)


def selects(record: Record) -> Metric:
    """The metric by which a record's run selects, and which is shown first."""
    return Metric(record.get("select", ACCURACY))


def value_of(row: Mapping[str, Any], metric: str) -> float | None:
    """What a row of a record has for a metric (or "loss"); None where that is undefined."""
    value: float | None = row[metric] if metric in (ACCURACY, "loss") else row["metrics"][metric]
    return value


def by_environment(record: Record, role: str, metric: str | None = None) -> dict[str, float]:
    """For each environment of one role a metric, or "loss": the mean over the clients that are scored on it.

    Args:
        record: an evaluation.
        role: "test" or "validation".
        metric: its name; None: the one that selects.

    Returns:
        By the environment's name; one on which the metric is undefined is left out.
    """
    metric, found = selects(record).name if metric is None else metric, dict[str, list[float]]()
    for row in record["environments"]:
        if row["role"] == role and (value := value_of(row, metric)) is not None:
            found.setdefault(row["environment"], []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def mean_score(record: Record, role: str, metric: str | None = None) -> float | None:
    """The mean of a metric over a record's environments of one role, each with equal weight.

    It is over those on which the metric is defined; None where there is none.
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
    """The last evaluation."""
    return records[-1]


def source_validation(records: Sequence[Record]) -> Record:
    """The evaluation that is best on validation environments in the mean; the earliest of equals."""
    return _best(records, "validation")


def target_best(records: Sequence[Record]) -> Record:
    """An oracle: the evaluation that is best on test environments in the mean."""
    return _best(records, "test")


def _best(records: Sequence[Record], role: str) -> Record:
    """The best evaluation of the run's last stage; the last one where the metric is never defined.

    Before a fine-tuning, say, the model is another method's.
    """
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
    """The round that each rule selects, with the means of the metric that selects over test and validation.

    Raises:
        FedshiftError: there is no record.
    """
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
