"""Which round's result is reported: rules with names, made from records only.

``last`` is the headline. ``source_validation`` may be used to choose. ``target_best`` looks at the test data, so
it is an oracle, only ever shown beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from fedshift.errors import FedshiftError
from fedshift.runs.records import Record

ORACLES = ("target_best",)


def by_environment(record: Record, role: str, what: Literal["accuracy", "loss"] = "accuracy") -> dict[str, float]:
    """For each environment of one role the mean accuracy (or loss) over the clients that are scored on it."""
    found: dict[str, list[float]] = {}
    for row in record["environments"]:
        if row["role"] == role:
            found.setdefault(row["environment"], []).append(row[what])
    return {name: sum(values) / len(values) for name, values in found.items()}


def mean_accuracy(record: Record, role: str) -> float:
    """The mean accuracy over a record's environments of one role, each environment with equal weight."""
    accuracies = by_environment(record, role).values()
    return sum(accuracies) / len(accuracies)


def last(records: Sequence[Record]) -> Record:
    """The last evaluation."""
    return records[-1]


def source_validation(records: Sequence[Record]) -> Record:
    """The evaluation with the best mean accuracy on validation environments; the earliest of equals."""
    return max(_last_stage(records), key=lambda record: mean_accuracy(record, "validation"))


def target_best(records: Sequence[Record]) -> Record:
    """An oracle: the evaluation with the best mean accuracy on test environments."""
    return max(_last_stage(records), key=lambda record: mean_accuracy(record, "test"))


def _last_stage(records: Sequence[Record]) -> list[Record]:
    """The evaluations of the run's last stage: before a fine-tuning, say, the model is another method's."""
    return [record for record in records if record["stage"] == records[-1]["stage"]]


RULES: dict[str, Callable[[Sequence[Record]], Record]] = {
    "last": last,
    "source_validation": source_validation,
    "target_best": target_best,
}


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """The round and the mean accuracies that each rule selects.

    Raises:
        FedshiftError: there is no record.
    """
    if not records:
        raise FedshiftError("The run has no records yet.")
    chosen = {name: rule(records) for name, rule in RULES.items()}
    return {
        name: {
            "position": record["position"],
            "test": mean_accuracy(record, "test"),
            "validation": mean_accuracy(record, "validation"),
            "oracle": name in ORACLES,
        }
        for name, record in chosen.items()
    }
