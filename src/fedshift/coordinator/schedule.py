"""The rounds of a run, each worked out when it is asked for: a run of any length takes no memory for its plan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import overload

from fedshift.core.contract import Round, Stage


class Schedule(Sequence[Round]):
    """Every round of the stages, in order; of a stage that has ended early, by its name, so many."""

    def __init__(self, stages: Sequence[Stage], ended: Mapping[str, int] | None = None) -> None:
        self._stages = tuple(stages)
        lengths = ((ended or {}).get(stage.name, stage.rounds) for stage in stages)
        self._starts = list(accumulate(lengths, initial=0))

    def start(self, stage: Stage) -> int:
        """How many rounds come before a stage."""
        return next(start for start, other in zip(self._starts, self._stages, strict=False) if other is stage)

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, place: int) -> Round: ...
    @overload
    def __getitem__(self, place: slice) -> list[Round]: ...
    def __getitem__(self, place: int | slice) -> Round | list[Round]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return [self[each] for each in places]
        number = bisect_right(self._starts, places) - 1
        return Round(self._stages[number], places - self._starts[number] + 1)
