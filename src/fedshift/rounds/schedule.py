"""The rounds of a run, each worked out when it is asked for: a run of any length takes no memory for its plan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from fedshift.clients.tables import Lazy
from fedshift.core.contract import Round, Stage


def schedule_of(stages: Sequence[Stage], ended: Mapping[str, int] | None = None) -> Lazy[Round]:
    """Every round of the stages, in order; of a stage that has ended early, by its name, so many."""
    starts = list(accumulate(((ended or {}).get(stage.name, stage.rounds) for stage in stages), initial=0))

    def round_at(place: int) -> Round:
        number = bisect_right(starts, place) - 1
        return Round(stages[number], place - starts[number] + 1)

    return Lazy(round_at, range(starts[-1]))
