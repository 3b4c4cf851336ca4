"""Early stopping: a stage ends where its validation scores no longer become better.

It follows from records alone, so a run that is resumed ends where it would have, and looks at no test environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedshift.rounds.coordinator import Coordinator
from fedshift.runs.records import Record
from fedshift.runs.selection import mean_score, selects


def end_early(coordinator: Coordinator, records: Sequence[Record]) -> str:
    """End the stage of the newest record before its last round, if its patience is out.

    Args:
        coordinator: the run's; the newest record is of the round that was done last.
        records: all of the run, the newest included.

    Returns:
        Where the stage ended and why, for a record; empty if it goes on, or is at its end anyway.
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
    """The last record that was better than all before it, by more than so much, and how many came after it.

    While none has a score nothing is waited for: a metric may be undefined in the first rounds, or in all.
    """
    best, waited = records[0], 0
    for record in records[1:]:
        least = _merit(best) + min_delta
        best, waited = (record, 0) if least == -math.inf or _merit(record) > least else (best, waited + 1)
    return best, waited


def _merit(record: Record) -> float:
    """What rules that choose by validation go by, the larger the better; without a score the worst, -infinity."""
    score = mean_score(record, "validation")
    return -math.inf if score is None else selects(record).merit(score)


def endings(records: Sequence[Record]) -> dict[str, str]:
    """Where stages ended early and why, by the stage's name."""
    return {record["stage"]: record["ended"] for record in records if record.get("ended")}
